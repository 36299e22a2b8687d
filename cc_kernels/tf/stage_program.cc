#include "cc_kernels/tf/stage_program.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "cc_kernels/tf/merged_steps.h"
#include "tensorflow/core/framework/kernel_shape_util.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"

namespace tf_interop {
namespace {

using tensorflow::NodeDef;
using tensorflow::TensorShape;

absl::Status AtStep(absl::string_view step, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("ConvStage step '", step, "': ", message));
}

struct OpKind {
  const char* op = nullptr;
  ConvolutionKind kind = ConvolutionKind::kForward;
  int spatial_rank = 2;
  bool depthwise = false;
  bool fused = false;
};

constexpr OpKind kOpKinds[] = {
    {"Conv2D", ConvolutionKind::kForward},
    {"_FusedConv2D", ConvolutionKind::kForward, 2, false, true},
    {"Conv2DBackpropInput", ConvolutionKind::kBackwardInput},
    {"Conv2DBackpropFilter", ConvolutionKind::kBackwardFilter},
    {"DepthwiseConv2dNative", ConvolutionKind::kForward, 2, true},
    {"DepthwiseConv2dNativeBackpropInput", ConvolutionKind::kBackwardInput, 2, true},
    {"DepthwiseConv2dNativeBackpropFilter", ConvolutionKind::kBackwardFilter, 2, true},
    {"Conv3D", ConvolutionKind::kForward, 3},
    {"_FusedConv3D", ConvolutionKind::kForward, 3, false, true},
    {"Conv3DBackpropInputV2", ConvolutionKind::kBackwardInput, 3},
    {"Conv3DBackpropFilterV2", ConvolutionKind::kBackwardFilter, 3},
};

absl::Status ParseKind(const NodeDef& node, StepProgram* step) {
  for (const OpKind& known : kOpKinds) {
    if (node.op() == known.op) {
      step->kind = known.kind;
      step->spatial_rank = known.spatial_rank;
      step->depthwise = known.depthwise;
      step->has_bias = known.fused;
      return absl::OkStatus();
    }
  }
  return AtStep(node.name(), absl::StrCat("expected a convolution, got op ", node.op(), "."));
}

absl::Status ParseOperands(const NodeDef& node, const StageAttributes& attributes,
                           StepProgram* step) {
  for (const std::string& input : node.input()) {
    absl::string_view text = input;
    Operand operand;
    operand.is_size = absl::ConsumePrefix(&text, "sizes:");
    if (!operand.is_size && !absl::ConsumePrefix(&text, "inputs:")) {
      return AtStep(node.name(),
                    absl::StrCat("expected operands inputs:<i> or sizes:<i>, got '", input, "'."));
    }
    const int count =
        operand.is_size ? attributes.size_count : static_cast<int>(attributes.input_types.size());
    if (!absl::SimpleAtoi(text, &operand.index) || operand.index < 0 || operand.index >= count) {
      return AtStep(node.name(), absl::StrCat("expected the index of one of ", count,
                                              " tensors, got '", input, "'."));
    }
    if (!operand.is_size && attributes.input_types[operand.index] != step->dtype) {
      return AtStep(node.name(),
                    absl::StrCat("expected operands of type ", DataTypeString(step->dtype),
                                 ", got ", DataTypeString(attributes.input_types[operand.index]),
                                 " at '", input, "'."));
    }
    step->operands.push_back(operand);
  }
  const size_t expected = step->kind == ConvolutionKind::kForward ? (step->has_bias ? 3 : 2) : 3;
  if (step->operands.size() != expected) {
    return AtStep(node.name(), absl::StrCat("expected ", expected, " operands, got ",
                                            step->operands.size(), "."));
  }
  for (size_t i = 0; i < expected; ++i) {
    const bool want_size =
        step->kind != ConvolutionKind::kForward && static_cast<int>(i) == step->sizes_operand();
    if (step->operands[i].is_size != want_size) {
      return AtStep(node.name(), absl::StrCat("expected operand ", i, " in the list ",
                                              want_size ? "sizes" : "inputs", "."));
    }
  }
  return absl::OkStatus();
}

// Whether the filter is an operand, and among the stage's constant inputs.
bool HasConstantFilter(const StepProgram& step, const StageAttributes& attributes) {
  if (step.kind == ConvolutionKind::kBackwardFilter) return false;
  const int filter = step.operands[step.filter_operand()].index;
  const std::vector<int>& constants = attributes.constant_inputs;
  return std::find(constants.begin(), constants.end(), filter) != constants.end();
}

// Reads a list with one entry per dimension, which must be 1 for batch and channels, into `spatial`
// by depth, height and width.
absl::Status ParseSpatial(const NodeDef& node, const char* attribute, const StepProgram& step,
                          int64_t* spatial) {
  std::vector<int64_t> values;
  if (!tensorflow::TryGetNodeAttr(node, attribute, &values) || values.empty()) {
    return absl::OkStatus();  // dilations may be left out
  }
  if (static_cast<int>(values.size()) != step.rank()) {
    return AtStep(node.name(), absl::StrCat("expected ", step.rank(), " ", attribute, ", got [",
                                            absl::StrJoin(values, ", "), "]."));
  }
  bool is_valid = values[0] == 1 && values[GetTensorFeatureDimIndex(step.rank(), step.format)] == 1;
  for (int i = step.first_spatial(); i < 3; ++i) {
    spatial[i] = values[step.image_dimension(i)];
    is_valid = is_valid && spatial[i] >= 1;
  }
  if (is_valid) return absl::OkStatus();
  return AtStep(node.name(), absl::StrCat("expected ", attribute,
                                          " of 1 in batch and channels and at least 1 in the "
                                          "spatial dimensions, got [",
                                          absl::StrJoin(values, ", "), "]."));
}

absl::Status ParsePadding(const NodeDef& node, StepProgram* step) {
  std::string padding;
  TF_RETURN_IF_ERROR(GetNodeAttr(node, "padding", &padding));
  TF_RETURN_IF_ERROR(tensorflow::GetPaddingFromString(padding, &step->padding));
  if (step->padding != tensorflow::EXPLICIT) return absl::OkStatus();
  if (step->spatial_rank != 2) {
    return AtStep(node.name(), "expected padding SAME or VALID for volumes, got EXPLICIT.");
  }
  std::vector<int64_t> pads;
  TF_RETURN_IF_ERROR(GetNodeAttr(node, "explicit_paddings", &pads));
  TF_RETURN_IF_ERROR(
      tensorflow::CheckValidPadding(step->padding, pads, /*num_dims=*/4, step->format));
  for (int i = step->first_spatial(); i < 3; ++i) {
    const size_t before = 2 * static_cast<size_t>(step->image_dimension(i));
    step->explicit_pads[i][0] = pads[before];
    step->explicit_pads[i][1] = pads[before + 1];
  }
  return absl::OkStatus();
}

absl::Status ParseActivation(const NodeDef& node, const std::string& fused_op, StepProgram* step) {
  for (const Activation activation :
       {Activation::kRelu, Activation::kRelu6, Activation::kLeakyRelu, Activation::kElu}) {
    if (fused_op == ToString(activation)) {
      step->activation = activation;
      return absl::OkStatus();
    }
  }
  return AtStep(node.name(), absl::StrCat("expected a fused Relu, Relu6, LeakyRelu or Elu, got ",
                                          fused_op, "."));
}

absl::Status ParseFusedOps(const NodeDef& node, StepProgram* step) {
  if (!step->has_bias) return absl::OkStatus();
  std::vector<std::string> fused_ops;
  TF_RETURN_IF_ERROR(GetNodeAttr(node, "fused_ops", &fused_ops));
  if (fused_ops.empty() || fused_ops.size() > 2 || fused_ops[0] != "BiasAdd") {
    return AtStep(node.name(), absl::StrCat("expected fused_ops [BiasAdd] or [BiasAdd, "
                                            "activation], got [",
                                            absl::StrJoin(fused_ops, ", "), "]."));
  }
  tensorflow::TryGetNodeAttr(node, "leakyrelu_alpha", &step->leaky_relu_alpha);
  return fused_ops.size() == 2 ? ParseActivation(node, fused_ops[1], step) : absl::OkStatus();
}

// Returns false for a type that no step may have.
bool ToCoreDataType(tensorflow::DataType dtype, DataType* core) {
  switch (dtype) {
    case tensorflow::DT_FLOAT:
      *core = DataType::kFloat;
      return true;
    case tensorflow::DT_HALF:
      *core = DataType::kHalf;
      return true;
    case tensorflow::DT_BFLOAT16:
      *core = DataType::kBFloat16;
      return true;
    case tensorflow::DT_DOUBLE:
      *core = DataType::kDouble;
      return true;
    default:
      return false;
  }
}

absl::Status ParseFormat(const NodeDef& node, StepProgram* step) {
  const char* const last = step->spatial_rank == 3 ? "NDHWC" : "NHWC";
  const char* const first = step->spatial_rank == 3 ? "NCDHW" : "NCHW";
  std::string format = last;
  tensorflow::TryGetNodeAttr(node, "data_format", &format);
  if (format != last && format != first) {
    return AtStep(node.name(), absl::StrCat("expected data_format ", last, " or ", first, ", got ",
                                            format, "."));
  }
  step->format = format == last ? tensorflow::FORMAT_NHWC : tensorflow::FORMAT_NCHW;
  return absl::OkStatus();
}

absl::Status ParseStep(const NodeDef& node, const StageAttributes& attributes, StepProgram* step) {
  step->name = node.name();
  TF_RETURN_IF_ERROR(ParseKind(node, step));
  TF_RETURN_IF_ERROR(GetNodeAttr(node, "T", &step->dtype));
  if (!ToCoreDataType(step->dtype, &step->core_dtype)) {
    return AtStep(node.name(), absl::StrCat("expected float, half, bfloat16 or double, got ",
                                            DataTypeString(step->dtype), "."));
  }
  TF_RETURN_IF_ERROR(ParseFormat(node, step));
  TF_RETURN_IF_ERROR(ParseSpatial(node, "strides", *step, step->strides));
  TF_RETURN_IF_ERROR(ParseSpatial(node, "dilations", *step, step->dilations));
  TF_RETURN_IF_ERROR(ParsePadding(node, step));
  TF_RETURN_IF_ERROR(ParseFusedOps(node, step));
  TF_RETURN_IF_ERROR(ParseOperands(node, attributes, step));
  step->has_constant_filter = HasConstantFilter(*step, attributes);
  return absl::OkStatus();
}

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

// What a step comes to along one spatial dimension.
struct Extent {
  int64_t image = 1, filter = 1, output = 1;
  int64_t pads[2] = {0, 0};  // before and after
};

// Reads image and filter of spatial dimension `i`, from which output and pads follow.
absl::Status ResolveSpatial(const StepProgram& step, const TensorShape& image,
                            const TensorShape& filter, int i, Extent* extent) {
  extent->image = image.dim_size(step.image_dimension(i));
  extent->filter = filter.dim_size(step.filter_dimension(i));
  extent->pads[0] = step.explicit_pads[i][0];
  extent->pads[1] = step.explicit_pads[i][1];
  const absl::Status status = tensorflow::GetWindowedOutputSizeVerbose(
      extent->image, extent->filter, step.dilations[i], step.strides[i], step.padding,
      &extent->output, &extent->pads[0], &extent->pads[1]);
  return status.ok() ? status : AtStep(step.name, status.message());
}

// Everything spatial, in the core's words. Depth stays as the core has it where there is none.
absl::Status ResolveSpatial(const StepProgram& step, const TensorShape& image,
                            const TensorShape& filter, Convolution* c) {
  Extent extents[3];
  for (int i = step.first_spatial(); i < 3; ++i) {
    TF_RETURN_IF_ERROR(ResolveSpatial(step, image, filter, i, &extents[i]));
  }
  const auto& [depth, height, width] = extents;
  c->spatial_rank = step.spatial_rank;
  c->image_depth = depth.image;
  c->image_height = height.image;
  c->image_width = width.image;
  c->filter_depth = depth.filter;
  c->filter_height = height.filter;
  c->filter_width = width.filter;
  c->output_depth = depth.output;
  c->output_height = height.output;
  c->output_width = width.output;
  c->stride_depth = step.strides[0];
  c->stride_height = step.strides[1];
  c->stride_width = step.strides[2];
  c->dilation_depth = step.dilations[0];
  c->dilation_height = step.dilations[1];
  c->dilation_width = step.dilations[2];
  c->pad_front = depth.pads[0];
  c->pad_back = depth.pads[1];
  c->pad_top = height.pads[0];
  c->pad_bottom = height.pads[1];
  c->pad_left = width.pads[0];
  c->pad_right = width.pads[1];
  return absl::OkStatus();
}

// Channels and groups, which the three tensors have to agree on.
absl::Status ResolveChannels(const StepProgram& step, const TensorShape& filter,
                             int64_t image_channels, Convolution* c) {
  const int64_t filter_channels = filter.dim_size(step.spatial_rank);
  if (image_channels < 1) {
    return AtStep(step.name, "expected an image with at least 1 channel, got 0.");
  }
  if (step.depthwise) {
    if (filter_channels != image_channels) {
      return AtStep(step.name, absl::StrCat("expected a depthwise filter for ", image_channels,
                                            " channels, got shape ", filter.DebugString(), "."));
    }
    c->group_count = image_channels;
    c->output_channels = image_channels * filter.dim_size(step.spatial_rank + 1);
  } else {
    if (filter_channels < 1 || image_channels % filter_channels != 0) {
      return AtStep(step.name, absl::StrCat("expected image channels ", image_channels,
                                            " to be a multiple of the filter's, got shape ",
                                            filter.DebugString(), "."));
    }
    c->group_count = image_channels / filter_channels;
    c->output_channels = filter.dim_size(step.spatial_rank + 1);
  }
  c->image_channels = image_channels;
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

int StepProgram::image_dimension(int i) const {
  return GetTensorSpatialDimIndex(rank(), format, i - first_spatial());
}

absl::Status ParseStageProgram(const StageAttributes& attributes, StageProgram* program) {
  const size_t count = attributes.steps.size();
  if (count == 0 || attributes.output_types.size() != count) {
    return absl::InvalidArgumentError(
        absl::StrCat("ConvStage: expected steps, and Tout with one entry for each, got ", count,
                     " and ", attributes.output_types.size(), "."));
  }
  for (const int input : attributes.constant_inputs) {
    if (input < 0 || input >= static_cast<int>(attributes.input_types.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("ConvStage: expected constant_inputs below the number of inputs, ",
                       attributes.input_types.size(), ", got ", input, "."));
    }
  }
  program->steps.assign(count, StepProgram());
  for (size_t i = 0; i < count; ++i) {
    NodeDef node;
    if (!node.ParseFromString(attributes.steps[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("ConvStage: expected a serialized NodeDef as step ", i, "."));
    }
    StepProgram* const step = &program->steps[i];
    TF_RETURN_IF_ERROR(ParseStep(node, attributes, step));
    if (attributes.output_types[i] != step->dtype) {
      return AtStep(step->name,
                    absl::StrCat("expected Tout ", DataTypeString(step->dtype), ", got ",
                                 DataTypeString(attributes.output_types[i]), "."));
    }
  }
  TF_RETURN_IF_ERROR(ParseStageSchedules(attributes.schedules, count, &program->schedules));
  return CheckMergedLanes(*program);
}

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
