// Depthwise convolutions inside functions that XLA compiles for a CPU.
//
// XLA compiles them to loops that are many times slower than TensorFlow's kernels. While calls are
// on (kernel_call.h), functions that are compiled call those kernels instead.
#ifndef TF_INTEROP_XLA_CONVOLUTIONS_H_
#define TF_INTEROP_XLA_CONVOLUTIONS_H_

#include <cstdint>

namespace tf_interop {

// Depthwise convolutions that were compiled so far in this process.
struct CompiledConvolutions {
  int64_t as_calls = 0;  // of TensorFlow's kernels
  int64_t refused = 0;   // left to XLA, because TensorFlow's kernels do not take them
  int64_t left = 0;      // to XLA, because calls were off
};
CompiledConvolutions ReadCompiledConvolutions();

}  // namespace tf_interop

#endif  // TF_INTEROP_XLA_CONVOLUTIONS_H_
