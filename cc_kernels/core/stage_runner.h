// Runs a stage (stage.h): its lanes run together, each lane in order.
//
// The stream contract:
//   1. The caller allocates all results and workspaces before RunStage, from an allocator that is
//      ordered by the caller's stream, as TensorFlow's is. It keeps them until that stream has
//      passed the end of the stage.
//   2. One lane, the caller's lane, runs on the caller's stream. Each other lane runs on the stream
//      of a stream group. If lanes have priorities, all of them get stream groups, because nobody
//      can choose the priority of the caller's stream.
//   3. RunStage records one event on the caller's stream before it launches anything there, and
//      every other stream waits for that event. So no lane waits for the caller's lane.
//   4. Launches go round-robin over the lanes, so that no lane waits for the host.
//   5. The caller's stream waits for every other lane before RunStage returns, even after an error
//      or an exception. If it cannot wait for a lane, the host does, which is counted.
// So memory that the caller frees after RunStage goes only to work that runs after the stage.
//
// The caller's lane is the one with the most multiplications: its stream waits for the others
// anyway, and the lane that ends last should not have to wait for an event first.
//
// A call that runs as prepared takes only its device's lock, for a look-up; it allocates no memory
// and formats no text. Later calls may replay it as a CUDA graph (stage_replays.h).
//
// These fallbacks are counted, with their reasons (counters.h). Without enough stream groups the
// stage runs in sequence on the caller's stream. The steps of a merged lane (merged_convolution.h)
// run one after another if they cannot be merged or if the wider convolution cannot be prepared.
//
// All functions are thread-safe.
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

// The most lanes that run together, each with a stream and a workspace. CUDA has no more
// connections to the device (CUDA_DEVICE_MAX_CONNECTIONS).
constexpr int kMaxLanes = 32;

// Kinds of fallbacks (counters.h).
inline constexpr char kRefusedAlgorithm[] = "an algorithm other than the plan's";
inline constexpr char kUnmergedLane[] = "a lane ran unmerged";

// A step that is ready to launch.
struct PreparedStep {
  std::string name;
  int lane = 0;
  // Null if there is nothing to compute, and for merged steps.
  std::shared_ptr<const PreparedConvolution> convolution;
  size_t zero_bytes = 0;  // nothing to read: this much of the result becomes zero
};

// Steps of one lane that are ready to launch as one wider convolution. They read one image.
struct MergedSteps {
  std::vector<size_t> steps;  // their numbers, ascending
  PreparedMerge merge;
};

struct StageLaunch {
  static constexpr size_t kNotMerged = ~size_t{0};
  size_t step = 0;             // the first of merged steps
  size_t merged = kNotMerged;  // index into PreparedStage::merged
};

class StageReplays;

// A stage that is ready to launch, for one device and one set of shapes. Immutable, except for its
// CUDA graphs.
struct PreparedStage {
  std::vector<PreparedStep> steps;  // by number
  std::vector<MergedSteps> merged;
  // The most that any step of the lane needs. Its steps share the workspace, in order.
  std::vector<size_t> lane_workspace_bytes;
  // The priority of each lane; nothing for the caller's lane.
  std::vector<std::optional<int>> lane_priorities;
  std::vector<StageLaunch> launches;  // in the order of rule 4
  // Why pinned algorithms were replaced, and why lanes were not merged.
  std::vector<Status> fallbacks, unmerged;
  // CUDA graphs of its launches, destroyed before the steps; null if it never has any.
  std::shared_ptr<StageReplays> replays;

  // Whether a refusal may pass, so that preparing the stage again may improve it.
  bool is_provisional() const;
};

// Puts the steps on at most `lane_count` lanes without options: lane `lane_count` becomes part of
// lane 0, and so on.
Stage OnFewerLanes(const Stage& stage, size_t lane_count);
inline Stage InSequence(const Stage& stage) { return OnFewerLanes(stage, 1); }

// Prepares every step. The steps of a merged lane must read one image. The backend's own choice
// replaces a pinned algorithm that is refused, or that needs too much workspace; if nothing fits
// the limit, the algorithm that needs least is used. A stage of more than kMaxLanes lanes runs on
// that many, without options. Returns kInvalidArgument with the step's name if a convolution is
// invalid.
Status PrepareStage(Backend* backend, const Stage& stage, const PrepareOptions& options,
                    PreparedStage* prepared);

// A stage of one convolution.
PreparedStage PreparedAlone(const std::string& name,
                            std::shared_ptr<const PreparedConvolution> convolution);

// Puts the prepared steps of a stage without merged lanes on one lane.
PreparedStage PreparedInSequence(const PreparedStage& stage);

// The memory of one call.
struct StageBuffers {
  std::vector<ConvolutionBuffers> steps;  // by number
  std::vector<void*> lane_workspaces;
  // For each of PreparedStage::merged, the result of EnqueueJoinedFilter on the caller's stream, or
  // null if this call joins the filters itself. Empty means null for all.
  std::vector<const void*> joined_filters;

  bool operator==(const StageBuffers& other) const {
    return steps == other.steps && lane_workspaces == other.lane_workspaces &&
           joined_filters == other.joined_filters;
  }
};

// Enqueues the stage after the work that is on `caller` now, and joins it into `caller`. After a
// failure `*is_joined`, unless null, tells whether all enqueued work has run or `caller` waits for
// it.
Status RunStage(Backend* backend, const PreparedStage& stage, const StageBuffers& buffers,
                Stream caller, bool* is_joined = nullptr);

// Acquires the stream groups of all lanes together and releases them. Fails where RunStage would
// run in sequence.
Status CheckGroups(Backend* backend, const PreparedStage& stage);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_STAGE_RUNNER_H_
