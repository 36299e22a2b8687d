#include "cc_kernels/tf/resolve_step.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tensorflow/core/framework/kernel_shape_util.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/util/tensor_format.h"

namespace tf_interop {
namespace {

using tensorflow::TensorShape;

absl::Status ExpectRank(const StepProgram& step, const char* tensor, const TensorShape& shape) {
  if (shape.dims() == step.rank()) return absl::OkStatus();
  return AtStep(step.name, absl::StrCat("expected ", tensor, " of rank ", step.rank(),
                                        ", got shape ", shape.DebugString(), "."));
}

int64_t ChannelsOf(const StepProgram& step, const TensorShape& image) {
  return image.dim_size(GetTensorFeatureDimIndex(step.rank(), step.format));
}

// The shape of an image or an output; `spatial` is by depth, height and width.
absl::Status MakeImageShape(const StepProgram& step, int64_t batch, const int64_t* spatial,
                            int64_t channels, TensorShape* shape) {
  return tensorflow::ShapeFromFormatWithStatus(
      step.format, batch, absl::MakeConstSpan(spatial + step.first_spatial(), step.spatial_rank),
      channels, shape);
}

// The image's shape from the value of input_sizes: whole, or height and width alone (the rest then
// follows from filter and output gradient, as in TensorFlow's Conv2DBackpropInput).
absl::Status ImageShapeFromSizes(const StepProgram& step, const std::vector<int64_t>& sizes,
                                 const TensorShape& filter, const TensorShape& output,
                                 TensorShape* image) {
  if (static_cast<int>(sizes.size()) == step.rank()) {
    return TensorShape::BuildTensorShape(sizes, image);
  }
  if (sizes.size() != 2 || step.depthwise || step.spatial_rank != 2) {
    return AtStep(step.name, absl::StrCat("expected input_sizes with ", step.rank(),
                                          " entries, got ", sizes.size(), "."));
  }
  const int64_t spatial[3] = {1, sizes[0], sizes[1]};
  return MakeImageShape(step, output.dim_size(0), spatial, filter.dim_size(2), image);
}

Layout ToLayout(tensorflow::TensorFormat format) {
  return format == tensorflow::FORMAT_NHWC ? Layout::kNHWC : Layout::kNCHW;
}

// Everything spatial: output and pads follow from image and filter. Depth stays as the core has it
// if there is none.
absl::Status ResolveSpatial(const StepProgram& step, const TensorShape& image,
                            const TensorShape& filter, Convolution* c) {
  struct Dimension {
    int64_t *image, *filter, *output, *stride, *dilation, *pad_before, *pad_after;
  };
  const Dimension dimensions[] = {
      {&c->image_depth, &c->filter_depth, &c->output_depth, &c->stride_depth, &c->dilation_depth,
       &c->pad_front, &c->pad_back},
      {&c->image_height, &c->filter_height, &c->output_height, &c->stride_height,
       &c->dilation_height, &c->pad_top, &c->pad_bottom},
      {&c->image_width, &c->filter_width, &c->output_width, &c->stride_width, &c->dilation_width,
       &c->pad_left, &c->pad_right},
  };
  c->spatial_rank = step.spatial_rank;
  for (int i = step.first_spatial(); i < 3; ++i) {
    const Dimension& of = dimensions[i];
    *of.image = image.dim_size(step.image_dimension(i));
    *of.filter = filter.dim_size(step.filter_dimension(i));
    *of.stride = step.strides[i];
    *of.dilation = step.dilations[i];
    *of.pad_before = step.explicit_pads[i][0];
    *of.pad_after = step.explicit_pads[i][1];
    const absl::Status status = tensorflow::GetWindowedOutputSizeVerbose(
        *of.image, *of.filter, *of.dilation, *of.stride, step.padding, of.output, of.pad_before,
        of.pad_after);
    if (!status.ok()) return AtStep(step.name, status.message());
  }
  return absl::OkStatus();
}

// Channels and groups, which the three tensors have to agree on.
absl::Status ResolveChannels(const StepProgram& step, const TensorShape& filter,
                             int64_t image_channels, Convolution* c) {
  const int64_t filter_channels = filter.dim_size(step.spatial_rank);
  const bool fits =
      image_channels >= 1 && filter_channels >= 1 &&
      (step.depthwise ? filter_channels == image_channels : image_channels % filter_channels == 0);
  if (!fits) {
    return AtStep(step.name, absl::StrCat("expected a filter for ", image_channels,
                                          " channels, got shape ", filter.DebugString(), "."));
  }
  c->image_channels = image_channels;
  c->group_count = step.depthwise ? image_channels : image_channels / filter_channels;
  c->output_channels =
      filter.dim_size(step.spatial_rank + 1) * (step.depthwise ? image_channels : 1);
  return absl::OkStatus();
}

// A gradient of which nothing can be computed, because a tensor of the convolution is empty: one of
// `elements` zeros. It need not belong to a convolution that exists (a filter of height 0 has no
// output), so it is described by the simplest one that reads nothing and has a result of that size.
Convolution ZeroGradient(ConvolutionKind kind, DataType dtype, int64_t elements) {
  Convolution c;
  c.kind = kind;
  c.dtype = dtype;
  c.image_height = c.image_width = c.image_channels = 1;
  c.filter_height = c.filter_width = 1;
  c.output_height = c.output_width = 1;
  // [elements, 1, 1, 1] from no output channels, or [1, 1, 1, elements] from no images.
  (kind == ConvolutionKind::kBackwardInput ? c.batch : c.output_channels) = elements;
  return c;
}

// TensorFlow fuses a BiasAdd, whose bias is a vector, and with oneDNN also an addition that comes
// to the same, of a bias such as [1, 1, 1, channels].
bool IsBiasOf(const TensorShape& bias, int64_t channels) {
  int dimensions_of_channels = bias.dims() > 0 && channels == 1 ? 1 : 0;
  for (const int64_t size : bias.dim_sizes()) {
    if (size == 1) continue;
    if (size != channels) return false;
    ++dimensions_of_channels;
  }
  return dimensions_of_channels == 1;
}

}  // namespace

absl::Status ResolveStep(const StepProgram& step, const std::vector<TensorShape>& operand_shapes,
                         const std::vector<int64_t>& sizes, Convolution* c,
                         TensorShape* result_shape) {
  const bool forward = step.kind == ConvolutionKind::kForward;
  TensorShape image, filter, output;
  if (step.kind != ConvolutionKind::kBackwardInput) image = operand_shapes[step.image_operand()];
  if (step.kind != ConvolutionKind::kBackwardFilter) {
    filter = operand_shapes[step.filter_operand()];
    TF_RETURN_IF_ERROR(ExpectRank(step, "the filter", filter));
  }
  if (!forward) {
    output = operand_shapes[step.output_operand()];
    TF_RETURN_IF_ERROR(ExpectRank(step, "the output gradient", output));
  }
  if (step.kind == ConvolutionKind::kBackwardInput) {
    TF_RETURN_IF_ERROR(ImageShapeFromSizes(step, sizes, filter, output, &image));
  }
  if (step.kind == ConvolutionKind::kBackwardFilter) {
    TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape(sizes, &filter));
    TF_RETURN_IF_ERROR(ExpectRank(step, "the filter of filter_sizes", filter));
  }
  TF_RETURN_IF_ERROR(ExpectRank(step, "the image", image));
  if (!forward) *result_shape = step.kind == ConvolutionKind::kBackwardInput ? image : filter;
  const bool is_empty =
      image.num_elements() == 0 || filter.num_elements() == 0 || output.num_elements() == 0;
  if (!forward && is_empty) {
    *c = ZeroGradient(step.kind, step.core_dtype, result_shape->num_elements());
    return absl::OkStatus();
  }

