#include "cc_kernels/core/stage.h"

#include <algorithm>

namespace tf_interop {
namespace {

Status ValidateSteps(const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    const Status valid = Validate(step.convolution);
    if (valid.ok()) continue;
    return Status(valid.code(), "Convolution '" + step.name + "': " + valid.message());
  }
  return Status::Ok();
}

Status ValidateLanes(const Stage& stage) {
  std::vector<bool> is_on_lane(stage.steps.size(), false);
  size_t count = 0;
  for (size_t i = 0; i < stage.lanes.size(); ++i) {
    const Lane& lane = stage.lanes[i];
    const std::string of_lane = " in lane " + std::to_string(i) + ".";
    if (lane.steps.empty()) {
      return InvalidArgument("Expected one step or more, got none" + of_lane);
    }
    if (lane.sm_count < 0) {
      return InvalidArgument("Expected an SM count of at least 0, got " +
                             std::to_string(lane.sm_count) + of_lane);
    }
    if (!std::is_sorted(lane.steps.begin(), lane.steps.end())) {
      return InvalidArgument("Expected steps in ascending order, got others" + of_lane);
    }
    for (const size_t step : lane.steps) {
      if (step >= stage.steps.size() || is_on_lane[step]) {
        return InvalidArgument("Expected each of " + std::to_string(stage.steps.size()) +
                               " steps on one lane, got step " + std::to_string(step) + of_lane);
      }
      is_on_lane[step] = true;
      ++count;
    }
  }
  if (count == stage.steps.size()) return Status::Ok();
  return InvalidArgument("Expected each of " + std::to_string(stage.steps.size()) +
                         " steps on one lane, got " + std::to_string(count) + " of them.");
}

}  // namespace

Status Validate(const Stage& stage) {
  TF_INTEROP_RETURN_IF_ERROR(ValidateLanes(stage));
  return ValidateSteps(stage.steps);
}

Stage OnFewerLanes(const Stage& stage, size_t lane_count) {
  Stage fewer;
  fewer.steps = stage.steps;
  fewer.lanes.resize(std::min(lane_count, stage.lanes.size()));
  for (size_t i = 0; i < stage.lanes.size(); ++i) {
    std::vector<size_t>& steps = fewer.lanes[i % lane_count].steps;
    steps.insert(steps.end(), stage.lanes[i].steps.begin(), stage.lanes[i].steps.end());
  }
  for (Lane& lane : fewer.lanes) std::sort(lane.steps.begin(), lane.steps.end());
  return fewer;
}

}  // namespace tf_interop
