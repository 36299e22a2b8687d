// What can be said of merged lanes before shapes are known.
#ifndef TF_INTEROP_TF_MERGED_STEPS_H_
#define TF_INTEROP_TF_MERGED_STEPS_H_

#include "absl/status/status.h"
#include "cc_kernels/tf/stage_program.h"

namespace tf_interop {

// Checks that each merged lane of each schedule holds two or more forward convolutions that read
// one image, differ in their filters only and are pinned to one algorithm. Returns kInvalidArgument
// that names the step, what was expected and what came.
absl::Status CheckMergedLanes(const StageProgram& program);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_MERGED_STEPS_H_