  if (filter.num_elements() == 0 && !step.depthwise) {  // in TensorFlow's words
    return AtStep(step.name,
                  "filter must not have zero elements (i.e. all dimensions must be non-zero)");
  }

  *c = Convolution();
  c->kind = step.kind;
  c->dtype = step.core_dtype;
  c->layout = ToLayout(step.format);
  c->batch = image.dim_size(0);
  c->has_bias = step.has_bias;
  c->activation = step.activation;
  c->leaky_relu_alpha = step.leaky_relu_alpha;
  TF_RETURN_IF_ERROR(ResolveChannels(step, filter, ChannelsOf(step, image), c));
  TF_RETURN_IF_ERROR(ResolveSpatial(step, image, filter, c));

  const int64_t output_sizes[3] = {c->output_depth, c->output_height, c->output_width};
  TensorShape expected_output;
  TF_RETURN_IF_ERROR(
      MakeImageShape(step, c->batch, output_sizes, c->output_channels, &expected_output));
  if (!forward && output != expected_output) {
    return AtStep(step.name,
                  absl::StrCat("expected an output gradient of shape ",
                               expected_output.DebugString(), ", got ", output.DebugString(), "."));
  }
  if (step.has_bias) {
    const TensorShape& bias = operand_shapes[2];
    if (!IsBiasOf(bias, c->output_channels)) {
      return AtStep(step.name, absl::StrCat("expected a bias of ", c->output_channels,
                                            " channels, got shape ", bias.DebugString(), "."));
    }
  }
  if (forward) *result_shape = expected_output;
  return absl::OkStatus();
}

}  // namespace tf_interop
