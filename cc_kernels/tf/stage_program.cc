#include "cc_kernels/tf/stage_program.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"

namespace tf_interop {
namespace {

using google::protobuf::Value;
using tensorflow::NodeDef;

// A value of the document. All values share the document's first error. A value that cannot be read
// is empty, or the least number, so that a function can check for errors once.
class Json {
 public:
  Json(const Value& value, std::string place, absl::Status* error)
      : value_(&value), place_(std::move(place)), error_(error) {}

  const absl::Status& error() const { return *error_; }

  // Returns the document's first error, which is this one if there was none before.
  template <typename... Parts>
  const absl::Status& Expected(const Parts&... what) const {
    error_->Update(InvalidArgument("ConvStage schedules at ", place_, ": expected ", what..., "."));
    return *error_;
  }

  bool is_null() const { return value_->kind_case() == Value::kNullValue; }

  Json operator[](absl::string_view name) const {
    Check(Value::kStructValue, "an object");
    const auto& fields = value_->struct_value().fields();
    const auto found = fields.find(std::string(name));
    if (found == fields.end()) Expected("a field '", name, "'");
    return Json(found == fields.end() ? Value::default_instance() : found->second,
                absl::StrCat(place_, ".", name), error_);
  }

  std::vector<Json> Items() const {
    Check(Value::kListValue, "a list");
    std::vector<Json> items;
    for (const Value& item : value_->list_value().values()) {
      items.emplace_back(item, absl::StrCat(place_, "[", items.size(), "]"), error_);
    }
    return items;
  }

  int64_t Integer(int64_t least, int64_t most) const {
    const double number = value_->number_value();
    if (value_->kind_case() == Value::kNumberValue && number >= static_cast<double>(least) &&
        number <= static_cast<double>(most) && number == std::floor(number)) {
      return static_cast<int64_t>(number);
    }
    Expected(least == most ? absl::StrCat(least)
                           : absl::StrCat("a whole number of ", least, " to ", most));
    return least;
  }

  // A position among `count` things; `count` is at least 1.
  size_t Position(size_t count) const {
    return static_cast<size_t>(Integer(0, static_cast<int64_t>(count) - 1));
  }

  bool Bool() const {
    Check(Value::kBoolValue, "true or false");
    return value_->bool_value();
  }

  const std::string& Text() const {
    Check(Value::kStringValue, "a string");
    return value_->string_value();
  }

 private:
  void Check(Value::KindCase kind, absl::string_view what) const {
    if (value_->kind_case() != kind) Expected(what);
  }

  const Value* value_;  // of a document that outlives this
  std::string place_;
  absl::Status* error_;
};

// An op that a step can replace.
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
    if (node.op() != known.op) continue;
    step->kind = known.kind;
    step->spatial_rank = known.spatial_rank;
    step->depthwise = known.depthwise;
    step->has_bias = known.fused;
    return absl::OkStatus();
  }
  return AtStep(node.name(), "expected op to be a convolution, got ", node.op(), ".");
}

absl::Status WrongType(const StepProgram& step, tensorflow::DataType got, absl::string_view text) {
  return AtStep(step.name, "expected operands of type ", DataTypeString(step.dtype), ", got ",
                DataTypeString(got), " at '", text, "'.");
}

absl::Status ReadOperands(const StageAttributes& attributes, StageProgram* program) {
  StepProgram* const step = &program->steps.back();
  const size_t step_count = program->steps.size() - 1;
  const size_t input_count = attributes.input_types.size();
  const bool has_three = step->kind != ConvolutionKind::kForward || step->has_bias;
  const int expected = has_three ? 3 : 2;
  if (step->node_def.input_size() != expected) {
    return AtStep(step->name, "expected ", expected, " operands, got ", step->node_def.input_size(),
                  ".");
  }
  for (const std::string& text : step->node_def.input()) {
    const std::optional<Operand> operand = ParseOperand(text);
    const bool is_sizes = step->is_sizes(step->operands.size());
    const size_t first = is_sizes ? input_count : 0;
    const size_t count = is_sizes ? attributes.size_count : input_count;
    const auto index = static_cast<size_t>(operand.value_or(Operand()).index);
    if (operand.has_value() && !operand->is_step && index >= first && index < first + count) {
      if (!is_sizes && attributes.input_types[index] != step->dtype) {
        return WrongType(*step, attributes.input_types[index], text);
      }
    } else if (operand.has_value() && operand->is_step && !is_sizes && index < step_count &&
               operand->port == 0) {
      if (program->steps[index].dtype != step->dtype) {
        return WrongType(*step, program->steps[index].dtype, text);
      }
      ++program->reader_counts[index];
    } else {
      return AtStep(step->name, "expected one of ", count, is_sizes ? " sizes" : " inputs",
                    ", inputs:<i> from ", first,
                    is_sizes ? "" : ", or the result of an earlier step, steps:<j>:0", ", got '",
                    text, "'.");
    }
    step->operands.push_back(*operand);
  }
  return absl::OkStatus();
}

