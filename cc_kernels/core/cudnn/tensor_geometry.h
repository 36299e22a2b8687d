// Extents and strides of the three tensors of a convolution, as cuDNN wants them.
#ifndef TF_INTEROP_CORE_CUDNN_TENSOR_GEOMETRY_H_
#define TF_INTEROP_CORE_CUDNN_TENSOR_GEOMETRY_H_

#include <array>
#include <cstdint>

#include "cc_kernels/core/convolution.h"

namespace tf_interop {

// A four-dimensional tensor. Extents and strides are in elements and always in the order N, C, H,
// W (K, C, R, S for a filter), whatever the layout: the strides say what the layout is.
struct TensorGeometry {
  std::array<int64_t, 4> extents = {1, 1, 1, 1};
  std::array<int64_t, 4> strides = {1, 1, 1, 1};

  int64_t elements() const { return extents[0] * extents[1] * extents[2] * extents[3]; }
};

TensorGeometry PackedTensor(Layout layout, int64_t n, int64_t c, int64_t h, int64_t w);

TensorGeometry ImageGeometry(const Convolution& convolution);
TensorGeometry OutputGeometry(const Convolution& convolution);

// The filter that goes with the layout of the images: OHWI (KRSC) for NHWC, OIHW (KCRS) for NCHW.
// With groups, C is the number of channels per group, which is how cuDNN knows the groups.
TensorGeometry FilterGeometry(const Convolution& convolution);

// The bias, broadcast along everything but the channels.
TensorGeometry BiasGeometry(const Convolution& convolution);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_TENSOR_GEOMETRY_H_
