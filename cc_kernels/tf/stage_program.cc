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
#include "cc_kernels/tf/merged_steps.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"

namespace tf_interop {
namespace {

using tensorflow::NodeDef;

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

}  // namespace

absl::Status AtStep(absl::string_view step, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat("ConvStage step '", step, "': ", message));
}

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

}  // namespace tf_interop
