// The product of one vector and a matrix: a dense layer for one image, or a convolution of one
// pixel.
//
// It reads each weight once, so memory limits it. oneDNN's kernels are made for matrices: with 1280
// x 1000 weights they take 0.5 ms, and this 0.4 (AMD EPYC, one core, in MobileNetV2). The sums have
// another order, so results differ in the last bits.
#ifndef TF_INTEROP_TF_VECTOR_PRODUCT_H_
#define TF_INTEROP_TF_VECTOR_PRODUCT_H_

#include <memory>

#include "absl/status/status.h"
#include "cc_kernels/tf/fused_ops.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_interop {

// Its name in profiles, in place of an op's.
inline constexpr char kVectorProduct[] = "TfInterop>VectorProduct";

// Thread-safe.
class VectorProduct {
 public:
  // Null if `kernel` is no float32 product of rows or of channels with weights.
  static std::unique_ptr<VectorProduct> Make(const tensorflow::OpKernel& kernel);

  // Whether a call of the kernel multiplies one vector.
  bool Takes(tensorflow::OpKernelContext* context) const;
  // Does what the kernel does, if this takes the call.
  absl::Status Run(tensorflow::OpKernelContext* context) const;

 private:
  VectorProduct(const FusedOps& fused, bool is_convolution)
      : fused_(fused), is_convolution_(is_convolution) {}

  const FusedOps fused_;
  const bool is_convolution_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_VECTOR_PRODUCT_H_
