// What the kernels of ConvStage for CPU and GPU share: reading attributes and inputs, and
// allocating what a stage writes.
#ifndef TF_INTEROP_TF_CONV_STAGE_BASE_H_
#define TF_INTEROP_TF_CONV_STAGE_BASE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/prepare_gate.h"
#include "cc_kernels/core/stage_runner.h"
#include "cc_kernels/core/status.h"
#include "cc_kernels/core/transformed_filters.h"
#include "cc_kernels/tf/stage_program.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {

absl::Status ToAbslStatus(const Status& status);

// Bytes that one convolution may ask for as workspace: those of TF_CUDNN_WORKSPACE_LIMIT_IN_MB, as
// for TensorFlow's own convolutions. For those of a stage together see core/workspace_limit.h.
size_t WorkspaceLimitBytes();

// The kernel's device, such as "GPU:0".
std::string ShortDeviceName(const tensorflow::OpKernelConstruction* context);

// Reads and checks the attributes of a ConvStage node.
absl::Status GetStageProgram(tensorflow::OpKernelConstruction* context, StageProgram* program);

// Allocates from the device's allocator, which neither waits for memory nor logs where it has none.
absl::Status AllocateBytesOrGiveUp(tensorflow::OpKernelContext* context, size_t bytes,
                                   tensorflow::Tensor* tensor);

// One call of a stage: what it runs, on which memory. Tensors in it keep workspaces and transformed
// filters alive.
struct StageCall {
  std::vector<StageStep> steps;
  int64_t schedule_batch_size = 0;  // see ApplySchedule
  std::string why_unplanned;
  PrepareSwitches switches;  // TensorFlow's, as they were when the call began
  PreparedStage stage;
  // Whether there was none for the workspaces of the plan's choice.
  bool is_short_of_memory = false;
  std::vector<ConvolutionBuffers> buffers;
  std::vector<void*> lane_workspaces;
  std::vector<tensorflow::Tensor> workspace_tensors;
  std::vector<std::shared_ptr<TransformedFilter>> transformed_filters;
  std::vector<const void*> joined_filters;  // see RunStage
};

// Resolves shapes, prepares the stage and allocates its outputs and workspaces. Where these cannot
// be had, not even for the memory of `filters`, the stage is prepared again so that it needs less
// (core/memory_ladder.h). All of the stage is prepared under one setting of TensorFlow's switches
// for TF32 (tf.config.experimental.enable_tensor_float_32_execution) and determinism
// (enable_op_determinism), the one at the call's begin.
absl::Status MakeStageCall(tensorflow::OpKernelContext* context, const StageProgram& program,
                           Backend* backend, TransformedFilters* filters, StageCall* call);

// Enqueues the stage on `caller`; see core/launch_recovery.h for what happens where that fails.
Status RunStageCall(tensorflow::OpKernelContext* context, Backend* backend, Stream caller,
                    StageCall* call);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_CONV_STAGE_BASE_H_
