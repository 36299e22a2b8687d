#include "cc_kernels/tf/stage_program.h"

#include <algorithm>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
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
  const char* op;
  ConvolutionKind kind;
  bool depthwise;
};

constexpr OpKind kOpKinds[] = {
    {"Conv2D", ConvolutionKind::kForward, false},
    {"_FusedConv2D", ConvolutionKind::kForward, false},
    {"Conv2DBackpropInput", ConvolutionKind::kBackwardInput, false},
    {"Conv2DBackpropFilter", ConvolutionKind::kBackwardFilter, false},
    {"DepthwiseConv2dNative", ConvolutionKind::kForward, true},
    {"DepthwiseConv2dNativeBackpropInput", ConvolutionKind::kBackwardInput, true},
    {"DepthwiseConv2dNativeBackpropFilter", ConvolutionKind::kBackwardFilter, true},
};

absl::Status ParseKind(const NodeDef& node, StepProgram* step) {
  for (const OpKind& known : kOpKinds) {
    if (node.op() == known.op) {
      step->kind = known.kind;
      step->depthwise = known.depthwise;
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

// Reads a list with one entry per dimension, which must be 1 for batch and channels.
absl::Status ParseSpatial(const NodeDef& node, const char* attribute,
                          tensorflow::TensorFormat format, int64_t* height, int64_t* width) {
  std::vector<int64_t> values;
  if (!tensorflow::TryGetNodeAttr(node, attribute, &values) || values.empty()) {
    *height = *width = 1;  // dilations may be left out
    return absl::OkStatus();
  }
  if (values.size() != 4) {
    return AtStep(node.name(), absl::StrCat("expected 4 ", attribute, ", got [",
                                            absl::StrJoin(values, ", "), "]."));
  }
  *height = GetTensorDim(values, format, 'H');
  *width = GetTensorDim(values, format, 'W');
  if (GetTensorDim(values, format, 'N') != 1 || GetTensorDim(values, format, 'C') != 1 ||
      *height < 1 || *width < 1) {
    return AtStep(node.name(), absl::StrCat("expected ", attribute,
                                            " of 1 in batch and channels and at least "
                                            "1 in height and width, got [",
                                            absl::StrJoin(values, ", "), "]."));
  }
  return absl::OkStatus();
}

absl::Status ParsePadding(const NodeDef& node, StepProgram* step) {
  std::string padding;
  TF_RETURN_IF_ERROR(GetNodeAttr(node, "padding", &padding));
  TF_RETURN_IF_ERROR(tensorflow::GetPaddingFromString(padding, &step->padding));
  if (step->padding != tensorflow::EXPLICIT) return absl::OkStatus();
  std::vector<int64_t> pads;
  TF_RETURN_IF_ERROR(GetNodeAttr(node, "explicit_paddings", &pads));
  TF_RETURN_IF_ERROR(
      tensorflow::CheckValidPadding(step->padding, pads, /*num_dims=*/4, step->format));
  const int height = GetTensorDimIndex(step->format, 'H');
  const int width = GetTensorDimIndex(step->format, 'W');
  step->explicit_pads[0] = pads[2 * height];
  step->explicit_pads[1] = pads[2 * height + 1];
  step->explicit_pads[2] = pads[2 * width];
  step->explicit_pads[3] = pads[2 * width + 1];
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
  if (node.op() != "_FusedConv2D") return absl::OkStatus();
  std::vector<std::string> fused_ops;
  TF_RETURN_IF_ERROR(GetNodeAttr(node, "fused_ops", &fused_ops));
  if (fused_ops.empty() || fused_ops.size() > 2 || fused_ops[0] != "BiasAdd") {
    return AtStep(node.name(), absl::StrCat("expected fused_ops [BiasAdd] or [BiasAdd, "
                                            "activation], got [",
                                            absl::StrJoin(fused_ops, ", "), "]."));
  }
  step->has_bias = true;
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
    default:
      return false;
  }
}

absl::Status ParseStep(const NodeDef& node, const StageAttributes& attributes, StepProgram* step) {
  step->name = node.name();
  TF_RETURN_IF_ERROR(ParseKind(node, step));
  TF_RETURN_IF_ERROR(GetNodeAttr(node, "T", &step->dtype));
  if (!ToCoreDataType(step->dtype, &step->core_dtype)) {
    return AtStep(node.name(), absl::StrCat("expected float, half or bfloat16, got ",
                                            DataTypeString(step->dtype), "."));
  }
  std::string format = "NHWC";
  tensorflow::TryGetNodeAttr(node, "data_format", &format);
  if (!tensorflow::FormatFromString(format, &step->format) ||
      (step->format != tensorflow::FORMAT_NHWC && step->format != tensorflow::FORMAT_NCHW)) {
    return AtStep(node.name(),
                  absl::StrCat("expected data_format NHWC or NCHW, got ", format, "."));
  }
  TF_RETURN_IF_ERROR(
      ParseSpatial(node, "strides", step->format, &step->stride_height, &step->stride_width));
  TF_RETURN_IF_ERROR(
      ParseSpatial(node, "dilations", step->format, &step->dilation_height, &step->dilation_width));
  TF_RETURN_IF_ERROR(ParsePadding(node, step));
  TF_RETURN_IF_ERROR(ParseFusedOps(node, step));
  TF_RETURN_IF_ERROR(ParseOperands(node, attributes, step));
  step->has_constant_filter = HasConstantFilter(*step, attributes);
  return absl::OkStatus();
}

absl::Status ExpectRank4(const StepProgram& step, const char* tensor, const TensorShape& shape) {
  if (shape.dims() == 4) return absl::OkStatus();
  return AtStep(step.name, absl::StrCat("expected ", tensor, " of rank 4, got shape ",
                                        shape.DebugString(), "."));
}

// The image's shape from the value of input_sizes: whole, or height and width alone (the rest then
// follows from filter and output gradient, as in TensorFlow's Conv2DBackpropInput).
absl::Status ImageShapeFromSizes(const StepProgram& step, const std::vector<int64_t>& sizes,
                                 const TensorShape& filter, const TensorShape& output,
                                 TensorShape* image) {
  if (sizes.size() == 4) return TensorShape::BuildTensorShape(sizes, image);
  if (sizes.size() != 2 || step.depthwise) {
    return AtStep(step.name,
                  absl::StrCat("expected input_sizes with 4 entries, got ", sizes.size(), "."));
  }
  return tensorflow::ShapeFromFormatWithStatus(step.format, GetTensorDim(output, step.format, 'N'),
                                               {sizes[0], sizes[1]}, filter.dim_size(2), image);
}

Layout ToLayout(tensorflow::TensorFormat format) {
  return format == tensorflow::FORMAT_NHWC ? Layout::kNHWC : Layout::kNCHW;
}

// Output size and pads of one spatial dimension.
absl::Status ResolveSpatial(const StepProgram& step, int64_t image, int64_t filter,
                            int64_t dilation, int64_t stride, const int64_t* explicit_pads,
                            int64_t* output, int64_t* pad_before, int64_t* pad_after) {
  *pad_before = explicit_pads[0];
  *pad_after = explicit_pads[1];
  const absl::Status status = tensorflow::GetWindowedOutputSizeVerbose(
      image, filter, dilation, stride, step.padding, output, pad_before, pad_after);
  return status.ok() ? status : AtStep(step.name, status.message());
}

// Channels and groups, which the three tensors have to agree on.
absl::Status ResolveChannels(const StepProgram& step, const TensorShape& filter,
                             int64_t image_channels, Convolution* c) {
  const int64_t filter_channels = filter.dim_size(2);
  if (image_channels < 1) {
    return AtStep(step.name, "expected an image with at least 1 channel, got 0.");
  }
  if (step.depthwise) {
    if (filter_channels != image_channels) {
      return AtStep(step.name, absl::StrCat("expected a depthwise filter for ", image_channels,
                                            " channels, got shape ", filter.DebugString(), "."));
    }
    c->group_count = image_channels;
    c->output_channels = image_channels * filter.dim_size(3);
  } else {
    if (filter_channels < 1 || image_channels % filter_channels != 0) {
      return AtStep(step.name, absl::StrCat("expected image channels ", image_channels,
                                            " to be a multiple of the filter's, got shape ",
                                            filter.DebugString(), "."));
    }
    c->group_count = image_channels / filter_channels;
    c->output_channels = filter.dim_size(3);
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
  return ParseStageSchedules(attributes.schedules, count, &program->schedules);
}

absl::Status ResolveStep(const StepProgram& step, const std::vector<TensorShape>& operand_shapes,
                         const std::vector<int64_t>& sizes, Convolution* c,
                         TensorShape* result_shape) {
  const bool forward = step.kind == ConvolutionKind::kForward;
  TensorShape image, filter, output;
  if (step.kind != ConvolutionKind::kBackwardInput) image = operand_shapes[step.image_operand()];
  if (step.kind != ConvolutionKind::kBackwardFilter) {
    filter = operand_shapes[step.filter_operand()];
    TF_RETURN_IF_ERROR(ExpectRank4(step, "the filter", filter));
  }
  if (!forward) {
    output = operand_shapes[step.output_operand()];
    TF_RETURN_IF_ERROR(ExpectRank4(step, "the output gradient", output));
  }
  if (step.kind == ConvolutionKind::kBackwardInput) {
    TF_RETURN_IF_ERROR(ImageShapeFromSizes(step, sizes, filter, output, &image));
  }
  if (step.kind == ConvolutionKind::kBackwardFilter) {
    TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape(sizes, &filter));
    TF_RETURN_IF_ERROR(ExpectRank4(step, "the filter of filter_sizes", filter));
  }
  TF_RETURN_IF_ERROR(ExpectRank4(step, "the image", image));
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
  c->batch = GetTensorDim(image, step.format, 'N');
  c->image_height = GetTensorDim(image, step.format, 'H');
  c->image_width = GetTensorDim(image, step.format, 'W');
  c->filter_height = filter.dim_size(0);
  c->filter_width = filter.dim_size(1);
  c->stride_height = step.stride_height;
  c->stride_width = step.stride_width;
  c->dilation_height = step.dilation_height;
  c->dilation_width = step.dilation_width;
  c->has_bias = step.has_bias;
  c->activation = step.activation;
  c->leaky_relu_alpha = step.leaky_relu_alpha;
  TF_RETURN_IF_ERROR(ResolveChannels(step, filter, GetTensorDim(image, step.format, 'C'), c));
  TF_RETURN_IF_ERROR(ResolveSpatial(step, c->image_height, c->filter_height, c->dilation_height,
                                    c->stride_height, &step.explicit_pads[0], &c->output_height,
                                    &c->pad_top, &c->pad_bottom));
  TF_RETURN_IF_ERROR(ResolveSpatial(step, c->image_width, c->filter_width, c->dilation_width,
                                    c->stride_width, &step.explicit_pads[2], &c->output_width,
                                    &c->pad_left, &c->pad_right));

  TensorShape expected_output;
  TF_RETURN_IF_ERROR(tensorflow::ShapeFromFormatWithStatus(step.format, c->batch,
                                                           {c->output_height, c->output_width},
                                                           c->output_channels, &expected_output));
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
