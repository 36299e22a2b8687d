#include "cc_kernels/core/launch_recovery.h"

#include "cc_kernels/core/counters.h"

namespace tf_interop {
namespace {

Status RunSequence(Backend* backend, const std::vector<ConvolutionBuffers>& buffers, Stream caller,
                   Recovery recovery, const MakeSequence& make_sequence) {
  PreparedStage sequence;
  void* workspace = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(make_sequence(recovery, &sequence, &workspace));
  // Filters were transformed for other algorithms.
  std::vector<ConvolutionBuffers> own_buffers = buffers;
  for (ConvolutionBuffers& each : own_buffers) each.transformed_filter = nullptr;
  return RunStage(backend, sequence, own_buffers, {workspace}, caller);
}

}  // namespace

Status PrepareRecovery(Backend* backend, const std::vector<StageStep>& steps, Recovery recovery,
                       size_t workspace_limit_bytes, PreparedStage* sequence) {
  if (recovery == Recovery::kLeastWorkspace)
    return PrepareSequentialStage(backend, steps, sequence);
  std::vector<StageStep> unpinned = steps;
  for (StageStep& step : unpinned) {
    step.lane = 0;
    step.algorithm.clear();
  }
  return PrepareStage(backend, unpinned, workspace_limit_bytes, sequence);
}

Status RunStageOrRecover(Backend* backend, const PreparedStage& stage,
                         const std::vector<ConvolutionBuffers>& buffers,
                         const std::vector<void*>& lane_workspaces,
                         const std::vector<const void*>& joined_filters, Stream caller,
                         const MakeSequence& make_sequence) {
  bool is_joined = false;
  Status first =
      RunStage(backend, stage, buffers, lane_workspaces, joined_filters, caller, &is_joined);
  if (first.ok() || !is_joined) return first;
  Status last;
  for (const Recovery recovery : {Recovery::kBackendsChoice, Recovery::kLeastWorkspace}) {
    last = RunSequence(backend, buffers, caller, recovery, make_sequence);
    if (!last.ok()) continue;
    CountFallback("a stage that failed ran anew in sequence", first.message());
    return Status::Ok();
  }
  return Status(first.code(),
                first.message() + " The stage was run anew in sequence: " + last.message());
}

}  // namespace tf_interop
