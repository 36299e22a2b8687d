#include "cc_kernels/core/counters.h"

#include <mutex>
#include <utility>

namespace tf_interop {
namespace {

// One table of reasons. Kinds are few: they are written in the source.
class CountsByReason {
 public:
  void Count(const std::string& kind, const std::string& reason) {
    const auto known = counts_.find(reason);
    if (known != counts_.end()) {
      ++known->second;
    } else if (counts_.size() >= kMostReasons) {
      ++counts_["other reasons"];
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

struct DeviceCounts {
  int64_t stages_run = 0;
  int64_t filters_transformed = 0;
  CountsByReason fallbacks;
  CountsByReason refused_lane_options;
};

std::string& DeviceOfThisThread() {
  thread_local std::string device;
  return device;
}

// Counting costs a lock that is held for the look-up of a short name; a stage launches several
// convolutions for each.
class AllCounts {
 public:
  template <typename Change>
  void Add(const Change& change) {
    std::lock_guard<std::mutex> lock(mutex_);
    change(&devices_[DeviceOfThisThread()]);
  }

  std::map<std::string, Counters> Read() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::map<std::string, Counters> read;
    for (const auto& [device, counts] : devices_) {
      read[device] = {counts.stages_run, counts.filters_transformed, counts.fallbacks.counts(),
                      counts.refused_lane_options.counts()};
    }
    return read;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, DeviceCounts> devices_;
};

// Never destroyed: kernels may still run while the process ends.
AllCounts& Counts() {
  static auto* const counts = new AllCounts();
  return *counts;
}

}  // namespace

CountingFor::CountingFor(std::string device) : outer_(std::move(device)) {
  DeviceOfThisThread().swap(outer_);
}

CountingFor::~CountingFor() { DeviceOfThisThread().swap(outer_); }

void CountStageRun() {
  Counts().Add([](DeviceCounts* counts) { ++counts->stages_run; });
}

void CountFilterTransformation() {
  Counts().Add([](DeviceCounts* counts) { ++counts->filters_transformed; });
}

void CountFallback(const std::string& kind, const std::string& detail) {
  const std::string reason = detail.empty() ? kind : kind + ": " + detail;
  Counts().Add([&](DeviceCounts* counts) { counts->fallbacks.Count(kind, reason); });
}

void CountRefusedLaneOptions(const std::string& reason) {
  Counts().Add(
      [&](DeviceCounts* counts) { counts->refused_lane_options.Count("lane options", reason); });
}

std::map<std::string, Counters> ReadCountersByDevice() { return Counts().Read(); }

Counters ReadCounters() {
  Counters all;
  for (const auto& [device, counts] : ReadCountersByDevice()) {
    all.stages_run += counts.stages_run;
    all.filters_transformed += counts.filters_transformed;
    for (const auto& [reason, count] : counts.fallbacks) all.fallbacks[reason] += count;
    for (const auto& [reason, count] : counts.refused_lane_options) {
      all.refused_lane_options[reason] += count;
    }
  }
  return all;
}

}  // namespace tf_interop
