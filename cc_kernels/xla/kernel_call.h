// TensorFlow's kernels inside functions that XLA compiles: a custom call of XLA's for one node of
// TensorFlow's.
//
// The kernel reads XLA's memory and writes its results there. On a CPU it computes on cores that
// stay awake during the call. On a GPU it enqueues its work on XLA's stream, and XLA may capture
// the call, with everything around it, in a command buffer (a CUDA graph). The temporary memory of
// such a call is a result of its own, because XLA keeps only results for a command buffer.
#ifndef TF_INTEROP_XLA_KERNEL_CALL_H_
#define TF_INTEROP_XLA_KERNEL_CALL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/tensor.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tensorflow {
class XlaOpKernelContext;
}

namespace tf_interop {

// An input of a called kernel.
struct CallInput {
  xla::XlaOp op;
  // In place of `op`: a value that is known when the function is compiled. The kernel gets it in
  // host memory.
  std::optional<tensorflow::Tensor> constant = std::nullopt;
};

// The inputs of a convolution or a stage. Those of int32 are sizes, which must be known.
absl::StatusOr<std::vector<CallInput>> ReadInputs(tensorflow::XlaOpKernelContext* context);

// Whether functions that are compiled from now on call kernels. Off at first.
void SetXlaCalls(bool are_now_on);
bool AreXlaCallsOn();

// Whether TensorFlow makes a kernel for `node` on this type of device (tensorflow::DEVICE_CPU or
// DEVICE_GPU).
bool HasKernel(const std::string& device_type, const tensorflow::NodeDef& node);

// Emits a call of the kernel that TensorFlow runs for `node`. `like` has a shape for each result.
// `scratch_bytes` is the temporary memory that the kernel needs on a GPU, each piece of it rounded
// up to ScratchMemory::kAlignment; where a call is not captured, it may take more.
//
// An error of the kernel, or a result of another shape, fails the compiled function's run.
absl::StatusOr<std::vector<xla::XlaOp>> CallKernel(const tensorflow::NodeDef& node,
                                                   absl::Span<const CallInput> inputs,
                                                   absl::Span<const xla::XlaOp> like,
                                                   size_t scratch_bytes = 0);

// What was compiled and what ran so far in this process.
struct XlaCallCounts {
  // Depthwise convolutions: calls of TensorFlow's kernels; those left to XLA because these kernels
  // do not take them; and those left because calls were off.
  std::atomic<int64_t> compiled = 0, refused = 0, left = 0;
  std::atomic<int64_t> run = 0;  // calls, also of stages
  // Stages: calls of the op's kernel; and those translated to XLA's own convolutions, which run one
  // after another.
  std::atomic<int64_t> compiled_stages = 0, translated_stages = 0;
};
inline XlaCallCounts xla_call_counts;

}  // namespace tf_interop

#endif  // TF_INTEROP_XLA_KERNEL_CALL_H_
