// Runs a network that is one unit on the thread that calls it.
#ifndef TF_INTEROP_TF_INLINE_EXECUTOR_H_
#define TF_INTEROP_TF_INLINE_EXECUTOR_H_

#include <functional>

#include "tensorflow/core/framework/op_kernel.h"

namespace tf_interop {

// The type of the executor, as `executor_type` of a function's call: TensorFlow's own, which wakes
// a thread of its pool for the first operation and the caller at the end. If nothing of the graph
// but one Unit takes time, the caller runs it. Registered when this library is loaded.
inline constexpr char kInlineExecutor[] = "TF_INTEROP";

using Runner = std::function<void(std::function<void()>)>;

// Runs closures on threads of the executor's pool, also where operations run on the caller's.
Runner PoolRunner(tensorflow::OpKernelContext* context);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_INLINE_EXECUTOR_H_
