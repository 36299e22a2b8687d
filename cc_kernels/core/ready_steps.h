// Which steps of a program can run while several threads run others. Also plans, made from the
// times of its runs, of the steps that share the cores of a group.
#ifndef TF_INTEROP_CORE_READY_STEPS_H_
#define TF_INTEROP_CORE_READY_STEPS_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace tf_interop {

// The order in which steps may run: each after those whose results it reads.
class StepOrder {
 public:
  StepOrder() = default;
  // For each step: the earlier steps that it reads, each once; and whether it takes so long that
  // another thread may as well run it.
  StepOrder(const std::vector<std::vector<int>>& sources, std::vector<bool> is_long);

  int step_count() const { return static_cast<int>(source_counts_.size()); }
  const std::vector<int>& source_counts() const { return source_counts_; }
  const std::vector<int>& readers(int step) const { return readers_[step]; }
  bool is_long(int step) const { return is_long_[step]; }
  // Whether no two steps can run at the same time.
  bool is_chain() const { return is_chain_; }

 private:
  std::vector<int> source_counts_;
  std::vector<std::vector<int>> readers_;
  std::vector<bool> is_long_;
  bool is_chain_ = true;
};

// How the steps of a program run on a few cores: step by step, each divided over all cores, or on
// one core each, several at the same time.
struct LanePlan {
  std::vector<bool> is_wide;  // by step: divided over all cores, so that no other runs meanwhile
  std::vector<double>
      ranks;  // by step: of those that are ready, the one with the highest goes first
};

// One run of all steps. Thread-safe; both must outlive all calls that return a step.
class ReadySteps {
 public:
  ReadySteps(const StepOrder& order, const LanePlan& plan);

  static constexpr int kNone = -1;

  // A step for the calling thread; kNone if none can run now.
  int Take();
  // `step` is done: takes the next one, if possible one that reads its result.
  int TakeAfter(int step);
  // Nobody gets another step. The run is over when those that were taken are done.
  void Stop();

  // The long steps that could be taken now.
  int free_count() const { return free_count_.load(std::memory_order_relaxed); }
  // Whether all steps are done, or the run was stopped and no step runs.
  bool is_over() const { return is_over_.load(std::memory_order_acquire); }
  // Sleeps until a step can be taken or the run is over.
  void Wait();

 private:
  // All require mutex_. The place in ready_, from `first` on, of the step to take next, or kNone.
  int FindBest(size_t first) const;
  int Take(int place);
  void Update();

  const StepOrder& order_;
  const LanePlan& plan_;
  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::vector<int> left_;  // by step: sources that are not done
  std::vector<int> ready_;
  int not_done_ = 0;
  int running_ = 0;
  bool runs_wide_ = false;
  bool is_stopped_ = false;
  std::atomic<int> free_count_{0};    // also read without the mutex
  std::atomic<bool> is_over_{false};  // also read without the mutex
};

// All steps on one core; those that the longest paths to the end begin with go first.
LanePlan PlanOfOneCoreEach(const StepOrder& order);

// The plan with the shortest simulated run. Each step takes `one_us` on one core, or `all_us` on
// all `cores`. Long steps are divided, because a short one that runs meanwhile would leave a core
// idle; how long is found by trying.
LanePlan PlanLanes(const StepOrder& order, const std::vector<double>& one_us,
                   const std::vector<double>& all_us, int cores);

// The time of a run by a plan, in which threads take steps from ReadySteps.
double SimulateLanes(const StepOrder& order, const LanePlan& plan,
                     const std::vector<double>& one_us, const std::vector<double>& all_us,
                     int cores);

// The least time of each step so far, by the number of cores, and the plans that follow from them.
// Thread-safe.
class StepTimes {
 public:
  // `order` must outlive this.
  explicit StepTimes(const StepOrder& order) : order_(order) {}

  // The times of all steps, one after another, in a run on some cores.
  void Record(int cores, const std::vector<double>& us);
  // Makes the plans anew from the times so far; keeps those that are nearly as fast.
  void Plan();

  struct Planned {
    std::shared_ptr<const LanePlan> plan;
    double simulated_us = 0;  // of the plan, if its steps take as long as in usual runs
    bool is_new = false;      // its first runs fill caches of threads
  };
  // The plan for a run that begins now; null until all steps have times on one core and on `cores`.
  Planned BeginRun(int cores);

 private:
  struct OfCores {
    // How many times as long as the sum of the least times a usual run takes.
    double Slowdown() const;

    std::vector<double> us;       // by step
    std::vector<double> runs_us;  // sums of the latest runs
    size_t oldest = 0;            // of these
    std::shared_ptr<const LanePlan> plan;
    double simulated_us = 0;  // of the plan, with the least times
    int runs = 0;             // of the plan
  };

  const StepOrder& order_;
  std::mutex mutex_;  // guards the rest
  std::map<int, OfCores> of_cores_;
  bool is_stale_ = false;  // some time is less than it was for the plans
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_READY_STEPS_H_
