#include "cc_kernels/core/counters.h"

#include <atomic>
#include <mutex>

namespace tf_interop {
namespace {

// Reasons carry node names, so a long-running program with changing shapes could make many.
constexpr size_t kMostReasons = 256;

std::atomic<int64_t> stages_run{0};
std::atomic<int64_t> filters_transformed{0};

class CountsByReason {
 public:
  void Count(const std::string& reason) {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool known = counts_.count(reason) > 0;
    if (known || counts_.size() < kMostReasons) {
      ++counts_[reason];
    } else {
      ++counts_["other reasons"];
    }
  }

  std::map<std::string, int64_t> Read() {
    std::lock_guard<std::mutex> lock(mutex_);
    return counts_;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int64_t> counts_;
};

// Never destroyed: kernels may still run while the process ends.
CountsByReason& Fallbacks() {
  static CountsByReason* const counts = new CountsByReason();
  return *counts;
}

CountsByReason& RefusedLaneOptions() {
  static CountsByReason* const counts = new CountsByReason();
  return *counts;
}

}  // namespace

void CountStageRun() { stages_run.fetch_add(1, std::memory_order_relaxed); }

void CountFilterTransformation() { filters_transformed.fetch_add(1, std::memory_order_relaxed); }

void CountFallback(const std::string& reason) { Fallbacks().Count(reason); }

void CountRefusedLaneOptions(const std::string& reason) { RefusedLaneOptions().Count(reason); }

Counters ReadCounters() {
  Counters counters;
  counters.stages_run = stages_run.load(std::memory_order_relaxed);
  counters.filters_transformed = filters_transformed.load(std::memory_order_relaxed);
  counters.fallbacks = Fallbacks().Read();
  counters.refused_lane_options = RefusedLaneOptions().Read();
  return counters;
}

}  // namespace tf_interop
