// How a stage falls back when it cannot run as planned.
//
// Each rung of the ladder needs less than the one before. The cause decides which are tried:
//
//   no memory for workspaces  the rungs for memory in order, until the workspaces fit.
//   no memory for results     the last rung at once: it frees results that nobody reads any more.
//   a failed launch           the lanes are joined; then each rung for launches runs the whole
//                             stage again, in order, until one can be launched.
//   no plan for the call      (an unknown batch size) the last rung at once: nothing suggests that
//                             any other is faster.
//   no algorithm at all       the last rung at once. A refused pin alone does not take a stage down
//                             the ladder: PrepareStage replaces it with the backend's own choice.
//
// The last rung, stock, runs TensorFlow's own kernel for each step, in sequence, on the caller's
// stream. The caller provides it.
//
// On every rung lanes run without the plan's priorities and SMs. Every descent is counted
// (counters.h), and the next call starts with its plan again. A limit that the user has set is not
// a failure: the rung within it is found once, kept, and counted for each call.
//
// A second run is correct however far the first one got: no step writes what it or an earlier step
// reads (stage.h), each writes its whole result, and each run is ordered after all of the one
// before. If a lane could not be joined, nothing runs again, because that lane may still write.
// After an error that CUDA never clears, every attempt fails; the error then names the step, the
// algorithm and the library's words for the first attempt and the last.
#ifndef TF_INTEROP_CORE_LADDER_H_
#define TF_INTEROP_CORE_LADDER_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/stage.h"
#include "cc_kernels/core/stage_runner.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// The rungs from the top. Joined filters and outputs of merged lanes are in workspaces, and lanes
// that run one after another share one.
enum class Rung {
  kUnmerged,                  // for memory
  kFewerLanes,                // for memory: half as many lanes, and half again down to two
  kFewerLanesLeastWorkspace,  // for memory
  kSequence,                  // for memory
  kSequenceOwnChoice,         // for a failed launch
  kSequenceLeastWorkspace,    // for both
  kStock,                     // for both
};

// How the stage ran, for counters.
inline constexpr const char* kRungNames[] = {
    "its merged lanes ran unmerged",
    "it ran on fewer lanes",
    "it ran on fewer lanes, with algorithms that need less",
    "it ran in sequence",
    "it ran in sequence, with the backend's own choices",
    "it ran in sequence, with algorithms that need least",
    "it ran without its plan, step by step with stock kernels",
};

// The caller's part.
struct LadderCalls {
  // Gets each lane a workspace of its size, or returns false and gets none. Workspaces from earlier
  // calls must stay: lanes may still use them.
  std::function<bool(const std::vector<size_t>& lane_bytes, std::vector<void*>* lane_workspaces)>
      get_workspaces;
  // Runs every step with its stock kernel, in order, on the caller's stream, with memory of its
  // own.
  std::function<Status()> run_stock;
};

struct LesserStage {
  Rung rung = Rung::kStock;
  PreparedStage stage;                 // empty at kStock
  std::vector<void*> lane_workspaces;  // of `stage`
};

// Finds the first rung for memory below `planned`, the prepared `stage`, whose workspaces fit.
// Skips rungs that cannot be prepared. Counts nothing.
LesserStage FindForMemory(Backend* backend, const Stage& stage, const PrepareOptions& options,
                          const PreparedStage& planned, const LadderCalls& calls);

// Counts that a stage runs on `rung`, for memory.
void CountForMemory(Rung rung);

// RunStage, then the rungs for launches if it fails. `prepared` was made from `stage`.
Status RunOrDescend(Backend* backend, const Stage& stage, const PrepareOptions& options,
                    const PreparedStage& prepared, const StageBuffers& buffers, Stream caller,
                    const LadderCalls& calls);

// Kinds of fallbacks: why a stage goes to the last rung at once.
inline constexpr char kNoPlan[] = "no schedule, so a stage ran without its plan";
inline constexpr char kNoAlgorithm[] = "no algorithm, so a stage ran without its plan";
inline constexpr char kNoMemoryForResults[] =
    "no memory for all results of a stage at once, so it ran without its plan";

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_LADDER_H_
