// TfInterop>Unit on a CPU: its steps' own kernels, run back to back on the calling thread.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc_kernels/tf/narrow_device.h"
#include "cc_kernels/tf/onednn_names.h"
#include "cc_kernels/tf/primitive_cache.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/errors.h"
#include "tsl/platform/denormal.h"
#include "tsl/profiler/lib/traceme.h"

namespace tf_interop {
namespace {

using tensorflow::AllocatorAttributes;
using tensorflow::DataType;
using tensorflow::DataTypeString;
using tensorflow::NodeDef;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

template <typename... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// An input of the op, or a value: an output of a step. Values are numbered over all steps.
struct Operand {
  bool is_input = false;
  int index = 0;
};

struct Read {
  Operand operand;
  // Nothing reads the operand after this, and it is no result of the op.
  bool is_last = false;
};

struct Step {
  std::unique_ptr<OpKernel> kernel;
  std::vector<Read> reads;
  int first_value = 0;
  std::vector<int> unread_values;  // of this step: freed when it has run
  std::vector<int> dead_values;    // of all steps: those that it is the last to read
};

// What the attributes of a unit say, on the way to its steps.
class UnitReader {
 public:
  explicit UnitReader(OpKernelConstruction* context) : context_(context) {}

  absl::Status Read();

  std::vector<Step> steps;
  std::vector<Operand> results;
  std::vector<int64_t> batch_sizes;
  int value_count = 0;
  std::vector<DataType> onednn_types;  // of what steps with kernels of oneDNN's read and give

 private:
  absl::Status ReadStep(const NodeDef& node);
  absl::Status ReadOperand(absl::string_view text, Operand* operand, DataType* dtype) const;
  absl::Status MakeKernel(NodeDef node, std::unique_ptr<OpKernel>* kernel) const;
  void FindLastReads();

  bool IsConstant(const Operand& operand) const {
    return operand.is_input && absl::c_linear_search(constant_inputs_, operand.index);
  }

