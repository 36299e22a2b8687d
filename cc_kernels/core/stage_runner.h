// Runs a stage (stage.h): lanes of steps at the same time, each lane in order.
//
// The stream contract:
//   1. The caller allocates all results and workspaces before RunStage, from an allocator that is
//      ordered by the caller's stream (TensorFlow's is).
//   2. One lane, the caller's lane, runs on the caller's stream itself; every other one has a
//      stream group, whose stream it runs on. A stage whose lanes ask for options has no caller's
//      lane, as nobody can choose the priority or the SMs of the caller's stream: all its lanes
//      have streams.
//   3. RunStage records one event on the caller's stream before anything of the stage is launched
//      there; every other stream waits for it. So no lane waits for the caller's lane.
//   4. Steps are launched round-robin over the lanes, so that no lane waits for the host.
//   5. The caller's stream waits for every other lane before RunStage returns, also when it fails
//      halfway or something is thrown. A lane that it cannot be made to wait for is waited for on
//      the host, which is counted.
// So whatever the caller frees after RunStage may be handed out again to work that is enqueued on
// the caller's stream. But for lanes that cannot be joined, RunStage never waits for the device.
//
// The caller's lane is the one with the most multiplications: its stream waits for the others
// anyway, and the lane that ends last must not wait for an event first.
//
// A call that runs as it was prepared takes no lock but its device's, for a look-up, allocates no
// memory and formats no text here. Where that is turned on, what one call enqueued is replayed by
// later ones as a CUDA graph (stage_replays.h).
//
// Options of lanes change how fast they are and never what they compute. So RunStage does without,
// for all lanes of the stage, where the backend cannot give them; that is counted, with the reason
// (counters.h). If there are not as many stream groups as lanes, the stage runs in sequence on
// the caller's stream; that is counted too.
//
// The steps of a merged lane run as one wider convolution (merged_convolution.h). Where their
// shapes or algorithms do not fit together, where the wider convolution cannot be prepared, or
// where the images that a call brings are not one buffer, they run one after another instead,
// which is a fallback like others.
//
// The caller owns buffers and workspaces and keeps them until the caller's stream has passed the
// end of the stage. All functions are thread-safe.
#ifndef TF_INTEROP_CORE_STAGE_RUNNER_H_
#define TF_INTEROP_CORE_STAGE_RUNNER_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/merged_convolution.h"
#include "cc_kernels/core/stage.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// The most lanes of a stage that run at once, each with a stream and a workspace; further ones run
// after them. CUDA has no more connections to the device (CUDA_DEVICE_MAX_CONNECTIONS).
constexpr int kMaxLanes = 32;

// Kinds of fallbacks, see counters.h.
inline constexpr char kRefusedAlgorithm[] = "another algorithm than the plan's";
inline constexpr char kUnmergedLane[] = "a lane ran unmerged";

// A step that is ready to launch. One without anything to compute has neither.
struct PreparedStep {
  std::string name;
  int lane = 0;
  std::shared_ptr<const PreparedConvolution> convolution;
  size_t zero_bytes = 0;  // nothing to read: so much of the result is filled with zeros
};

// Steps of one lane that are ready to launch as one wider convolution.
struct MergedSteps {
  std::vector<size_t> steps;  // their numbers, ascending
  PreparedMerge merge;
  // What `PreparedStage::fallbacks` would say of these steps if they ran by themselves.
  std::vector<std::string> fallbacks_unmerged;
};

// What is launched in one go.
struct StageLaunch {
  static constexpr size_t kNotMerged = ~size_t{0};
  size_t step = 0;  // the first of those that are merged
  size_t lane = 0;
  size_t merged = kNotMerged;  // position among PreparedStage::merged
};

class StageReplays;

// A stage that is ready to launch, for one device and one set of shapes. Immutable, but for what
// was captured of it.
struct PreparedStage {
  std::vector<PreparedStep> steps;  // by their numbers, each ready by itself
  std::vector<MergedSteps> merged;  // those that run as one, unless their images are not one
  // For each lane, the most that one of its steps needs. Steps of a lane share it, in order.
  std::vector<size_t> lane_workspace_bytes;
  // What each lane asks of its stream group; nothing for the caller's lane.
  std::vector<std::optional<StreamGroupOptions>> lane_groups;
  std::vector<StageLaunch> launches;  // in the order of rule 4
  // Steps whose pinned algorithm could not be had, each with its reason.
  std::vector<std::string> fallbacks;
  // Whether something was refused only for now: prepared again, the stage may be better.
  bool is_provisional = false;
  // Lanes that could not be merged, likewise.
  std::vector<std::string> unmerged;
  // Graphs of its launches; null if it always runs plainly. Goes before what it launches.
  std::shared_ptr<StageReplays> replays;
};

// Prepares every step of a stage. A pinned algorithm that cannot be had within the limit for
// workspaces is replaced by the backend's own choice and noted in `fallbacks`, and where nothing is
// within the limit, by what needs least; a lane that cannot be merged within it is noted in
// `unmerged`. Lane kMaxLanes runs with lane 0, in the order of the steps' numbers, and so on.
Status PrepareStage(Backend* backend, const Stage& stage, const PrepareOptions& options,
                    PreparedStage* prepared);

// A stage of one convolution.
PreparedStage PreparedAlone(const std::string& name,
                            std::shared_ptr<const PreparedConvolution> convolution);

// The same prepared steps on one lane, each by itself.
PreparedStage PreparedInSequence(const PreparedStage& stage);

// What one call works on.
struct StageBuffers {
  std::vector<ConvolutionBuffers> steps;  // by number
  std::vector<void*> lane_workspaces;     // one for each lane
  // One for each of PreparedStage::merged: what EnqueueJoinedFilter made for it on the caller's
  // stream, or null if this call is to join the filters. Empty stands for null for all.
  std::vector<const void*> joined_filters;

  bool operator==(const StageBuffers& other) const {
    return steps == other.steps && lane_workspaces == other.lane_workspaces &&
           joined_filters == other.joined_filters;
  }
};

// Enqueues the stage after the work that is on `caller` now, and joins it into `caller`.
// `is_joined`, where it is not null, says of a stage that failed whether all that was enqueued has
// run or is waited for by `caller`.
Status RunStage(Backend* backend, const PreparedStage& stage, const StageBuffers& buffers,
                Stream caller, bool* is_joined = nullptr);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_STAGE_RUNNER_H_
