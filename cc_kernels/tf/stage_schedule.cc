#include "cc_kernels/tf/stage_schedule.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/platform/errors.h"

namespace tf_interop {
namespace {

// `count` entries of `values` from `begin` on.
template <typename T>
std::vector<T> Slice(const std::vector<T>& values, size_t begin, size_t count) {
  return std::vector<T>(values.begin() + begin, values.begin() + begin + count);
}

size_t LaneCount(const StageSchedule& schedule) {
  const int last = *std::max_element(schedule.step_lanes.begin(), schedule.step_lanes.end());
  return static_cast<size_t>(int64_t{last} + 1);
}

absl::Status CheckBatchSizes(const std::vector<int>& batch_sizes) {
  for (size_t i = 0; i < batch_sizes.size(); ++i) {
    if (batch_sizes[i] > 0 && (i == 0 || batch_sizes[i - 1] < batch_sizes[i])) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("ConvStage: expected batch_sizes of at least 1, ascending, got [",
                     absl::StrJoin(batch_sizes, ", "), "]."));
  }
  return absl::OkStatus();
}

absl::Status ParseLaneOptions(const ScheduleAttributes& attributes,
                              std::vector<StageSchedule>* schedules) {
  size_t lane_count = 0;
  for (const StageSchedule& schedule : *schedules) lane_count += LaneCount(schedule);
  const std::vector<int>& priorities = attributes.lane_priorities;
  const std::vector<int>& sm_counts = attributes.lane_sm_counts;
  const std::vector<int>& merged = attributes.merged_lanes;
  for (const size_t got : {priorities.size(), sm_counts.size(), merged.size()}) {
    if (got == 0 || got == lane_count) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "ConvStage: expected lane_priorities, lane_sm_counts and merged_lanes to be empty or to "
        "have one entry for each of ",
        lane_count, " lanes, got ", priorities.size(), ", ", sm_counts.size(), " and ",
        merged.size(), "."));
  }
  if (priorities.empty() && sm_counts.empty() && merged.empty()) return absl::OkStatus();
  size_t next = 0;
  for (StageSchedule& schedule : *schedules) {
    schedule.lanes.assign(LaneCount(schedule), LaneOptions());
    for (LaneOptions& lane : schedule.lanes) {
      if (!priorities.empty()) lane.priority = priorities[next];
      if (!sm_counts.empty()) lane.sm_count = sm_counts[next];
      if (!merged.empty()) lane.merged = merged[next] != 0;
      ++next;
    }
  }
  return absl::OkStatus();
}

// 0 where every step computes nothing.
int64_t BatchSizeOf(const std::vector<StageStep>& steps) {
  std::vector<std::pair<int64_t, int>> counts;  // in the order of the steps
  for (const StageStep& step : steps) {
    const Convolution& convolution = step.convolution;
    if (convolution.result_elements() == 0 || convolution.reads_nothing()) continue;
    const auto known = std::find_if(counts.begin(), counts.end(), [&](const auto& entry) {
      return entry.first == convolution.batch;
    });
    if (known == counts.end()) {
      counts.emplace_back(convolution.batch, 1);
    } else {
      ++known->second;
    }
  }
  const auto most =
      std::max_element(counts.begin(), counts.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == counts.end() ? 0 : most->first;
}

}  // namespace

absl::Status ParseStageSchedules(const ScheduleAttributes& attributes, size_t step_count,
                                 StageSchedules* parsed) {
  TF_RETURN_IF_ERROR(CheckBatchSizes(attributes.batch_sizes));
  const size_t schedule_count = std::max<size_t>(attributes.batch_sizes.size(), 1);
  const size_t expected = schedule_count * step_count;
  if (attributes.step_lanes.size() != expected || attributes.algorithms.size() != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("ConvStage: expected step_lanes and algorithms with one entry for each of ",
                     step_count, " steps in each of ", schedule_count, " schedules, got ",
                     attributes.step_lanes.size(), " and ", attributes.algorithms.size(), "."));
  }
  for (const int lane : attributes.step_lanes) {
    if (lane >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("ConvStage: expected step_lanes of at least 0, got ", lane, "."));
  }
  parsed->batch_sizes.assign(attributes.batch_sizes.begin(), attributes.batch_sizes.end());
  parsed->schedules.clear();
  for (size_t begin = 0; begin < expected; begin += step_count) {
    StageSchedule schedule;
    schedule.step_lanes = Slice(attributes.step_lanes, begin, step_count);
    schedule.algorithms = Slice(attributes.algorithms, begin, step_count);
    parsed->schedules.push_back(std::move(schedule));
  }
  return ParseLaneOptions(attributes, &parsed->schedules);
}

int64_t ApplySchedule(const StageSchedules& schedules, std::vector<StageStep>* steps,
                      std::vector<LaneOptions>* lanes, std::string* why_unplanned) {
  lanes->clear();
  why_unplanned->clear();
  const std::vector<int64_t>& sizes = schedules.batch_sizes;
  size_t index = 0;
  if (!sizes.empty()) {
    const int64_t batch_size = BatchSizeOf(*steps);
    index = std::find(sizes.begin(), sizes.end(), batch_size) - sizes.begin();
    if (index == sizes.size()) {
      for (StageStep& step : *steps) {
        step.lane = 0;
        step.algorithm.clear();
      }
      // Where nothing is computed, nothing is missing.
      if (batch_size == 0) return 0;
      *why_unplanned = absl::StrCat("batch size ", batch_size, " is not in the plan (",
                                    absl::StrJoin(sizes, ", "), ")");
      return 0;
    }
  }
  const StageSchedule& schedule = schedules.schedules[index];
  for (size_t i = 0; i < steps->size(); ++i) {
    (*steps)[i].lane = schedule.step_lanes[i];
    (*steps)[i].algorithm = schedule.algorithms[i];
  }
  *lanes = schedule.lanes;
  return sizes.empty() ? 0 : sizes[index];
}

}  // namespace tf_interop
