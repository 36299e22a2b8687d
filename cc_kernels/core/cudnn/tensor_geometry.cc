#include "cc_kernels/core/cudnn/tensor_geometry.h"

namespace tf_interop {

TensorGeometry PackedTensor(Layout layout, int64_t n, int64_t c, int64_t h, int64_t w) {
  TensorGeometry tensor;
  tensor.extents = {n, c, h, w};
  if (layout == Layout::kNHWC) {
    tensor.strides = {h * w * c, 1, w * c, c};
  } else {
    tensor.strides = {c * h * w, h * w, w, 1};
  }
  return tensor;
}

TensorGeometry ImageGeometry(const Convolution& c) {
  return PackedTensor(c.layout, c.batch, c.image_channels, c.image_height, c.image_width);
}

TensorGeometry OutputGeometry(const Convolution& c) {
  return PackedTensor(c.layout, c.batch, c.output_channels, c.output_height, c.output_width);
}

TensorGeometry FilterGeometry(const Convolution& c) {
  return PackedTensor(c.layout, c.output_channels, c.image_channels / c.group_count,
                      c.filter_height, c.filter_width);
}

TensorGeometry BiasGeometry(const Convolution& c) {
  return PackedTensor(c.layout, 1, c.output_channels, 1, 1);
}

}  // namespace tf_interop