  OpKernelConstruction* const context_;
  std::vector<int64_t> constant_inputs_;
  std::vector<int> output_counts_;  // of each step's op, of which its kernel may have more
};

absl::Status UnitReader::Read() {
  std::vector<std::string> serialized;
  std::vector<std::string> result_names;
  TF_RETURN_IF_ERROR(context_->GetAttr("steps", &serialized));
  TF_RETURN_IF_ERROR(context_->GetAttr("results", &result_names));
  TF_RETURN_IF_ERROR(context_->GetAttr("constant_inputs", &constant_inputs_));
  TF_RETURN_IF_ERROR(context_->GetAttr("batch_sizes", &batch_sizes));
  for (const int64_t input : constant_inputs_) {
    if (input < 0 || input >= context_->num_inputs()) {
      return InvalidArgument("Expected constant_inputs from 0 to ", context_->num_inputs() - 1,
                             ", got ", input, ".");
    }
  }
  if (!batch_sizes.empty() && context_->num_inputs() == 0) {
    return InvalidArgument("Expected an input, whose batch size is one of batch_sizes, got none.");
  }
  for (const std::string& each : serialized) {
    NodeDef node;
    if (!node.ParseFromString(each)) {
      return InvalidArgument("Expected a serialized NodeDef at step ", steps.size(),
                             ", got other bytes.");
    }
    const absl::Status status = ReadStep(node);
    if (!status.ok()) {
      return tensorflow::errors::CreateWithUpdatedMessage(
          status, absl::StrCat(status.message(), " [at step '", node.name(), "']"));
    }
  }
  if (static_cast<int>(result_names.size()) != context_->num_outputs()) {
    return InvalidArgument("Expected results of ", context_->num_outputs(), " outputs, got ",
                           result_names.size(), ".");
  }
  for (const std::string& name : result_names) {
    const DataType expected = context_->output_type(static_cast<int>(results.size()));
    DataType dtype = tensorflow::DT_INVALID;
    TF_RETURN_IF_ERROR(ReadOperand(name, &results.emplace_back(), &dtype));
    if (dtype != expected) {
      return InvalidArgument("Expected a ", DataTypeString(expected), " as result ",
                             results.size() - 1, ", got '", name, "', a ", DataTypeString(dtype),
                             ".");
    }
  }
  FindLastReads();
  return absl::OkStatus();
}

absl::Status UnitReader::ReadStep(const NodeDef& node) {
  const tensorflow::OpDef* op_def = nullptr;
  TF_RETURN_IF_ERROR(tensorflow::OpRegistry::Global()->LookUpOpDef(node.op(), &op_def));
  if (op_def->is_stateful()) {
    return InvalidArgument("Expected an op without state, got ", node.op(), ".");
  }
  NodeDef complete = node;
  tensorflow::AddDefaultsToNodeDef(*op_def, &complete);
  tensorflow::DataTypeVector input_types;
  tensorflow::DataTypeVector output_types;
  TF_RETURN_IF_ERROR(tensorflow::InOutTypesForNode(complete, *op_def, &input_types, &output_types));

  Step step;
  if (node.input_size() != static_cast<int>(input_types.size())) {
    return InvalidArgument("Expected ", input_types.size(), " operands of ", node.op(), ", got ",
                           node.input_size(), ".");
  }
  for (int i = 0; i < node.input_size(); ++i) {
    DataType dtype = tensorflow::DT_INVALID;
    TF_RETURN_IF_ERROR(ReadOperand(node.input(i), &step.reads.emplace_back().operand, &dtype));
    if (dtype != input_types[i]) {
      return InvalidArgument("Expected a ", DataTypeString(input_types[i]), " as operand ", i,
                             ", got '", node.input(i), "', a ", DataTypeString(dtype), ".");
    }
  }
  const bool has_constant_filter = step.reads.size() > 1 && IsConstant(step.reads[1].operand);
  NodeDef renamed = node;
  RenameForOneDnn(has_constant_filter, &renamed);
  // Fused ops that oneDNN's kernel does not know it refuses when it is made.
  absl::Status status = MakeKernel(renamed, &step.kernel);
  if (!status.ok() && renamed.op() != node.op()) status = MakeKernel(node, &step.kernel);
  TF_RETURN_IF_ERROR(status);
  if (step.kernel->AsAsync() != nullptr) {
    return InvalidArgument("Expected an op with a synchronous kernel, got ", node.op(), ".");
  }
  step.first_value = value_count;
  value_count += step.kernel->num_outputs();
  output_counts_.push_back(static_cast<int>(output_types.size()));
  if (absl::StartsWith(step.kernel->type_string_view(), "_Mkl")) {
    onednn_types.insert(onednn_types.end(), input_types.begin(), input_types.end());
    onednn_types.insert(onednn_types.end(), output_types.begin(), output_types.end());
  }
  steps.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status UnitReader::ReadOperand(absl::string_view text, Operand* operand,
                                     DataType* dtype) const {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  std::vector<int> numbers(parts.size() - 1);
  bool is_known = true;
  for (size_t i = 0; i < numbers.size(); ++i) {
    is_known = is_known && absl::SimpleAtoi(parts[i + 1], &numbers[i]) && numbers[i] >= 0;
  }
  if (is_known && parts[0] == "inputs" && numbers.size() == 1 &&
      numbers[0] < context_->num_inputs()) {
    *operand = {/*is_input=*/true, numbers[0]};
    *dtype = context_->input_type(numbers[0]);
    return absl::OkStatus();
  }
  const int step_count = static_cast<int>(steps.size());
  if (is_known && parts[0] == "steps" && numbers.size() == 2 && numbers[0] < step_count &&
      numbers[1] < output_counts_[numbers[0]]) {
    const Step& step = steps[numbers[0]];
    *operand = {/*is_input=*/false, step.first_value + numbers[1]};
    *dtype = step.kernel->output_type(numbers[1]);
    return absl::OkStatus();
  }
  return InvalidArgument("Expected 'inputs:<i>' of ", context_->num_inputs(),
                         " inputs or 'steps:<j>:<port>', an output of one of the ", step_count,
                         " steps before, got '", text, "'.");
}

absl::Status UnitReader::MakeKernel(NodeDef node, std::unique_ptr<OpKernel>* kernel) const {
  const tensorflow::OpDef* op_def = nullptr;
  TF_RETURN_IF_ERROR(tensorflow::OpRegistry::Global()->LookUpOpDef(node.op(), &op_def));
  tensorflow::AddDefaultsToNodeDef(*op_def, &node);
  TF_RETURN_IF_ERROR(tensorflow::ValidateNodeDef(node, *op_def));
  std::shared_ptr<const tensorflow::NodeProperties> properties;
  TF_RETURN_IF_ERROR(tensorflow::NodeProperties::CreateFromNodeDef(
      std::move(node), tensorflow::OpRegistry::Global(), &properties));
  absl::Status status;
  *kernel =
      tensorflow::CreateOpKernel(tensorflow::DeviceType(tensorflow::DEVICE_CPU), context_->device(),
                                 context_->device()->GetAllocator(AllocatorAttributes()),
                                 properties, context_->graph_def_version(), &status);
  return status;
}

void UnitReader::FindLastReads() {
  std::vector<bool> inputs(context_->num_inputs());  // whether something later reads it
  std::vector<bool> values(value_count);
  const auto mark = [&](const Operand& operand) {
    std::vector<bool>& is_read = operand.is_input ? inputs : values;
    const bool is_first = !is_read[operand.index];
    is_read[operand.index] = true;
    return is_first;
  };
  for (const Operand& result : results) mark(result);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    for (int port = 0; port < step->kernel->num_outputs(); ++port) {
      const int value = step->first_value + port;
      if (!values[value]) step->unread_values.push_back(value);
    }
    for (auto read = step->reads.rbegin(); read != step->reads.rend(); ++read) {
      read->is_last = mark(read->operand);
      if (read->is_last && !read->operand.is_input) {
        step->dead_values.push_back(read->operand.index);
      }
    }
  }
}

absl::Status AtStep(const OpKernel& kernel, const absl::Status& status) {
  return tensorflow::errors::CreateWithUpdatedMessage(
      status, absl::StrCat(status.message(), " [at step '", kernel.name_view(), "' of the unit]"));
}

class Unit : public OpKernel {
 public:
  explicit Unit(OpKernelConstruction* context) : OpKernel(context), device_(context->device()) {
    UnitReader reader(context);
    OP_REQUIRES_OK(context, reader.Read());
    steps_ = std::move(reader.steps);
    results_ = std::move(reader.results);
    batch_sizes_ = std::move(reader.batch_sizes);
    value_count_ = reader.value_count;
    primitive_types_ = PrimitiveCacheTypes(reader.onednn_types);
  }

