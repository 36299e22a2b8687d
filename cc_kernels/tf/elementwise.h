// Elementwise steps as one pass over memory.
//
// Each of TensorFlow's kernels for such operations reads and writes whole tensors. Joined, they run
// block by block on values that are in the nearest cache:
//
//     before                                       after
//     a ── Mul ─┐                                  a ─┐
//     b ── Mul ─┴ AddV2 ── Relu                    b ─┴ TfInterop>Elementwise
//
// The results have the bits that TensorFlow's kernels give: each operation is one that IEEE 754
// rounds once, or a comparison. Only NaN may have other bits, and in bfloat16 zero another sign. A
// pass may cast, so a normalization in Keras' mixed precision, in float32 between two casts, is
// one.
#ifndef TF_INTEROP_TF_ELEMENTWISE_H_
#define TF_INTEROP_TF_ELEMENTWISE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_interop {

inline constexpr char kElementwiseOp[] = "TfInterop>Elementwise";

enum class Elementwise {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMaximum,
  kMinimum,
  kCast,
  kSquare,
  kRelu,
  kRelu6,
};

// The operation of a TensorFlow op; kAdd may have any number of operands. Empty for others.
std::optional<Elementwise> FindElementwise(absl::string_view op);

// Joins steps in float32 and bfloat16 that nothing but another one of them reads with those that
// read them, as nodes of kElementwiseOp. Operands and `results` then name the steps that are left.
// Whatever is not well-formed stays as it is.
void JoinElementwise(std::vector<tensorflow::NodeDef>* steps, std::vector<std::string>* results);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_ELEMENTWISE_H_
