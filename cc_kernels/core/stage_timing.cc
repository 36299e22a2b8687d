#include "cc_kernels/core/stage_timing.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

namespace tf_interop {
namespace {

// After a trial, one of this many calls is timed, to see whether times change.
constexpr int64_t kTimedEvery = 16;
// A host that is further ahead of its device times no more calls.
constexpr size_t kMostPending = 64;

struct AllTimings {
  std::mutex mutex;
  std::vector<std::weak_ptr<StageTiming>> timings;  // guarded by mutex
};

AllTimings& Timings() {
  static auto* const timings = new AllTimings();
  return *timings;
}

}  // namespace

StageTiming::StageTiming(std::string name, std::string sizes, bool has_sequence)
    : name_(std::move(name)), sizes_(std::move(sizes)), trials_(has_sequence ? 3 : 2) {}

StageTiming::Call StageTiming::Begin() {
  const std::lock_guard<std::mutex> lock(mutex_);
  RecordEnded();
  Call call;
  call.way = static_cast<Way>(trials_.way());
  call.turn = trials_.turn();
  call.is_trial = trials_.is_trying();
  const bool is_wanted = call.is_trial || settled_calls_++ % kTimedEvery == 0;
  call.is_timed = is_wanted && pending_.size() < kMostPending;
  return call;
}

void StageTiming::End(const Call& call, std::shared_ptr<const TimeMark> begin,
                      std::shared_ptr<const TimeMark> end) {
  if (begin == nullptr || end == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  pending_.push_back({call.turn, std::move(begin), std::move(end)});
}

void StageTiming::RecordEnded() {
  while (!pending_.empty()) {
    const Pending& oldest = pending_.front();
    const std::optional<int64_t> end_ns = oldest.end->ReadNs();
    if (!end_ns.has_value()) return;
    const std::optional<int64_t> begin_ns = oldest.begin->ReadNs();
    const bool was_trying = trials_.is_trying();
    if (begin_ns.has_value() && oldest.turn == trials_.turn()) {
      trials_.Record(static_cast<double>(*end_ns - *begin_ns) / 1e3);
    }
    if (was_trying && !trials_.is_trying()) settled_calls_ = 0;
    pending_.pop_front();
  }
}

TrialsReport StageTiming::Read() {
  const std::lock_guard<std::mutex> lock(mutex_);
  RecordEnded();
  return trials_.Report(name_, sizes_, {"as stock TensorFlow", "as planned", "in sequence"});
}

std::shared_ptr<StageTiming> MakeStageTiming(std::string name, std::string sizes,
                                             bool has_sequence) {
  auto timing = std::make_shared<StageTiming>(std::move(name), std::move(sizes), has_sequence);
  AllTimings& all = Timings();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.timings.erase(std::remove_if(all.timings.begin(), all.timings.end(),
                                   [](const auto& each) { return each.expired(); }),
                    all.timings.end());
  all.timings.push_back(timing);
  return timing;
}

std::vector<TrialsReport> ReadStageTimings() {
  std::vector<std::shared_ptr<StageTiming>> held;
  {
    // Only copied here, because reading asks the device for times.
    AllTimings& all = Timings();
    const std::lock_guard<std::mutex> lock(all.mutex);
    for (const std::weak_ptr<StageTiming>& each : all.timings) held.push_back(each.lock());
  }
  std::vector<TrialsReport> reports;
  for (const std::shared_ptr<StageTiming>& each : held) {
    if (each != nullptr) reports.push_back(each->Read());
  }
  return reports;
}

}  // namespace tf_interop
