#include "cc_kernels/core/memory_ladder.h"

#include <string>

#include "cc_kernels/core/counters.h"

namespace tf_interop {
namespace {

// `steps` on at most `lane_count` lanes, those beyond them behind the first ones.
std::vector<StageStep> Folded(std::vector<StageStep> steps, size_t lane_count) {
  for (StageStep& step : steps) step.lane %= static_cast<int>(lane_count);
  return steps;
}

std::vector<StageStep> WithoutPins(std::vector<StageStep> steps) {
  for (StageStep& step : steps) step.algorithm.clear();
  return steps;
}

}  // namespace

Status PrepareWithLessMemory(Backend* backend, const std::vector<StageStep>& steps,
                             size_t convolution_limit_bytes, const GetWorkspaces& get_workspaces,
                             PreparedStage* prepared) {
  // Whether a rung can be stood on. One that cannot be prepared is passed over.
  const auto take = [&](const std::vector<StageStep>& folded, size_t limit_bytes,
                        const char* what) {
    PreparedStage rung;
    if (!PrepareStage(backend, folded, limit_bytes, &rung).ok()) return false;
    if (!get_workspaces(rung.lane_workspace_bytes, /*is_last=*/false)) return false;
    CountFallback("no memory for the workspaces of a stage", what);
    *prepared = std::move(rung);
    return true;
  };

  if (!prepared->merged.empty() &&
      take(steps, convolution_limit_bytes, "its merged lanes ran unmerged")) {
    return Status::Ok();
  }
  size_t lanes = prepared->lane_workspace_bytes.size();
  const bool had_lanes = lanes > 1;
  while (lanes > 2) {
    lanes = (lanes + 1) / 2;
    if (take(Folded(steps, lanes), convolution_limit_bytes, "it ran on fewer lanes")) {
      return Status::Ok();
    }
  }
  if (had_lanes) {
    if (take(WithoutPins(Folded(steps, lanes)), 0,
             "it ran on fewer lanes, with algorithms that need less")) {
      return Status::Ok();
    }
    if (take(Folded(steps, 1), convolution_limit_bytes, "it ran in sequence")) {
      return Status::Ok();
    }
  }
  TF_INTEROP_RETURN_IF_ERROR(PrepareSequentialStage(backend, steps, prepared));
  if (!get_workspaces(prepared->lane_workspace_bytes, /*is_last=*/true)) {
    return ResourceExhausted("Expected memory for a workspace of " +
                             std::to_string(prepared->lane_workspace_bytes[0]) +
                             " bytes, the least that the convolutions of a stage need, got none. "
                             "Use smaller batches.");
  }
  CountFallback("no memory for the workspaces of a stage",
                "it ran in sequence, with algorithms that need least");
  return Status::Ok();
}

}  // namespace tf_interop