// Reads a list with one entry for each dimension, 1 for batch and channels, into `spatial` by
// depth, height and width.
absl::Status ParseSpatial(const NodeDef& node, const char* attribute, const StepProgram& step,
                          int64_t* spatial) {
  std::vector<int64_t> values;
  if (!tensorflow::TryGetNodeAttr(node, attribute, &values) || values.empty()) {
    return absl::OkStatus();  // dilations are optional
  }
  const auto rank = static_cast<size_t>(step.rank());
  bool is_valid = values.size() == rank && values[0] == 1 &&
                  values[GetTensorFeatureDimIndex(step.rank(), step.format)] == 1;
  for (int i = step.first_spatial(); is_valid && i < 3; ++i) {
    spatial[i] = values[step.image_dimension(i)];
    is_valid = spatial[i] >= 1;
  }
  if (is_valid) return absl::OkStatus();
  return AtStep(node.name(), "expected ", rank, " ", attribute,
                ", 1 in batch and channels and at least 1 elsewhere, got [",
                absl::StrJoin(values, ", "), "].");
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

absl::Status ParseFusedOps(const NodeDef& node, StepProgram* step) {
  if (!step->has_bias) return absl::OkStatus();
  std::vector<std::string> fused_ops;
  TF_RETURN_IF_ERROR(GetNodeAttr(node, "fused_ops", &fused_ops));
  tensorflow::TryGetNodeAttr(node, "leakyrelu_alpha", &step->leaky_relu_alpha);
  if (fused_ops == std::vector<std::string>{"BiasAdd"}) return absl::OkStatus();
  const auto names = absl::MakeConstSpan(kActivationNames);
  for (size_t i = 1; i < names.size(); ++i) {
    if (fused_ops == std::vector<std::string>{"BiasAdd", names[i]}) {
      step->activation = static_cast<Activation>(i);
      return absl::OkStatus();
    }
  }
  return AtStep(node.name(), "expected fused_ops BiasAdd, alone or with one of ",
                absl::StrJoin(names.subspan(1), ", "), ", got [", absl::StrJoin(fused_ops, ", "),
                "].");
}

absl::Status ParseDataType(const NodeDef& node, StepProgram* step) {
  TF_RETURN_IF_ERROR(GetNodeAttr(node, "T", &step->dtype));
  for (const DataType core_dtype :
       {DataType::kFloat, DataType::kHalf, DataType::kBFloat16, DataType::kDouble}) {
    if (DataTypeString(step->dtype) != ToString(core_dtype)) continue;
    step->core_dtype = core_dtype;
    return absl::OkStatus();
  }
  return AtStep(node.name(), "expected T to be float, half, bfloat16 or double, got ",
                DataTypeString(step->dtype), ".");
}

absl::Status ParseFormat(const NodeDef& node, StepProgram* step) {
  const char* const last = step->spatial_rank == 3 ? "NDHWC" : "NHWC";
  const char* const first = step->spatial_rank == 3 ? "NCDHW" : "NCHW";
  std::string format = last;
  tensorflow::TryGetNodeAttr(node, "data_format", &format);
  if (format != last && format != first) {
    return AtStep(node.name(), "expected data_format ", last, " or ", first, ", got ", format, ".");
  }
  step->format = format == last ? tensorflow::FORMAT_NHWC : tensorflow::FORMAT_NCHW;
  return absl::OkStatus();
}

absl::Status ParseAttributes(StepProgram* step) {
  const NodeDef& node = step->node_def;
  TF_RETURN_IF_ERROR(ParseDataType(node, step));
  TF_RETURN_IF_ERROR(ParseFormat(node, step));
  TF_RETURN_IF_ERROR(ParseSpatial(node, "strides", *step, step->strides));
  TF_RETURN_IF_ERROR(ParseSpatial(node, "dilations", *step, step->dilations));
  TF_RETURN_IF_ERROR(ParsePadding(node, step));
  return ParseFusedOps(node, step);
}

absl::Status ReadSteps(const StageAttributes& attributes, StageProgram* program) {
  std::vector<NodeDef> nodes;
  TF_RETURN_IF_ERROR(ParseSteps(attributes.steps, &nodes));
  for (const NodeDef& node : nodes) {
    program->reader_counts.push_back(0);
    TF_RETURN_IF_ERROR(ParseConvolution(node, &program->steps.emplace_back()));
    TF_RETURN_IF_ERROR(ReadOperands(attributes, program));
  }
  return absl::OkStatus();
}

absl::Status ReadResults(const StageAttributes& attributes, StageProgram* program) {
  const size_t count = attributes.output_types.size();
  if (attributes.results.size() != count) {
    return InvalidArgument("ConvStage: expected ", count, " results, one for each output, got ",
                           attributes.results.size(), ".");
  }
  for (size_t i = 0; i < count; ++i) {
    const std::optional<Operand> result = ParseOperand(attributes.results[i]);
    const auto index = static_cast<size_t>(result.value_or(Operand()).index);
    if (!result.has_value() || !result->is_step || result->port != 0 ||
        index >= program->steps.size() || program->steps[index].output >= 0) {
      return InvalidArgument("ConvStage: expected results steps:<j>:0 of different steps, got '",
                             attributes.results[i], "'.");
    }
    StepProgram& step = program->steps[index];
    step.output = static_cast<int>(i);
    program->outputs.push_back(index);
    if (step.dtype == attributes.output_types[i]) continue;
    return AtStep(step.name, "expected Tout ", DataTypeString(step.dtype), " for output ", i,
                  ", got ", DataTypeString(attributes.output_types[i]), ".");
  }
  return absl::OkStatus();
}

absl::Status FindHeldFilters(const StageAttributes& attributes, std::vector<StepProgram>* steps) {
  const size_t input_count = attributes.input_types.size();
  std::vector<bool> is_held(input_count);
  for (const int input : attributes.kept_inputs) {
    if (input < 0 || static_cast<size_t>(input) >= input_count) {
      return InvalidArgument("ConvStage: expected kept_inputs below ", input_count, ", got ", input,
                             ".");
    }
    is_held[input] = true;
  }
  for (StepProgram& step : *steps) {
    if (step.kind == ConvolutionKind::kBackwardFilter) continue;
    const Operand& filter = step.operands[step.filter_operand()];
    step.has_held_filter = !filter.is_step && is_held[filter.index];
  }
  return absl::OkStatus();
}

// Checks that a step reads only earlier steps of its lane. In a merged lane it must read none, and
// the first step's image; shapes decide later whether the steps can be merged.
absl::Status CheckReads(const Json& place, const std::vector<StepProgram>& steps, size_t operation,
                        const std::vector<size_t>& earlier, bool merged) {
  const StepProgram& step = steps[operation];
  const StepProgram& first = steps[earlier.empty() ? operation : earlier.front()];
  bool reads_image = step.operands.front() == first.operands.front();
  for (const Operand& operand : step.operands) {
    if (!operand.is_step) continue;
    reads_image = false;
    if (absl::c_linear_search(earlier, static_cast<size_t>(operand.index))) continue;
    return AtStep(step.name,
                  "expected to read earlier steps of its lane, got steps:", operand.index, ", '",
                  steps[operand.index].name, "'.");
  }
  if (!merged || reads_image) return absl::OkStatus();
  return place.Expected("a merged lane of steps that read one image and no other step");
}

absl::Status ParseLane(const Json& json, const std::vector<StepProgram>& steps,
                       std::vector<bool>* is_scheduled, StageSchedule* schedule) {
  using Limits = std::numeric_limits<int>;
  Lane lane;
  lane.priority = static_cast<int>(json["priority"].Integer(Limits::min(), Limits::max()));
  lane.merged = json["merged"].Bool();
  const std::vector<Json> items = json["steps"].Items();
  if (items.empty()) return json["steps"].Expected("one step or more");
  std::vector<size_t> earlier;
  for (const Json& item : items) {
    const size_t operation = item["operation"].Position(steps.size());
    const Json algorithm = item["algorithm"];
    if ((*is_scheduled)[operation]) return item.Expected("each operation on one lane");
    (*is_scheduled)[operation] = true;
    TF_RETURN_IF_ERROR(CheckReads(json, steps, operation, earlier, lane.merged));
    earlier.push_back(operation);
    Step step;
    step.name = steps[operation].name;
    if (!algorithm.is_null()) step.algorithm = algorithm.Text();
    lane.steps.push_back(schedule->stage.steps.size());
    schedule->stage.steps.push_back(std::move(step));
    schedule->operations.push_back(operation);
  }
  schedule->stage.lanes.push_back(std::move(lane));
  return json.error();
}

absl::Status ParseSchedules(const Json& schedules, StageProgram* program) {
  const std::vector<StepProgram>& steps = program->steps;
  const std::vector<Json> items = schedules.Items();
  if (items.empty()) return schedules.Expected("one schedule or more");
  int64_t least_batch_size = 1;
  for (const Json& item : items) {
    StageSchedule schedule;
    if (const Json batch_size = item["batch_size"]; items.size() > 1 || !batch_size.is_null()) {
      schedule.batch_size = batch_size.Integer(least_batch_size, std::numeric_limits<int>::max());
      least_batch_size = schedule.batch_size + 1;
    }
    const Json lanes = item["stage"]["lanes"];
    std::vector<bool> is_scheduled(steps.size(), false);
    for (const Json& lane : lanes.Items()) {
      TF_RETURN_IF_ERROR(ParseLane(lane, steps, &is_scheduled, &schedule));
    }
    if (schedule.operations.size() < steps.size())
      return lanes.Expected("a lane for every operation");
    program->schedules.push_back(std::move(schedule));
  }
  return schedules.error();
}

// By the core's status codes.
constexpr absl::StatusCode kStatusCodes[] = {
    absl::StatusCode::kOk,
    absl::StatusCode::kInvalidArgument,
    absl::StatusCode::kUnimplemented,
    absl::StatusCode::kResourceExhausted,
    absl::StatusCode::kUnavailable,
    absl::StatusCode::kInternal,
};

}  // namespace

