// Times the steps of a graph whose units may run on one core or several, and keeps what is fastest.
#ifndef TF_INTEROP_CORE_SELF_TIMING_H_
#define TF_INTEROP_CORE_SELF_TIMING_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc_kernels/core/way_trials.h"

namespace tf_interop {

// How a unit runs.
struct UnitWay {
  static constexpr int kStock = 0;
  static constexpr int kLargestPart = std::numeric_limits<int>::max();

  int cores = kStock;  // of an operation
  // 0 if the batch is not divided. Else the most images of a part, of which all cores take one
  // after another; kLargestPart: each core gets one part.
  int part_size = 0;

  bool is_stock() const { return cores == kStock; }
};
// As in `on 2 cores`.
std::string NameOf(const UnitWay& way);
// In how many parts `way` divides a batch: a multiple of the cores, unless there are fewer images.
int64_t PartCount(const UnitWay& way, int64_t batch_size, int cores);

// The units of one graph. A step is one run of all of them, from the start of the first to the end
// of the last. In each step all units run in the same way, which WayTrials chooses by the sizes of
// the step's input: as in stock TensorFlow, on one core, on several, or on all; or, if the units
// can, with the batch divided for all operations together.
//
// A step counts only if all steps that ran at the same time ran on as many cores, so those with
// inputs of other sizes have no trial. But if as many steps as cores run already, some of them with
// other sizes, the next one runs on one core. Thread-safe.
class SelfTiming {
 public:
  using Sizes = std::vector<int64_t>;
  // A program may run a graph with inputs of any number of sizes. A server that collects up to 64
  // requests into a batch runs all of them again and again.
  static constexpr size_t kMostSizes = 64;
  // For what is made for each of them and for the number of cores, of which few stay in use.
  static constexpr size_t kMostSizesAndCores = 2 * kMostSizes;

  // `cores` is the number of TensorFlow's threads for one op, the most that a unit may have.
  SelfTiming(int unit_count, int cores, bool can_divide);

  int unit_count() const { return unit_count_; }

  struct Run {
    UnitWay way;
    bool is_trial = false;
    // After this the step takes too long, and the unit should go on as in stock TensorFlow.
    int64_t limit_ns = std::numeric_limits<int64_t>::max();
  };
  // Begins a unit of the step `id`. The first unit of a step calls `sizes`, which returns the sizes
  // of its input. Begin and End come in pairs.
  Run Begin(int64_t id, int unit, const std::function<Sizes()>& sizes, int64_t now_ns);
  enum class Outcome {
    kRan,
    kTooLong,   // the rest of it as in stock TensorFlow
    kWarmedUp,  // for the first time in this form, so its time says little
    kFailed,
  };
  // `simulated_us` is the time of the unit's run in a simulation; 0 if there was none.
  void End(int64_t id, int64_t now_ns, Outcome outcome = Outcome::kRan, double simulated_us = 0);

  // One for each sizes of the input, the latest used first.
  std::vector<TrialsReport> Reports(const std::string& graph) const;

 private:
  struct OfSizes {
    Sizes sizes;
    std::vector<UnitWay> ways;
    WayTrials trials;
  };
  struct Step {
    int64_t id = 0;
    int64_t number = 0;  // of the steps that were opened
    std::shared_ptr<OfSizes> of;
    int way = 0;
    int64_t turn = 0;
    int64_t begin_ns = 0;
    int left = 0;             // units that have not ended
    double simulated_us = 0;  // of all units so far; NaN if one has none
    std::vector<bool> has_begun;
    bool counts = true;
    bool is_too_long = false;
  };
  using Steps = std::list<Step>;

  std::shared_ptr<OfSizes> FindSizes(Sizes sizes);
  Steps::iterator FindStep(int64_t id);
  void Open(int64_t id, Sizes sizes, int64_t now_ns);

  const int unit_count_;
  const int cores_;
  const bool can_divide_;
  mutable std::mutex mutex_;                   // guards the rest
  std::list<std::shared_ptr<OfSizes>> sizes_;  // the latest used first
  Steps steps_;                                // open ones, the latest first
  int64_t opened_ = 0;
};

// The timing of the graph of this name, which kernels hold. Null if another unit of it named
// another count.
std::shared_ptr<SelfTiming> FindSelfTiming(const std::string& graph, int unit_count, int cores,
                                           bool can_divide);

// Of all graphs.
std::vector<TrialsReport> ReadSelfTimings();

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_SELF_TIMING_H_
