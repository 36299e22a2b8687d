// What a stage does where it cannot run as its plan says: one ordered list of lesser stages.
//
// A rung asks for less than the one before it. Which rungs are tried depends on the cause:
//
//   no memory for workspaces  each rung for memory in order, until its workspaces can be had.
//   a launch that fails       the lanes are joined, and then each rung for launches runs the whole
//                             stage again, in order, until one can be launched.
//   no plan for the call      (a batch size that none was made for) the last rung at once: nothing
//                             says that anything else than stock wins.
//   no algorithm at all       (Prepare refuses whatever is tried) likewise. A pinned algorithm that
//                             is refused takes no stage down the ladder: PrepareStage has the
//                             backend's own choice for that step.
//
// The last rung, stock, is TensorFlow's own kernel for each step, in sequence, on the caller's
// stream. Who calls a stage gives it; if there is none, the rung before is the last.
//
// Lanes run without the plan's priorities and SMs on every rung. Every rung that is taken is
// counted (counters.h), and the next call goes by its plan again. A limit that the user has set is
// no failure: a stage over it is found once, kept, and counted for each call.
//
// Running again gives the right numbers whatever an attempt got done: no step writes what it or an
// earlier step reads (stage.h), each writes the whole of its result, and an attempt is ordered
// after all of the one before. Nothing is run again where a lane could not be joined: it might
// still write what the next attempt writes. Once CUDA has met an error that stays, every attempt
// fails; the error then names step, algorithm and what the library said, of the first attempt and
// the last.
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

enum class Rung {
  kUnmerged,
  kFewerLanes,
  kFewerLanesLeastWorkspace,
  kSequence,
  kSequenceOwnChoice,
  kSequenceLeastWorkspace,
  kStock,
};

struct RungDescription {
  const char* name;  // what the stage did, for counters
  Rung rung;
  bool for_memory;
  bool for_failed_launch;
};

// The ladder, from the top. Joined filters and outputs of merged lanes lie in workspaces; lanes
// that run one after another share one.
inline constexpr RungDescription kLadder[] = {
    // All lanes, none of them merged.
    {"its merged lanes ran unmerged", Rung::kUnmerged, true, false},
    // Half as many lanes, with the plan's algorithms; half again as long as there are two or more.
    {"it ran on fewer lanes", Rung::kFewerLanes, true, false},
    {"it ran on fewer lanes, with algorithms that need less", Rung::kFewerLanesLeastWorkspace, true,
     false},
    // One workspace, as large as the largest.
    {"it ran in sequence", Rung::kSequence, true, false},
    {"it ran in sequence, with the backend's own choices", Rung::kSequenceOwnChoice, false, true},
    {"it ran in sequence, with algorithms that need least", Rung::kSequenceLeastWorkspace, true,
     true},
    {"it ran as without a plan, step by step with stock kernels", Rung::kStock, true, true},
};

// What the ladder asks of whoever calls a stage.
struct LadderCalls {
  // Gets workspaces of these sizes, one for each lane, or returns false and gets none. What it got
  // before has to stay: lanes may still use it. Has to go beyond any limit of its own where
  // `is_last` is set: nothing that needs less comes after.
  std::function<bool(const std::vector<size_t>& lane_bytes, bool is_last,
                     std::vector<void*>* lane_workspaces)>
      get_workspaces;
  // Runs every step as without a plan, in order, on the caller's stream; gets the memory that it
  // needs by itself. Empty if there is nothing of the kind.
  std::function<Status()> run_stock;
};

// A rung that can be stood on.
struct LesserStage {
  Rung rung = Rung::kStock;
  PreparedStage stage;                 // nothing at kStock: call RunStock
  std::vector<void*> lane_workspaces;  // of `stage`
};

// Finds the first rung for memory below `planned`, the prepared `stage`, whose workspaces can be
// had. One that cannot be prepared is passed over. kResourceExhausted if there is no stock and
// not even the least can be had. Counts nothing.
Status FindForMemory(Backend* backend, const Stage& stage, const PrepareOptions& options,
                     const PreparedStage& planned, const LadderCalls& calls, LesserStage* lesser);

// Counts that a stage runs by `rung`, for memory.
void CountForMemory(Rung rung);

// Both: finds a rung and takes it.
Status DescendForMemory(Backend* backend, const Stage& stage, const PrepareOptions& options,
                        const PreparedStage& planned, const LadderCalls& calls,
                        LesserStage* lesser);

// RunStage, and where that fails the rungs for launches. `stage` is what `prepared` was made of.
Status RunOrDescend(Backend* backend, const Stage& stage, const PrepareOptions& options,
                    const PreparedStage& prepared, const StageBuffers& buffers, Stream caller,
                    const LadderCalls& calls);

// Why a stage goes to the last rung at once; kinds of fallbacks.
inline constexpr char kNoPlan[] = "no schedule, so that a stage ran as without a plan";
inline constexpr char kNoAlgorithm[] = "no algorithm, so that a stage ran as without a plan";

// Runs the last rung, and counts that for `kind` with its reason. kUnsupported, with the reason,
// if there is none.
Status RunStock(const LadderCalls& calls, const std::string& kind, const std::string& reason);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_LADDER_H_
