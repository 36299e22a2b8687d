// Runs a stage: convolutions that do not depend on each other, each lane on a stream group of its
// own.
//
// The stream contract:
//   1. The caller allocates all results and workspaces before RunStage, from an allocator that is
//      ordered by the caller's stream (TensorFlow's is).
//   2. RunStage records one event on the caller's stream; the stream of every lane waits for it.
//   3. Steps are launched round-robin over the lanes, so that no lane waits for the host.
//   4. The caller's stream waits for every lane before RunStage returns, also when it fails
//      halfway.
// From 1 and 4 it follows that whatever the caller frees after RunStage may be handed out again to
// work that is enqueued on the caller's stream. RunStage never waits for the device.
//
// A stage of one lane runs on the caller's stream itself: there is nothing to run beside it, and
// the contract holds without events.
//
// What lanes ask for beyond a stream (LaneOptions) changes how fast they are and never what they
// compute. So RunStage does without, for all lanes of the stage, where the backend cannot give it,
// for whatever reason; that is counted, with the reason (see counters.h). A stage of one lane has
// no stream whose options would matter, and nothing to share the device with.
//
// The steps of a merged lane run as one wider convolution (merged_convolution.h). Where their
// shapes or algorithms do not fit together, where the wider convolution cannot be prepared, or
// where the images that a call brings are not one buffer, they run one after another instead; that
// is a fallback like others. Steps with nothing to compute have no part in it.
//
// A stream group takes memory of the device (a cuDNN handle) that the caller's allocator may hold.
// Where there are not as many as lanes, the stage runs in sequence on the caller's stream, for
// which one is enough; that is counted too.
//
// Ownership: the caller owns buffers and workspaces and keeps them until the caller's stream has
// passed the end of the stage. Thread-safety: all functions may be called from several threads at
// once, for one backend, with the same PreparedStage.
#ifndef TF_INTEROP_CORE_STAGE_RUNNER_H_
#define TF_INTEROP_CORE_STAGE_RUNNER_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/merged_convolution.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// The most lanes of a stage that run at once, each with a stream group and a workspace; further
// ones run behind them. CUDA has no more connections to the device (CUDA_DEVICE_MAX_CONNECTIONS).
constexpr int kMaxLanes = 32;

// Kinds of fallbacks, see counters.h.
inline constexpr char kRefusedAlgorithm[] = "another algorithm than the plan's";
inline constexpr char kUnmergedLane[] = "a lane ran unmerged";

// One convolution of a stage, as a plan asks for it.
struct StageStep {
  std::string name;  // the node's name, for messages
  Convolution convolution;
  std::string algorithm;  // pinned, or empty
  int lane = 0;
};

// What a plan asks for a lane beyond a stream; see StreamGroupOptions.
struct LaneOptions {
  int priority = 0;
  int sm_count = 0;  // SMs that no other lane uses, 0 for a share of those that are left
  // Whether the lane's steps, which read one image and differ in filter and output channels only,
  // run as one wider convolution.
  bool merged = false;
};

// A step that is ready to launch.
struct PreparedStep {
  std::string name;
  int lane = 0;
  int64_t result_elements = 0;
  size_t result_bytes = 0;
  bool result_is_zero = false;  // nothing to read: the result is filled with zeros
  std::shared_ptr<const PreparedConvolution> convolution;  // null where nothing is to be computed
};

// Steps of one lane that are ready to launch as one wider convolution.
struct MergedSteps {
  std::vector<size_t> steps;  // positions in the stage, ascending
  PreparedMerge merge;
  // What `PreparedStage::fallbacks` would say of these steps if they ran by themselves.
  std::vector<std::string> fallbacks_unmerged;
};

// A stage that is ready to launch, for one device and one set of shapes. Immutable.
struct PreparedStage {
  std::vector<PreparedStep> steps;  // in the order of the StageSteps, each ready by itself
  std::vector<MergedSteps> merged;  // those that run as one, unless their images are not one
  // For each lane, the most that one of its steps needs. Steps of a lane share it, in order.
  std::vector<size_t> lane_workspace_bytes;
  std::vector<StreamGroupOptions> lane_groups;  // what each lane asks of its stream group
  // Steps whose pinned algorithm could not be had, each with its reason.
  std::vector<std::string> fallbacks;
  // Lanes that could not be merged, likewise.
  std::vector<std::string> unmerged;
};

// Prepares every step. A pinned algorithm that the backend cannot run for this shape, or that
// needs more than `workspace_limit_bytes`, is replaced by the backend's own choice and noted in
// `fallbacks`, and where nothing is within the limit, by what needs least; a lane that cannot be
// merged within that limit is noted in `unmerged`. By themselves, the steps of a merged lane take
// no more workspace than merged, if they can do with that. Lane numbers must be 0, 1, 2, … without
// a gap; lane kMaxLanes comes behind lane 0, and so on. `lanes` has an entry for each lane number,
// or none where no lane asks for anything; a lane that comes behind another one runs with that
// one's options.
Status PrepareStage(Backend* backend, const std::vector<StageStep>& steps,
                    const std::vector<LaneOptions>& lanes, size_t workspace_limit_bytes,
                    PreparedStage* prepared);
inline Status PrepareStage(Backend* backend, const std::vector<StageStep>& steps,
                           size_t workspace_limit_bytes, PreparedStage* prepared) {
  return PrepareStage(backend, steps, {}, workspace_limit_bytes, prepared);
}

// The same steps, none of them merged, on one lane that needs as little workspace as the backend
// can do with: what is left to do where memory is short.
Status PrepareSequentialStage(Backend* backend, const std::vector<StageStep>& steps,
                              PreparedStage* prepared);

// Enqueues the stage behind the work that is on `caller` now, and joins it into `caller`.
// `buffers` has one entry for each step, `lane_workspaces` one for each lane, and `joined_filters`
// one for each of `stage.merged`: what EnqueueJoinedFilter made for it on the caller's stream, or
// null where this call is to join the filters. Empty stands for null for all. `is_joined`, where it
// is not null, says of a stage that failed whether `caller` waits for all that was enqueued.
Status RunStage(Backend* backend, const PreparedStage& stage,
                const std::vector<ConvolutionBuffers>& buffers,
                const std::vector<void*>& lane_workspaces,
                const std::vector<const void*>& joined_filters, Stream caller,
                bool* is_joined = nullptr);
inline Status RunStage(Backend* backend, const PreparedStage& stage,
                       const std::vector<ConvolutionBuffers>& buffers,
                       const std::vector<void*>& lane_workspaces, Stream caller,
                       bool* is_joined = nullptr) {
  return RunStage(backend, stage, buffers, lane_workspaces, {}, caller, is_joined);
}

// The buffers of steps that run as one, in order.
std::vector<ConvolutionBuffers> BuffersOf(const MergedSteps& merged,
                                          const std::vector<ConvolutionBuffers>& buffers);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_STAGE_RUNNER_H_
