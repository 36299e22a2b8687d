#include "cc_kernels/tf/kernel_convolution.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "cc_kernels/tf/resolved_stage.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_interop {

std::optional<KernelConvolution> KernelConvolution::Read(const tensorflow::OpKernel& kernel) {
  absl::string_view op = kernel.type_string_view();
  if (!absl::ConsumePrefix(&op, "_MklNative")) return std::nullopt;
  absl::ConsumePrefix(&op, "Fused");
  const std::optional<FusedOps> fused = ReadFusedOps(kernel.def());
  tensorflow::NodeDef node = kernel.def();
  node.set_op(std::string(op));
  KernelConvolution read;
  if (!fused.has_value() || !ParseConvolution(node, &read.step).ok() ||
      read.step.spatial_rank != 2 || read.step.core_dtype != DataType::kFloat) {
    return std::nullopt;
  }
  read.fused = *fused;
  return read;
}

std::optional<Convolution> KernelConvolution::Resolve(
    const tensorflow::OpKernelContext& context) const {
  std::vector<tensorflow::TensorShape> shapes;
  std::vector<int64_t> sizes;
  const int operands = step.kind == ConvolutionKind::kForward ? 2 : 3;
  for (int i = 0; i < operands; ++i) {
    const tensorflow::Tensor& operand = context.input(i);
    shapes.push_back(operand.shape());
    if (!step.is_sizes(i)) continue;
    const auto values = operand.flat<int32_t>();
    sizes.assign(values.data(), values.data() + values.size());
  }
  Convolution convolution;
  tensorflow::TensorShape result;
  if (!ResolveStep(step, shapes, sizes, &convolution, &result).ok() ||
      !convolution.computes_something() ||
      std::max(convolution.image_elements(), convolution.filter_elements()) >
          std::numeric_limits<int32_t>::max()) {
    return std::nullopt;
  }
  return convolution;
}

bool KernelConvolution::HasBiasFor(const Convolution& convolution,
                                   const tensorflow::OpKernelContext& context) const {
  return !fused.has_bias ||
         context.input(2).shape() == tensorflow::TensorShape({convolution.output_channels});
}

std::optional<WinogradShape> KernelConvolution::WinogradShapeFor(const Convolution& c) const {
  const bool is_dense = c.stride_height == 1 && c.stride_width == 1 && c.dilation_height == 1 &&
                        c.dilation_width == 1;
  const bool is_simple = fused.activation == FusedActivation::kNone ||
                         fused.activation == FusedActivation::kRelu ||
                         fused.activation == FusedActivation::kRelu6;
  const int64_t size = c.filter_height;
  if (c.group_count > 1 || c.layout != Layout::kNHWC || size != c.filter_width ||
      (size != 3 && size != 5) || !is_dense || c.image_channels % kWinogradChannels != 0 ||
      c.output_channels % kWinogradChannels != 0 || !is_simple) {
    return std::nullopt;
  }
  return WinogradShape{c.batch,    c.image_height,  c.image_width,  c.image_channels,  c.pad_top,
                       c.pad_left, c.output_height, c.output_width, c.output_channels, size};
}

}  // namespace tf_interop
