// The convolutions that oneDNN's kernels of TensorFlow compute, for other ways to compute them.
#ifndef TF_INTEROP_TF_KERNEL_CONVOLUTION_H_
#define TF_INTEROP_TF_KERNEL_CONVOLUTION_H_

#include <optional>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/tf/fused_ops.h"
#include "cc_kernels/tf/stage_program.h"
#include "cc_kernels/tf/winograd.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_interop {

struct KernelConvolution {
  StepProgram step;  // without what is fused
  FusedOps fused;

  // Empty if `kernel` is none of oneDNN's for float32 images, or fuses what FusedOps lacks.
  static std::optional<KernelConvolution> Read(const tensorflow::OpKernel& kernel);
  // For the inputs of a call, without those that are fused. Empty if their shapes do not fit, or
  // are those of nothing or of too much for oneDNN.
  std::optional<Convolution> Resolve(const tensorflow::OpKernelContext& context) const;
  bool HasBiasFor(const Convolution& convolution, const tensorflow::OpKernelContext& context) const;
  // Empty if this is not for Winograd's way.
  std::optional<WinogradShape> WinogradShapeFor(const Convolution& convolution) const;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_KERNEL_CONVOLUTION_H_
