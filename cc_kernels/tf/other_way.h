// Ways of this library to compute what kernels of TensorFlow's compute.
#ifndef TF_INTEROP_TF_OTHER_WAY_H_
#define TF_INTEROP_TF_OTHER_WAY_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {

// For inputs of the same shapes, and a number of cores. Thread-safe.
class OtherWay {
 public:
  OtherWay() = default;
  OtherWay(const OtherWay&) = delete;
  OtherWay& operator=(const OtherWay&) = delete;
  virtual ~OtherWay() = default;

  // Its name in profiles, in place of an op's.
  virtual absl::string_view name() const = 0;
  // Writes the results of the kernel for the inputs of `context`. They have its shapes.
  virtual absl::Status Run(tensorflow::OpKernelContext* context,
                           absl::Span<tensorflow::Tensor* const> results) const = 0;
};

// Makes one for the inputs of a call; null if only the kernel takes them.
using OtherWayMaker =
    std::function<std::unique_ptr<OtherWay>(const tensorflow::OpKernelContext& context, int cores)>;

// Each is in a file of its name. Null if there is no such way for any inputs of a kernel.
OtherWayMaker FindConvolutionWays(const tensorflow::OpKernel& kernel);
OtherWayMaker FindDepthwiseFilterGradient(const tensorflow::OpKernel& kernel);
OtherWayMaker FindSliceGradient(const tensorflow::OpKernel& kernel);
OtherWayMaker FindTrainingNormalization(const tensorflow::OpKernel& kernel);

inline const float* FloatsOf(const tensorflow::OpKernelContext& context, int input) {
  return static_cast<const float*>(context.input(input).data());
}
inline float* FloatsOf(tensorflow::Tensor* tensor) { return static_cast<float*>(tensor->data()); }

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_OTHER_WAY_H_
