// The attributes of TensorFlow's 2D convolutions, and the sizes that follow from them.
#ifndef TF_INTEROP_TF_CONVOLUTION_SHAPE_H_
#define TF_INTEROP_TF_CONVOLUTION_SHAPE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "cc_kernels/tf/fused_ops.h"
#include "cc_kernels/tf/winograd.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/util/padding.h"
#include "tensorflow/core/util/tensor_format.h"

namespace tf_interop {

// A convolution's window along one dimension, in oneDNN's terms.
struct Window {
  int64_t stride = 0;
  int64_t dilation = 0;  // 0 for a dense filter
  int64_t before = 0;
  int64_t after = 0;
  int64_t output_size = 0;
};

struct ConvolutionShape {
  int64_t images = 0;
  int64_t depth = 0;
  int64_t groups = 0;
  int64_t channels = 0;
  std::array<int64_t, 2> image = {};  // height and width
  std::array<int64_t, 2> filter = {};
  std::array<Window, 2> windows;
};

// The shape that a gradient's input of sizes says; empty if it says none.
std::optional<tensorflow::TensorShape> ShapeOfSizes(const tensorflow::Tensor& sizes);

struct ConvolutionAttributes {
  bool is_depthwise = false;
  FusedOps fused;
  std::vector<int32_t> strides;
  std::vector<int32_t> dilations;
  tensorflow::Padding padding = tensorflow::VALID;
  std::vector<int64_t> explicit_paddings;
  tensorflow::TensorFormat data_format = tensorflow::FORMAT_NHWC;

  // Empty if the kernel of this node has others.
  static std::optional<ConvolutionAttributes> Read(const tensorflow::NodeDef& node,
                                                   bool is_depthwise);
  // Empty if these sizes do not fit, or are those of nothing or of too much for oneDNN.
  std::optional<ConvolutionShape> ShapeFor(const tensorflow::TensorShape& image,
                                           const tensorflow::TensorShape& filter) const;
  // Empty if this is not for Winograd's way.
  std::optional<WinogradShape> WinogradShapeFor(const ConvolutionShape& shape) const;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_CONVOLUTION_SHAPE_H_
