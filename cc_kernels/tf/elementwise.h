// Elementwise operations of one shape as one pass over memory (elementwise.cc).
#ifndef TF_INTEROP_TF_ELEMENTWISE_H_
#define TF_INTEROP_TF_ELEMENTWISE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/device_base.h"

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

// Operands are numbered: inputs, then the results of operations.
struct Operation {
  Elementwise kind = Elementwise::kAdd;
  std::string op;
  std::string name;
  std::vector<int> operands;
  int result = 0;
  bool is_narrow = false;  // whether the result is bfloat16, else it is float32
};

// A tensor that a pass reads. An image is what an index of the result's first dimensions names.
struct Source {
  int operand = 0;
  const void* data = nullptr;
  bool is_narrow = false;
  int64_t image_size = 0;  // of the tensor; 0 if all images read the same
  int64_t period = 0;      // elements of an image that repeat; those of the image if none do
};

struct Pass {
  std::vector<const Operation*> operations;  // in order; the last has the result
  std::vector<Source> sources;               // of all other operands
  int operand_count = 0;
  int64_t images = 1;
  int64_t elements = 0;  // of an image
};

// Computes on the cores of a device. All is computed in float32, and rounded after each operation
// in bfloat16, as TensorFlow's kernels do. `out` may be the memory of a source with the shape and
// type of the result.
void RunPass(const Pass& pass, const tensorflow::DeviceBase& device, void* out);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_ELEMENTWISE_H_
