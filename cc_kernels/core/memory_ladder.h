// What a stage does where there is no memory for the workspaces that its plan asks for.
//
// Each rung needs less than the one before, and the first whose workspaces can be had is taken:
//
//   1. where lanes are merged, all lanes unmerged: joined filters and outputs lie in workspaces;
//   2. half as many lanes, with the others behind them and the plan's algorithms, and half again as
//      long as there are two or more: lanes that run one behind another share a workspace;
//   3. these two lanes with the algorithms that need least;
//   4. in sequence, with the plan's algorithms: one workspace, as large as the largest;
//   5. in sequence, with the algorithms that need least. TensorFlow's own convolutions need no less
//      on their way through cuDNN.
//
// Lanes run without the stream priorities and SMs of the plan from rung 1 on: they are for as many
// lanes as were planned. Every rung that is taken is counted (counters.h).
#ifndef TF_INTEROP_CORE_MEMORY_LADDER_H_
#define TF_INTEROP_CORE_MEMORY_LADDER_H_

#include <cstddef>
#include <functional>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/stage_runner.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Gets workspaces of these sizes, one for each lane, or returns false and gets none. Has to go
// beyond any limit of its own where `is_last` is set: nothing that needs less comes after.
using GetWorkspaces = std::function<bool(const std::vector<size_t>& lane_bytes, bool is_last)>;

// Takes the first rung below `*prepared`, the stage of `steps` as planned, whose workspaces
// `get_workspaces` has. `convolution_limit_bytes` is as for PrepareStage. kResourceExhausted where
// not even the last one can be had.
Status PrepareWithLessMemory(Backend* backend, const std::vector<StageStep>& steps,
                             size_t convolution_limit_bytes, const GetWorkspaces& get_workspaces,
                             PreparedStage* prepared);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEMORY_LADDER_H_
