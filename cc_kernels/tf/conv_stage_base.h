// What the kernels of ConvStage for CPU and GPU share: reading attributes and inputs, and
// allocating what a stage writes.
#ifndef TF_INTEROP_TF_CONV_STAGE_BASE_H_
#define TF_INTEROP_TF_CONV_STAGE_BASE_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/stage_runner.h"
#include "cc_kernels/core/status.h"
#include "cc_kernels/tf/stage_program.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {

absl::Status ToAbslStatus(const Status& status);

// Bytes that all algorithms of a stage may ask for as workspace, unless
// TF_CUDNN_WORKSPACE_LIMIT_IN_MB says otherwise, as for TensorFlow's own convolutions.
size_t WorkspaceLimitBytes();

// Reads and checks the attributes of a ConvStage node.
absl::Status GetStageProgram(tensorflow::OpKernelConstruction* context, StageProgram* program);

// One call of a stage: what it runs, on which memory. Tensors in it keep the workspaces alive.
struct StageCall {
  PreparedStage stage;
  std::vector<ConvolutionBuffers> buffers;
  std::vector<void*> lane_workspaces;
  std::vector<tensorflow::Tensor> workspace_tensors;
};

// Resolves shapes, prepares the stage and allocates its outputs and workspaces. Where a workspace
// cannot be had, the stage is prepared again as a sequential one that needs the least.
absl::Status MakeStageCall(tensorflow::OpKernelContext* context, const StageProgram& program,
                           Backend* backend, StageCall* call);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_CONV_STAGE_BASE_H_
