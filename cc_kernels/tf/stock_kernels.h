// TensorFlow's own kernels for the steps of a ConvStage node, run inside a call of the node: with
// them a stage computes what the graph would compute without it, to the bit, at the same speed.
//
// A kernel is the one that TensorFlow would run for the step's NodeDef on the node's device. On a
// CPU where oneDNN is on that is oneDNN's: a graph optimization that comes after all others renames
// the nodes for it (MklLayoutRewritePass), which nobody does for steps.
#ifndef TF_INTEROP_TF_STOCK_KERNELS_H_
#define TF_INTEROP_TF_STOCK_KERNELS_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "cc_kernels/tf/stage_program.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {

// Those of one ConvStage kernel, each made when it is first run and kept. Thread-safe.
class StockKernels {
 public:
  // `program` has to outlive this.
  StockKernels(const StageProgram* program, bool is_on_cpu);

  // Runs the kernel of `operation` on the device and the stream of `context`, which is of the
  // ConvStage kernel. Whoever holds an operand finds it unchanged.
  absl::Status Run(tensorflow::OpKernelContext* context, size_t operation,
                   std::vector<tensorflow::Tensor> operands,
                   tensorflow::AllocatorAttributes result_attributes, tensorflow::Tensor* result);

 private:
  absl::Status Find(tensorflow::OpKernelContext* context, size_t operation,
                    tensorflow::OpKernel** kernel);

  const StageProgram* const program_;
  const bool is_on_cpu_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<tensorflow::OpKernel>> kernels_;  // by operation; guarded by mutex_
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_STOCK_KERNELS_H_
