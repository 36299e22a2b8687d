#include "cc_kernels/core/counters.h"

#include <mutex>
#include <utility>

namespace tf_interop {

struct DeviceCounts {
  std::mutex mutex;  // guards the rest
  Counters counters;
  std::map<std::string, int> rows_of_kind;
};

namespace {

struct AllCounts {
  std::mutex mutex;
  std::map<std::string, DeviceCounts> devices;  // guarded by mutex; never erased
};

// Never destroyed, because kernels may still run while the process ends.
AllCounts& Counts() {
  static auto* const counts = new AllCounts();
  return *counts;
}

thread_local DeviceCounts* counts_of_thread = nullptr;

DeviceCounts& CountsOfThread() {
  static DeviceCounts* const of_no_device = FindCounts("");
  return counts_of_thread != nullptr ? *counts_of_thread : *of_no_device;
}

}  // namespace

DeviceCounts* FindCounts(const std::string& device) {
  std::lock_guard<std::mutex> lock(Counts().mutex);
  return &Counts().devices[device];
}

CountingFor::CountingFor(DeviceCounts* device) : outer_(std::exchange(counts_of_thread, device)) {}

CountingFor::~CountingFor() { counts_of_thread = outer_; }

void Count(int64_t Counters::* counter) {
  DeviceCounts& counts = CountsOfThread();
  std::lock_guard<std::mutex> lock(counts.mutex);
  ++(counts.counters.*counter);
}

void AddKeptBytes(DeviceCounts* device, int64_t bytes) {
  if (device == nullptr) return;
  std::lock_guard<std::mutex> lock(device->mutex);
  device->counters.kept_bytes += bytes;
}

void CountFallback(const std::string& kind, const std::string& detail) {
  const std::string reason = detail.empty() ? kind : kind + ": " + detail;
  DeviceCounts& counts = CountsOfThread();
  std::lock_guard<std::mutex> lock(counts.mutex);
  std::map<std::string, int64_t>& fallbacks = counts.counters.fallbacks;
  const auto known = fallbacks.find(reason);
  if (known != fallbacks.end()) {
    ++known->second;
  } else if (counts.rows_of_kind[kind] >= kMostReasonsOfAKind) {
    ++fallbacks[kind + ": other cases"];
  } else {
    ++counts.rows_of_kind[kind];
    fallbacks.emplace(reason, 1);
  }
}

std::map<std::string, Counters> ReadCountersByDevice() {
  std::map<std::string, Counters> read;
  std::lock_guard<std::mutex> lock(Counts().mutex);
  for (auto& [device, counts] : Counts().devices) {
    std::lock_guard<std::mutex> of_device(counts.mutex);
    const Counters& now = counts.counters;
    const bool has_counts = now.stages_run != 0 || now.filters_transformed != 0 ||
                            now.stages_captured != 0 || now.stages_replayed != 0 ||
                            now.kept_computations != 0 || !now.fallbacks.empty();
    if (has_counts) read[device] = now;
  }
  return read;
}

}  // namespace tf_interop
