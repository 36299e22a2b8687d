#include "cc_kernels/tf/merged_steps.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/errors.h"

namespace tf_interop {
namespace {

bool AreEqual(const int64_t (&a)[3], const int64_t (&b)[3]) {
  return std::equal(std::begin(a), std::end(a), std::begin(b));
}

bool AreEqual(const int64_t (&a)[3][2], const int64_t (&b)[3][2]) {
  return std::equal(&a[0][0], &a[0][0] + 6, &b[0][0]);
}

// Whether the two differ in nothing that attributes say, but for the filter.
bool CanMerge(const StepProgram& a, const StepProgram& b) {
  return a.kind == ConvolutionKind::kForward && b.kind == a.kind && !a.depthwise && !b.depthwise &&
         a.operands[a.image_operand()].index == b.operands[b.image_operand()].index &&
         a.dtype == b.dtype && a.format == b.format && a.spatial_rank == b.spatial_rank &&
         a.padding == b.padding && AreEqual(a.explicit_pads, b.explicit_pads) &&
         AreEqual(a.strides, b.strides) && AreEqual(a.dilations, b.dilations) &&
         a.has_bias == b.has_bias && a.activation == b.activation &&
         a.leaky_relu_alpha == b.leaky_relu_alpha;
}

absl::Status CheckMergedLane(const StageProgram& program, const StageSchedule& schedule,
                             size_t lane) {
  std::vector<size_t> members;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    if (schedule.step_lanes[i] == static_cast<int>(lane)) members.push_back(i);
  }
  if (members.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("ConvStage: expected two or more steps in merged lane ", lane, ", got ",
                     members.size(), "."));
  }
  const size_t first = members.front();
  for (const size_t i : members) {
    if (CanMerge(program.steps[first], program.steps[i]) &&
        schedule.algorithms[first] == schedule.algorithms[i]) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "ConvStage step '", program.steps[i].name,
        "': expected a merged lane of forward convolutions that read one image and differ in their "
        "filters only, got another than '",
        program.steps[first].name, "'."));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMergedLanes(const StageProgram& program) {
  for (const StageSchedule& schedule : program.schedules.schedules) {
    for (size_t lane = 0; lane < schedule.lanes.size(); ++lane) {
      if (!schedule.lanes[lane].merged) continue;
      TF_RETURN_IF_ERROR(CheckMergedLane(program, schedule, lane));
    }
  }
  return absl::OkStatus();
}

}  // namespace tf_interop
