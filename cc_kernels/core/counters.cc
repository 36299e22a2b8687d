#include "cc_kernels/core/counters.h"

#include <atomic>
#include <mutex>
#include <utility>

namespace tf_interop {
namespace {

class CountsByReason {
 public:
  void Count(const std::string& kind, const std::string& reason) {
    const auto known = counts_.find(reason);
    if (known != counts_.end()) {
      ++known->second;
    } else if (rows_of_kind_[kind] >= kMostReasonsOfAKind) {
      ++counts_[kind + ": other cases"];
    } else {
      ++rows_of_kind_[kind];
      counts_.emplace(reason, 1);
    }
  }

  const std::map<std::string, int64_t>& counts() const { return counts_; }

 private:
  std::map<std::string, int64_t> counts_;
  std::map<std::string, int> rows_of_kind_;
};

}  // namespace

struct DeviceCounts {
  std::atomic<int64_t> stages_run{0};
  std::atomic<int64_t> filters_transformed{0};
  std::atomic<int64_t> stages_captured{0};
  std::atomic<int64_t> stages_replayed{0};
  std::atomic<int64_t> kept_computations{0};
  std::atomic<int64_t> kept_bytes{0};
  std::mutex mutex;
  CountsByReason fallbacks;  // guarded by mutex
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

void CountStageRun() { ++CountsOfThread().stages_run; }
void CountFilterTransformation() { ++CountsOfThread().filters_transformed; }
void CountStageCapture() { ++CountsOfThread().stages_captured; }
void CountStageReplay() { ++CountsOfThread().stages_replayed; }
void CountKeptComputation() { ++CountsOfThread().kept_computations; }

void AddKeptBytes(DeviceCounts* device, int64_t bytes) {
  if (device != nullptr) device->kept_bytes += bytes;
}

void CountFallback(const std::string& kind, const std::string& detail) {
  DeviceCounts& counts = CountsOfThread();
  std::lock_guard<std::mutex> lock(counts.mutex);
  counts.fallbacks.Count(kind, detail.empty() ? kind : kind + ": " + detail);
}

std::map<std::string, Counters> ReadCountersByDevice() {
  std::map<std::string, Counters> read;
  std::lock_guard<std::mutex> lock(Counts().mutex);
  for (auto& [device, counts] : Counts().devices) {
    std::lock_guard<std::mutex> of_device(counts.mutex);
    const Counters now = {counts.stages_run,        counts.filters_transformed,
                          counts.stages_captured,   counts.stages_replayed,
                          counts.kept_computations, counts.kept_bytes,
                          counts.fallbacks.counts()};
    if (now.stages_run == 0 && now.filters_transformed == 0 && now.stages_captured == 0 &&
        now.stages_replayed == 0 && now.kept_computations == 0 && now.fallbacks.empty()) {
      continue;
    }
    read[device] = now;
  }
  return read;
}

}  // namespace tf_interop
