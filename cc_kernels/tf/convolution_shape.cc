#include "cc_kernels/tf/convolution_shape.h"

#include <algorithm>
#include <limits>
#include <string>

#include "tensorflow/core/framework/kernel_shape_util.h"
#include "tensorflow/core/framework/node_def_util.h"

namespace tf_interop {

using tensorflow::GetTensorDim;
using tensorflow::TensorShape;
using tensorflow::TryGetNodeAttr;

std::optional<TensorShape> ShapeOfSizes(const tensorflow::Tensor& sizes) {
  TensorShape shape;
  if (sizes.dtype() != tensorflow::DT_INT32 || sizes.shape() != TensorShape({4}) ||
      !tensorflow::TensorShapeUtils::MakeShape(sizes.vec<int32_t>(), &shape).ok()) {
    return std::nullopt;
  }
  return shape;
}

std::optional<ConvolutionAttributes> ConvolutionAttributes::Read(const tensorflow::NodeDef& node,
                                                                 bool is_depthwise) {
  ConvolutionAttributes read;
  read.is_depthwise = is_depthwise;
  const std::optional<FusedOps> fused = ReadFusedOps(node);
  if (!fused.has_value()) return std::nullopt;
  read.fused = *fused;
  std::string padding;
  std::string data_format;
  TryGetNodeAttr(node, "explicit_paddings", &read.explicit_paddings);  // not in every op
  const bool is_read = TryGetNodeAttr(node, "strides", &read.strides) &&
                       TryGetNodeAttr(node, "dilations", &read.dilations) &&
                       TryGetNodeAttr(node, "padding", &padding) &&
                       tensorflow::GetPaddingFromString(padding, &read.padding).ok() &&
                       TryGetNodeAttr(node, "data_format", &data_format) &&
                       tensorflow::FormatFromString(data_format, &read.data_format);
  const bool lacks_paddings =
      read.padding == tensorflow::EXPLICIT && read.explicit_paddings.size() != 8;
  if (!is_read || lacks_paddings || read.strides.size() != 4 || read.dilations.size() != 4) {
    return std::nullopt;
  }
  return read;
}

std::optional<ConvolutionShape> ConvolutionAttributes::ShapeFor(const TensorShape& image,
                                                                const TensorShape& filter) const {
  if (image.dims() != 4 || filter.dims() != 4 || image.num_elements() == 0 ||
      filter.num_elements() == 0 ||
      std::max(image.num_elements(), filter.num_elements()) > std::numeric_limits<int32_t>::max()) {
    return std::nullopt;
  }
  ConvolutionShape shape;
  const auto size_of = [&](char dimension) { return GetTensorDim(image, data_format, dimension); };
  shape.images = size_of('N');
  shape.depth = size_of('C');
  const int64_t filter_depth = filter.dim_size(2);
  const bool fits = is_depthwise ? shape.depth == filter_depth : shape.depth % filter_depth == 0;
  if (!fits) return std::nullopt;
  shape.groups = shape.depth / (is_depthwise ? 1 : filter_depth);
  shape.channels = filter.dim_size(3) * (is_depthwise ? shape.depth : 1);
  if (shape.channels % shape.groups != 0) return std::nullopt;
  for (const int i : {0, 1}) {
    const char dimension = i == 0 ? 'H' : 'W';
    shape.image[i] = size_of(dimension);
    shape.filter[i] = filter.dim_size(i);
    Window& window = shape.windows[i];
    const int64_t dilation = GetTensorDim(dilations, data_format, dimension);
    window.stride = GetTensorDim(strides, data_format, dimension);
    window.dilation = dilation - 1;
    if (padding == tensorflow::EXPLICIT) {
      tensorflow::GetExplicitPaddingForDim(explicit_paddings, data_format, dimension,
                                           &window.before, &window.after);
    }
    if (!tensorflow::GetWindowedOutputSizeVerbose(shape.image[i], shape.filter[i], dilation,
                                                  window.stride, padding, &window.output_size,
                                                  &window.before, &window.after)
             .ok() ||
        window.output_size <= 0) {
      return std::nullopt;
    }
  }
  return shape;
}

std::optional<WinogradShape> ConvolutionAttributes::WinogradShapeFor(
    const ConvolutionShape& shape) const {
  const auto is_dense = [](const Window& window) {
    return window.stride == 1 && window.dilation == 0;
  };
  const auto& [rows, columns] = shape.windows;
  const int64_t size = shape.filter[0];
  const bool is_simple = fused.activation == FusedActivation::kNone ||
                         fused.activation == FusedActivation::kRelu ||
                         fused.activation == FusedActivation::kRelu6;
  if (is_depthwise || shape.groups > 1 || data_format != tensorflow::FORMAT_NHWC ||
      size != shape.filter[1] || (size != 3 && size != 5) || !is_dense(rows) ||
      !is_dense(columns) || shape.depth % kWinogradChannels != 0 ||
      shape.channels % kWinogradChannels != 0 || !is_simple) {
    return std::nullopt;
  }
  return WinogradShape{
      shape.images,   shape.image[0],   shape.image[1],      shape.depth,    rows.before,
      columns.before, rows.output_size, columns.output_size, shape.channels, size};
}

}  // namespace tf_interop