absl::Status ToAbslStatus(const Status& status) {
  return absl::Status(kStatusCodes[static_cast<int>(status.code())], status.message());
}

Status FromAbslStatus(const absl::Status& status) {
  const auto* const code = absl::c_find(kStatusCodes, status.code());
  return Status(code == std::end(kStatusCodes) ? StatusCode::kInternal
                                               : static_cast<StatusCode>(code - kStatusCodes),
                std::string(status.message()));
}

int StepProgram::image_dimension(int i) const {
  return GetTensorSpatialDimIndex(rank(), format, i - first_spatial());
}

absl::Status ParseConvolution(const NodeDef& node, StepProgram* step) {
  step->name = node.name();
  step->node_def = node;
  TF_RETURN_IF_ERROR(ParseKind(node, step));
  const absl::Status status = ParseAttributes(step);
  if (status.ok() || absl::StartsWith(status.message(), "ConvStage")) return status;
  return AtStep(step->name, status.message());
}

absl::Status ParseStageProgram(const StageAttributes& attributes, StageProgram* program) {
  TF_RETURN_IF_ERROR(ReadSteps(attributes, program));
  TF_RETURN_IF_ERROR(ReadResults(attributes, program));
  TF_RETURN_IF_ERROR(FindHeldFilters(attributes, &program->steps));
  Value value;
  const absl::Status read =
      google::protobuf::util::JsonStringToMessage(attributes.schedules, &value);
  if (!read.ok()) {
    return InvalidArgument("ConvStage schedules: expected a JSON document: ", read.message());
  }
  absl::Status error;
  return ParseSchedules(Json(value, "$", &error), program);
}

}  // namespace tf_interop
