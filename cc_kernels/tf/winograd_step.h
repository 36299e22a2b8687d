// A convolution whose filter changes from call to call, or the gradient of its input or filter.
//
// In its first calls TensorFlow's kernel and Winograd's way take turns, and the faster one stays.
#ifndef TF_INTEROP_TF_WINOGRAD_STEP_H_
#define TF_INTEROP_TF_WINOGRAD_STEP_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "cc_kernels/core/lru_cache.h"
#include "cc_kernels/tf/convolution_shape.h"
#include "cc_kernels/tf/winograd.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_interop {

// Thread-safe.
class WinogradStep {
 public:
  // Null if `kernel` is none of oneDNN's for float32 images, or if oneDNN cannot be called.
  static std::unique_ptr<WinogradStep> Make(const tensorflow::OpKernel& kernel);

  struct Ways;
  // How a call runs.
  struct Turn {
    std::shared_ptr<Ways> ways;  // null: only the kernel takes the inputs, or is faster
    bool is_winograd = false;    // else the kernel runs
    bool is_first = false;       // compares both
    int trial = -1;              // from 0, or no trial
  };
  Turn Find(const tensorflow::OpKernelContext& context);
  // Does what `kernel` does. Not for a turn without ways.
  void Run(tensorflow::OpKernelContext* context, tensorflow::OpKernel* kernel,
           const Turn& turn) const;

 private:
  using Key = std::array<int64_t, 5>;  // the image's sizes, and the number of cores

  enum class Kind { kConvolution, kInputGradient, kFilterGradient };

  WinogradStep(const ConvolutionAttributes& attributes, Kind kind)
      : attributes_(attributes), kind_(kind) {}
  // The one of the inputs that has pixels, or gradients of pixels.
  int ImageInput() const { return kind_ == Kind::kInputGradient ? 2 : 0; }
  // Empty if only the kernel takes the inputs.
  std::optional<WinogradShape> FindShape(const tensorflow::OpKernelContext& context) const;
  absl::Status RunWinograd(tensorflow::OpKernelContext* context, const Ways& ways,
                           tensorflow::Tensor* output) const;

  const ConvolutionAttributes attributes_;
  const Kind kind_;
  LruCache<Key, std::shared_ptr<Ways>> ways_{16};
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_WINOGRAD_STEP_H_
