// What a step of a ConvStage node comes to for inputs of given shapes.
#ifndef TF_INTEROP_TF_RESOLVE_STEP_H_
#define TF_INTEROP_TF_RESOLVE_STEP_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/tf/stage_program.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_interop {

// What `step` comes to. `operand_shapes` are those of the step's operands; `sizes` is the value of
// its sizes operand (empty for forward). Also gives the shape of the result. A gradient with an
// empty tensor among its three is zeros of that shape, whatever the sizes of the others.
absl::Status ResolveStep(const StepProgram& step,
                         const std::vector<tensorflow::TensorShape>& operand_shapes,
                         const std::vector<int64_t>& sizes, Convolution* convolution,
                         tensorflow::TensorShape* result_shape);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_RESOLVE_STEP_H_
