#include "cc_kernels/core/stage.h"

#include <algorithm>

namespace tf_interop {
Status Validate(const Stage& stage) {
  for (const Step& step : stage.steps) {
    const Status valid = Validate(step.convolution);
    if (valid.ok()) continue;
    return Status(valid.code(), "Convolution '" + step.name + "': " + valid.message());
  }
  return Status::Ok();
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
