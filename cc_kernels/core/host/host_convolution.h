// A convolution on the CPU, by one of three algorithms:
//
//   IM2COL_GEMM    patches of the image as rows of a matrix in the workspace, and Eigen's matrix
//                  product (forward; the two backward kinds do the same tap by tap);
//   EIGEN_SPATIAL  Eigen's spatial convolution, without a workspace of its own; for forward
//                  convolutions of flat images without groups;
//   DIRECT         loops without a workspace of its own; what depthwise convolutions use.
//
// Arithmetic is float, of double tensors double. Half and bfloat16 tensors are converted on the way
// in and rounded once on the way out; NCHW tensors are transposed to NHWC. Both need a workspace,
// with any algorithm. A filter that many runs read can be converted once, by TransformFilter. The
// order of additions does not depend on the number of threads: the same input gives the same bits.
#ifndef TF_INTEROP_CORE_HOST_HOST_CONVOLUTION_H_
#define TF_INTEROP_CORE_HOST_HOST_CONVOLUTION_H_

#include <cstddef>
#include <string>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/host/parallel_for.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

enum class HostAlgorithm { kIm2colGemm, kEigenSpatial, kDirect };

Status ParseHostAlgorithm(const std::string& name, HostAlgorithm* algorithm);
const char* HostAlgorithmName(HostAlgorithm algorithm);

// Whether the algorithm is there for such a convolution.
bool CanRun(HostAlgorithm algorithm, const Convolution& convolution);

// Immutable; Run may be called from several threads at once with different buffers.
class HostConvolution {
 public:
  // `convolution` is valid, neither its operands nor its result are empty, and the algorithm can
  // run it.
  HostConvolution(const Convolution& convolution, HostAlgorithm algorithm);

  const Convolution& convolution() const { return convolution_; }
  size_t workspace_bytes() const;

  // Bytes of the filter in float; 0 where it needs no conversion, or is the result.
  size_t transformed_filter_bytes() const;
  // Writes them, for ConvolutionBuffers::transformed_filter.
  void TransformFilter(const void* filter, void* transformed) const;

  void Run(const ConvolutionBuffers& buffers, void* workspace,
           const ParallelFor& parallel_for) const;

 private:
  template <typename T>
  void RunIn(const ConvolutionBuffers& buffers, T* workspace,
             const ParallelFor& parallel_for) const;

  Convolution convolution_;
  HostAlgorithm algorithm_;
  size_t workspace_elements_ = 0;  // of the type that arithmetic is in
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_HOST_HOST_CONVOLUTION_H_