  void Compute(OpKernelContext* context) override {
    if (IsNarrow(*context)) {
      const NarrowPrimitives primitives(primitive_types_);
      // As on all threads of TensorFlow's pools; a Session may run its ops on the caller's thread.
      const tsl::port::ScopedFlushDenormal flush;
      Run(context, &device_);
    } else {
      Run(context, context->device());
    }
  }

 private:
  using Values = absl::InlinedVector<std::unique_ptr<Tensor>, 16>;
  using Attributes = absl::InlinedVector<AllocatorAttributes, 16>;

  bool IsNarrow(const OpKernelContext& context) const {
    if (batch_sizes_.empty()) return true;
    const Tensor& first = context.input(0);
    return first.dims() > 0 && absl::c_linear_search(batch_sizes_, first.dim_size(0));
  }

  void Run(OpKernelContext* context, tensorflow::DeviceBase* device) {
    Values values(value_count_);
    Attributes attributes(value_count_);
    for (size_t i = 0; i < results_.size(); ++i) {
      if (results_[i].is_input) continue;
      attributes[results_[i].index] = context->output_alloc_attr(static_cast<int>(i));
    }
    OpKernelContext::Params params = *context->params();
    params.device = device;
    params.forward_from_array = nullptr;
    params.outputs_required_array = nullptr;
    params.eigen_gpu_device = nullptr;  // that of `context`, which owns it
    params.track_allocations = false;   // whoever tracks reads those of `context`
    OpKernelContext derived(&params, /*num_outputs=*/0);
    for (const Step& step : steps_) {
      RunStep(step, *context, &params, &attributes, &derived, &values);
      OP_REQUIRES(context, derived.status().ok(), AtStep(*step.kernel, derived.status()));
    }
    for (size_t i = 0; i < results_.size(); ++i) {
      const Operand& result = results_[i];
      context->set_output(static_cast<int>(i),
                          result.is_input ? context->input(result.index) : *values[result.index]);
    }
  }

