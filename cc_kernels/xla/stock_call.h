// TensorFlow's own CPU kernels inside functions that XLA compiles: a custom call of XLA's for one
// node of TensorFlow's.
#ifndef TF_INTEROP_XLA_STOCK_CALL_H_
#define TF_INTEROP_XLA_STOCK_CALL_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_interop {

// Whether TensorFlow makes a kernel for `node` on a CPU.
bool HasStockKernel(const tensorflow::NodeDef& node);

// Emits a call of the kernel that TensorFlow runs for `node` on a CPU, with these inputs. The
// kernel reads XLA's memory and writes its result there. `like` has the shape of the result.
//
// An error of the kernel, or a result of another shape, fails the compiled function's run.
absl::StatusOr<xla::XlaOp> CallStockKernel(const tensorflow::NodeDef& node,
                                           absl::Span<const xla::XlaOp> inputs, xla::XlaOp like);

// The calls that ran so far in this process.
int64_t StockCallCount();

}  // namespace tf_interop

#endif  // TF_INTEROP_XLA_STOCK_CALL_H_
