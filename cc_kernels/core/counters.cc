#include "cc_kernels/core/counters.h"

#include <atomic>
#include <mutex>

namespace tf_interop {
namespace {

// Reasons carry node names, so a long-running program with changing shapes could make many.
constexpr size_t kMostReasons = 256;

std::atomic<int64_t> stages_run{0};
std::atomic<int64_t> filters_transformed{0};

struct Fallbacks {
  std::mutex mutex;
  std::map<std::string, int64_t> by_reason;
};

// Never destroyed: kernels may still run while the process ends.
Fallbacks& GlobalFallbacks() {
  static Fallbacks* const fallbacks = new Fallbacks();
  return *fallbacks;
}

}  // namespace

void CountStageRun() { stages_run.fetch_add(1, std::memory_order_relaxed); }

void CountFilterTransformation() { filters_transformed.fetch_add(1, std::memory_order_relaxed); }

void CountFallback(const std::string& reason) {
  Fallbacks& fallbacks = GlobalFallbacks();
  std::lock_guard<std::mutex> lock(fallbacks.mutex);
  const bool known = fallbacks.by_reason.count(reason) > 0;
  if (known || fallbacks.by_reason.size() < kMostReasons) {
    ++fallbacks.by_reason[reason];
  } else {
    ++fallbacks.by_reason["other reasons"];
  }
}

Counters ReadCounters() {
  Counters counters;
  counters.stages_run = stages_run.load(std::memory_order_relaxed);
  counters.filters_transformed = filters_transformed.load(std::memory_order_relaxed);
  Fallbacks& fallbacks = GlobalFallbacks();
  std::lock_guard<std::mutex> lock(fallbacks.mutex);
  counters.fallbacks = fallbacks.by_reason;
  return counters;
}

}  // namespace tf_interop