  // Leaves an error as the status of `derived`.
  static void RunStep(const Step& step, const OpKernelContext& context,
                      OpKernelContext::Params* params, Attributes* attributes,
                      OpKernelContext* derived, Values* values) {
    OpKernel* const kernel = step.kernel.get();
    absl::InlinedVector<tensorflow::TensorValue, 4> inputs;
    absl::InlinedVector<AllocatorAttributes, 4> input_attributes;
    // Kernels compute in place where nobody else holds a tensor, so what is read again is held.
    absl::InlinedVector<Tensor, 2> held;
    // The executor holds an input until the op returns. What nobody else holds a kernel may
    // overwrite; so it may be taken, and is free as soon as stock TensorFlow would free it.
    absl::InlinedVector<Tensor, 2> taken;
    taken.reserve(step.reads.size());
    for (const Read& read : step.reads) {
      const int index = read.operand.index;
      if (read.operand.is_input) {
        const tensorflow::TensorValue& input = context.params()->inputs[index];
        if (read.is_last && !input.is_ref() && input->RefCountIsOne()) {
          inputs.emplace_back(&taken.emplace_back(std::move(*input.tensor)));
        } else {
          inputs.push_back(input);
        }
        input_attributes.push_back(context.input_alloc_attr(index));
      } else {
        inputs.emplace_back((*values)[index].get());
        input_attributes.push_back((*attributes)[index]);
      }
      if (!read.is_last) held.push_back(*inputs.back().tensor);
    }
    params->op_kernel = kernel;
    params->inputs = inputs;
    params->input_alloc_attrs = input_attributes;
    params->output_attr_array = attributes->data() + step.first_value;
    derived->ResetOutputs(kernel->num_outputs());
    const tsl::profiler::TraceMe trace(
        [&] { return kernel->TraceString(*derived, tsl::profiler::TfOpDetailsEnabled()); },
        tsl::profiler::GetTFTraceMeLevel(kernel->IsExpensive()));
    kernel->Compute(derived);
    if (!derived->status().ok()) return;
    for (int port = 0; port < kernel->num_outputs(); ++port) {
      const int value = step.first_value + port;
      (*values)[value].reset(derived->release_output(port).tensor);
      if ((*values)[value] == nullptr && !absl::c_linear_search(step.unread_values, value)) {
        derived->SetStatus(absl::InternalError(absl::StrCat("Missing ", port, "-th output")));
        return;
      }
    }
    for (const int value : step.unread_values) (*values)[value].reset();
    for (const int value : step.dead_values) (*values)[value].reset();
  }

  NarrowDevice device_;
  std::vector<Step> steps_;
  std::vector<Operand> results_;
  std::vector<int64_t> batch_sizes_;
  int value_count_ = 0;
  std::vector<DataType> primitive_types_;
};

REGISTER_KERNEL_BUILDER(Name("TfInterop>Unit").Device(tensorflow::DEVICE_CPU), Unit);

}  // namespace
}  // namespace tf_interop
