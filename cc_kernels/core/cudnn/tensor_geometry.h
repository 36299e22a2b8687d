// Extents and strides of the three tensors of a convolution, as cuDNN wants them.
#ifndef TF_INTEROP_CORE_CUDNN_TENSOR_GEOMETRY_H_
#define TF_INTEROP_CORE_CUDNN_TENSOR_GEOMETRY_H_

#include <cstdint>
#include <vector>

#include "cc_kernels/core/convolution.h"

namespace tf_interop {

// A tensor of four dimensions or, of volumes, five. Extents and strides are in elements and always
// in the order N, C, H, W (K, C, R, S for a filter) with the depth, where there is one, before H,
// whatever the layout: the strides say what the layout is.
struct TensorGeometry {
  std::vector<int64_t> extents;
  std::vector<int64_t> strides;

  int64_t elements() const;
};

// Without gaps. `spatial` is H and W, or depth, H and W.
TensorGeometry PackedTensor(Layout layout, int64_t n, int64_t c,
                            const std::vector<int64_t>& spatial);

// Of depth, height and width the last as many as the convolution has: what cuDNN calls spatial.
std::vector<int64_t> SpatialOf(const Convolution& convolution, int64_t depth, int64_t height,
                               int64_t width);

TensorGeometry ImageGeometry(const Convolution& convolution);
TensorGeometry OutputGeometry(const Convolution& convolution);

// The filter that goes with the layout of the images: OHWI (KRSC) for NHWC, OIHW (KCRS) for NCHW,
// of volumes ODHWI and OIDHW.
// With groups, C is the number of channels per group, which is how cuDNN knows the groups.
TensorGeometry FilterGeometry(const Convolution& convolution);

// The bias, broadcast along everything but the channels.
TensorGeometry BiasGeometry(const Convolution& convolution);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_TENSOR_GEOMETRY_H_
