#include "cc_kernels/core/cudnn/tensor_geometry.h"

#include <functional>
#include <numeric>

namespace tf_interop {

int64_t TensorGeometry::elements() const {
  return std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
}

TensorGeometry PackedTensor(Layout layout, int64_t n, int64_t c,
                            const std::vector<int64_t>& spatial) {
  TensorGeometry tensor;
  tensor.extents = {n, c};
  tensor.extents.insert(tensor.extents.end(), spatial.begin(), spatial.end());
  tensor.strides.assign(tensor.extents.size(), 1);
  int64_t stride = layout == Layout::kNHWC ? c : 1;
  for (size_t i = tensor.extents.size(); i-- > 2;) {
    tensor.strides[i] = stride;
    stride *= tensor.extents[i];
  }
  if (layout == Layout::kNCHW) {
    tensor.strides[1] = stride;
    stride *= c;
  }
  tensor.strides[0] = stride;
  return tensor;
}

std::vector<int64_t> SpatialOf(const Convolution& c, int64_t depth, int64_t height, int64_t width) {
  if (c.spatial_rank == 3) return {depth, height, width};
  return {height, width};
}

TensorGeometry ImageGeometry(const Convolution& c) {
  return PackedTensor(c.layout, c.batch, c.image_channels,
                      SpatialOf(c, c.image_depth, c.image_height, c.image_width));
}

TensorGeometry OutputGeometry(const Convolution& c) {
  return PackedTensor(c.layout, c.batch, c.output_channels,
                      SpatialOf(c, c.output_depth, c.output_height, c.output_width));
}

TensorGeometry FilterGeometry(const Convolution& c) {
  return PackedTensor(c.layout, c.output_channels, c.image_channels / c.group_count,
                      SpatialOf(c, c.filter_depth, c.filter_height, c.filter_width));
}

TensorGeometry BiasGeometry(const Convolution& c) {
  return PackedTensor(c.layout, 1, c.output_channels, SpatialOf(c, 1, 1, 1));
}

}  // namespace tf_interop
