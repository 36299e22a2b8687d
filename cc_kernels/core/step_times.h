// Plans which steps of a program share the cores of a group, from the times of its own runs.
#ifndef TF_INTEROP_CORE_STEP_TIMES_H_
#define TF_INTEROP_CORE_STEP_TIMES_H_

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cc_kernels/core/ready_steps.h"

namespace tf_interop {

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

  void Record(int step, int cores, double us);
  // Makes the plans anew from the times so far; keeps those that are nearly as fast.
  void Plan();

  struct Planned {
    std::shared_ptr<const LanePlan> plan;
    bool is_new = false;  // its first runs fill caches of threads
  };
  // The plan for a run that begins now; null until all steps have times on one core and on `cores`.
  Planned BeginRun(int cores);

 private:
  struct OfCores {
    std::vector<double> us;  // by step
    std::shared_ptr<const LanePlan> plan;
    int runs = 0;  // of the plan
  };

  const StepOrder& order_;
  std::mutex mutex_;  // guards the rest
  std::map<int, OfCores> of_cores_;
  bool is_stale_ = false;  // some time is less than it was for the plans
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_STEP_TIMES_H_
