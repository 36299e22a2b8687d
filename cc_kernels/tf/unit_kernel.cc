// TfInterop>Unit on a CPU: its steps' own kernels, run back to back on one core or a few, or once
// for each part of the batch.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc_kernels/core/timeline.h"
#include "cc_kernels/tf/core_lease.h"
#include "cc_kernels/tf/narrow_device.h"
#include "cc_kernels/tf/onednn_names.h"
#include "cc_kernels/tf/primitive_cache.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/threadpool.h"
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
  bool is_of_batch = false;        // reads, by way of other steps too, an input that is split
  int sizes_of_batch = -1;         // the operand that is sizes of the whole batch; -1 where none is
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
  std::vector<int> cores;  // for each of these, or one for all
  std::vector<int64_t> split_inputs;
  int value_count = 0;
  std::vector<DataType> onednn_types;  // of what steps with kernels of oneDNN's read and give

 private:
  absl::Status ReadStep(const NodeDef& node);
  absl::Status ReadOperand(absl::string_view text, Operand* operand, DataType* dtype) const;
  absl::Status MakeKernel(NodeDef node, std::unique_ptr<OpKernel>* kernel) const;
  void FindLastReads();
  absl::Status FindStepsOfBatch();

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
  TF_RETURN_IF_ERROR(context_->GetAttr("cores", &cores));
  TF_RETURN_IF_ERROR(context_->GetAttr("split_inputs", &split_inputs));
  for (const auto& [name, inputs] :
       {std::pair("constant_inputs", &constant_inputs_), {"split_inputs", &split_inputs}}) {
    for (const int64_t input : *inputs) {
      if (input < 0 || input >= context_->num_inputs()) {
        return InvalidArgument("Expected ", name, " from 0 to ", context_->num_inputs() - 1,
                               ", got ", input, ".");
      }
    }
  }
  if (!batch_sizes.empty() && context_->num_inputs() == 0) {
    return InvalidArgument("Expected an input, whose batch size is one of batch_sizes, got none.");
  }
  const size_t core_count = std::max<size_t>(1, batch_sizes.size());
  if (cores.empty()) cores.assign(core_count, 1);
  if (cores.size() != core_count || *absl::c_min_element(cores) < 1) {
    return InvalidArgument("Expected ", core_count,
                           " cores from 1 on, one for each batch size, got [",
                           absl::StrJoin(cores, ", "), "].");
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
  return FindStepsOfBatch();
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

// Which operand of a step states all sizes of its result; -1 where none does.
int SizesOperand(const tensorflow::OpKernel& kernel) {
  const absl::string_view op = kernel.type_string_view();  // maybe oneDNN's
  if (op == "Reshape") return 1;
  const bool is_transposed_convolution =
      absl::EndsWith(op, "Conv2DBackpropInput") || absl::EndsWith(op, "Conv3DBackpropInputV2");
  return is_transposed_convolution ? 0 : -1;
}

absl::Status UnitReader::FindStepsOfBatch() {
  if (split_inputs.empty()) return absl::OkStatus();
  std::vector<bool> values(value_count);  // whether it is of a part of the batch
  for (Step& step : steps) {
    const auto is_of_batch = [&](const auto& read) {
      const Operand& operand = read.operand;
      return operand.is_input ? absl::c_linear_search(split_inputs, operand.index)
                              : values[operand.index];
    };
    step.is_of_batch = absl::c_any_of(step.reads, is_of_batch);
    const int sizes = SizesOperand(*step.kernel);
    if (step.is_of_batch && sizes >= 0 && !is_of_batch(step.reads[sizes])) {
      step.sizes_of_batch = sizes;
    }
    for (int port = 0; port < step.kernel->num_outputs(); ++port) {
      values[step.first_value + port] = step.is_of_batch;
    }
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].is_input || !values[results[i].index]) {
      return InvalidArgument("Expected results of steps that read a split input, got result ", i,
                             ", which does not depend on any.");
    }
    const DataType dtype = context_->output_type(static_cast<int>(i));
    if (!tensorflow::DataTypeCanUseMemcpy(dtype)) {
      return InvalidArgument("Expected numbers as results of a split unit, got a ",
                             DataTypeString(dtype), " as result ", i, ".");
    }
  }
  return absl::OkStatus();
}

absl::Status AtStep(const OpKernel& kernel, const absl::Status& status) {
  return tensorflow::errors::CreateWithUpdatedMessage(
      status, absl::StrCat(status.message(), " [at step '", kernel.name_view(), "' of the unit]"));
}

// The part of a batch that a run of steps is for: the images from `first` to before `last`.
struct Part {
  int64_t batch_size = 0;
  int64_t first = 0;
  int64_t last = 0;

  int64_t size() const { return last - first; }
};

// A run of steps, with what they give.
class UnitRun {
 public:
  enum class Kind {
    kWhole,   // of all steps, over the whole batch
    kShared,  // of the steps whose values all parts read
    kPart,    // of all other steps, over a part
  };

  // `inputs` are those of `context`, or what of them is of the part. They outlive this.
  UnitRun(const OpKernelContext& context, Kind kind, absl::Span<const Operand> results,
          int value_count, absl::Span<const tensorflow::TensorValue> inputs, const Part& part = {})
      : context_(context),
        kind_(kind),
        inputs_(inputs),
        part_(part),
        params_(Params(context)),
        derived_(&params_, /*num_outputs=*/0),
        attributes_(value_count),
        values_(value_count) {
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].is_input) continue;
      attributes_[results[i].index] = context.output_alloc_attr(static_cast<int>(i));
    }
  }
  UnitRun(const UnitRun&) = delete;
  UnitRun& operator=(const UnitRun&) = delete;

  absl::Status Run(const Step& step, tensorflow::DeviceBase* device);

  // Values of steps that another run made, for all parts.
  void Share(const UnitRun& shared) {
    for (size_t i = 0; i < values_.size(); ++i) {
      if (shared.values_[i] != nullptr) values_[i] = std::make_unique<Tensor>(*shared.values_[i]);
    }
  }

  const Tensor& value(int index) const { return *values_[index]; }

 private:
  static OpKernelContext::Params Params(const OpKernelContext& context) {
    OpKernelContext::Params params = *context.params();
    params.forward_from_array = nullptr;
    params.outputs_required_array = nullptr;
    params.eigen_gpu_device = nullptr;  // that of `context`, which owns it
    params.track_allocations = false;   // whoever tracks reads those of `context`
    return params;
  }

  // Sizes whose first is the batch's, as those of the part.
  Tensor SizesOfPart(const Tensor& sizes) const;

  const OpKernelContext& context_;
  const Kind kind_;
  const absl::Span<const tensorflow::TensorValue> inputs_;
  const Part part_;
  OpKernelContext::Params params_;
  OpKernelContext derived_;
  absl::InlinedVector<AllocatorAttributes, 16> attributes_;  // of each value
  absl::InlinedVector<std::unique_ptr<Tensor>, 16> values_;
};

absl::Status UnitRun::Run(const Step& step, tensorflow::DeviceBase* device) {
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
      const tensorflow::TensorValue& input = inputs_[index];
      if (kind_ == Kind::kWhole && read.is_last && !input.is_ref() && input->RefCountIsOne()) {
        inputs.emplace_back(&taken.emplace_back(std::move(*input.tensor)));
      } else {
        inputs.push_back(input);
      }
      input_attributes.push_back(context_.input_alloc_attr(index));
    } else {
      inputs.emplace_back(values_[index].get());
      input_attributes.push_back(attributes_[index]);
    }
    if (!read.is_last || kind_ == Kind::kShared) held.push_back(*inputs.back().tensor);
  }
  Tensor sizes;
  if (kind_ == Kind::kPart && step.sizes_of_batch >= 0) {
    tensorflow::TensorValue& given = inputs[step.sizes_of_batch];
    sizes = SizesOfPart(*given.tensor);
    given = tensorflow::TensorValue(&sizes);
  }
  params_.device = device;
  params_.op_kernel = kernel;
  params_.inputs = inputs;
  params_.input_alloc_attrs = input_attributes;
  params_.output_attr_array = attributes_.data() + step.first_value;
  derived_.ResetOutputs(kernel->num_outputs());
  {
    const tsl::profiler::TraceMe trace(
        [&] { return kernel->TraceString(derived_, tsl::profiler::TfOpDetailsEnabled()); },
        tsl::profiler::GetTFTraceMeLevel(kernel->IsExpensive()));
    kernel->Compute(&derived_);
  }
  if (!derived_.status().ok()) return AtStep(*kernel, derived_.status());
  for (int port = 0; port < kernel->num_outputs(); ++port) {
    const int value = step.first_value + port;
    values_[value].reset(derived_.release_output(port).tensor);
    if (values_[value] == nullptr && !absl::c_linear_search(step.unread_values, value)) {
      return AtStep(*kernel, absl::InternalError(absl::StrCat("Missing ", port, "-th output")));
    }
  }
  for (const int value : step.unread_values) values_[value].reset();
  if (kind_ == Kind::kShared) return absl::OkStatus();
  for (const int value : step.dead_values) values_[value].reset();
  return absl::OkStatus();
}

Tensor UnitRun::SizesOfPart(const Tensor& sizes) const {
  Tensor of_part = tensorflow::tensor::DeepCopy(sizes);
  const auto set_first = [&](auto flat) {
    if (flat.size() > 0 && flat(0) == part_.batch_size) flat(0) = part_.size();
  };
  if (sizes.dtype() == tensorflow::DT_INT32) set_first(of_part.flat<int32_t>());
  if (sizes.dtype() == tensorflow::DT_INT64) set_first(of_part.flat<int64_t>());
  return of_part;
}

class Unit : public OpKernel {
 public:
  explicit Unit(OpKernelConstruction* context) : OpKernel(context) {
    UnitReader reader(context);
    OP_REQUIRES_OK(context, reader.Read());
    steps_ = std::move(reader.steps);
    results_ = std::move(reader.results);
    batch_sizes_ = std::move(reader.batch_sizes);
    cores_ = std::move(reader.cores);
    split_inputs_ = std::move(reader.split_inputs);
    value_count_ = reader.value_count;
    primitive_types_ = PrimitiveCacheTypes(reader.onednn_types);
  }

  void Compute(OpKernelContext* context) override {
    const TimelineCall call(&timeline_calls_, name_view());
    const ThreadSpan span(call, [&] {
      return absl::StrJoin(steps_, " ", [](std::string* names, const Step& step) {
        absl::StrAppend(names, step.kernel->name_view());
      });
    });
    const int all_cores = context->device()->tensorflow_cpu_worker_threads()->num_threads;
    const int cores = CoresFor(*context, all_cores);
    const int64_t part_count = split_inputs_.empty() ? 0 : PartCount(*context, all_cores);
    if (cores == 0 || part_count == 1) {
      Run(context, context->device());
    } else if (part_count > 1) {
      RunParts(context, part_count, all_cores, call);
    } else {
      FewCores few(context, cores, all_cores, primitive_types_);
      Run(context, &few.device);
    }
  }

 private:
  // What a thread needs that is to compute on some of the cores.
  struct FewCores {
    FewCores(OpKernelContext* context, int cores, int all_cores, absl::Span<const DataType> types)
        : lease(cores, all_cores),
          device(context->device(), lease),
          primitives(types, lease.cores()) {}

    const CoreLease lease;
    NarrowDevice device;
    const NarrowPrimitives primitives;
    // As on all threads of TensorFlow's pools; a Session may run its ops on the caller's thread.
    const tsl::port::ScopedFlushDenormal flush;
  };

  // How many cores the steps are to run on; 0 for TensorFlow's own way to run them.
  int CoresFor(const OpKernelContext& context, int all_cores) const {
    size_t place = 0;
    if (!batch_sizes_.empty()) {
      const Tensor& first = context.input(0);
      if (first.dims() == 0) return 0;
      place = absl::c_find(batch_sizes_, first.dim_size(0)) - batch_sizes_.begin();
      if (place == batch_sizes_.size()) return 0;
    }
    return cores_[place] > 1 && cores_[place] >= all_cores ? 0 : cores_[place];
  }

  const Tensor& SplitInput(const OpKernelContext& context, size_t i) const {
    return context.input(static_cast<int>(split_inputs_[i]));
  }

  // 1 where the inputs to be split do not agree about the batch.
  int64_t PartCount(const OpKernelContext& context, int all_cores) const {
    if (SplitInput(context, 0).dims() == 0) return 1;
    const int64_t batch_size = SplitInput(context, 0).dim_size(0);
    for (size_t i = 1; i < split_inputs_.size(); ++i) {
      const Tensor& input = SplitInput(context, i);
      if (input.dims() == 0 || input.dim_size(0) != batch_size) return 1;
    }
    return std::max<int64_t>(1, std::min<int64_t>(batch_size, all_cores));
  }

  void Run(OpKernelContext* context, tensorflow::DeviceBase* device) {
    UnitRun run(*context, UnitRun::Kind::kWhole, results_, value_count_, context->params()->inputs);
    for (const Step& step : steps_) OP_REQUIRES_OK(context, run.Run(step, device));
    for (size_t i = 0; i < results_.size(); ++i) {
      const Operand& result = results_[i];
      context->set_output(static_cast<int>(i),
                          result.is_input ? context->input(result.index) : run.value(result.index));
    }
  }

  // Divides the batch as TensorFlow divides an operation, but all steps at once: each part runs
  // through them on its share of the cores.
  void RunParts(OpKernelContext* context, int64_t part_count, int all_cores,
                const TimelineCall& call) {
    const int64_t batch_size = SplitInput(*context, 0).dim_size(0);
    UnitRun shared(*context, UnitRun::Kind::kShared, results_, value_count_,
                   context->params()->inputs);
    {
      FewCores one(context, /*cores=*/1, all_cores, primitive_types_);
      for (const Step& step : steps_) {
        if (!step.is_of_batch) OP_REQUIRES_OK(context, shared.Run(step, &one.device));
      }
    }
    const int cores = all_cores / static_cast<int>(part_count);
    std::vector<absl::Status> statuses(part_count);
    std::vector<std::vector<Tensor>> results(part_count);
    const auto run_parts = [&](int64_t first, int64_t last) {
      FewCores few(context, cores, all_cores, primitive_types_);
      for (int64_t i = first; i < last; ++i) {
        const Part part = {batch_size, i * batch_size / part_count,
                           (i + 1) * batch_size / part_count};
        const ThreadSpan span(
            call, [&] { return absl::StrCat("images ", part.first, " to ", part.last - 1); });
        statuses[i] = RunPart(*context, &few.device, shared, part, &results[i]);
      }
    };
    context->device()->tensorflow_cpu_worker_threads()->workers->ParallelFor(
        part_count, tsl::thread::ThreadPool::SchedulingParams::Fixed(/*block_size=*/1), run_parts);
    for (const absl::Status& status : statuses) OP_REQUIRES_OK(context, status);
    for (int i = 0; i < context->num_outputs(); ++i) {
      OP_REQUIRES_OK(context, Join(context, batch_size, results, i));
    }
  }

  absl::Status RunPart(const OpKernelContext& context, tensorflow::DeviceBase* device,
                       const UnitRun& shared, const Part& part, std::vector<Tensor>* results) {
    std::vector<Tensor> slices(split_inputs_.size());
    absl::InlinedVector<tensorflow::TensorValue, 16> inputs(context.params()->inputs.begin(),
                                                            context.params()->inputs.end());
    for (size_t i = 0; i < slices.size(); ++i) {
      slices[i] = SplitInput(context, i).Slice(part.first, part.last);
      if (!slices[i].IsAligned()) slices[i] = tensorflow::tensor::DeepCopy(slices[i]);
      inputs[split_inputs_[i]] = tensorflow::TensorValue(&slices[i]);
    }
    UnitRun run(context, UnitRun::Kind::kPart, results_, value_count_, inputs, part);
    run.Share(shared);
    for (const Step& step : steps_) {
      if (step.is_of_batch) TF_RETURN_IF_ERROR(run.Run(step, device));
    }
    for (const Operand& result : results_) {
      const Tensor& value = results->emplace_back(run.value(result.index));
      if (value.dims() == 0 || value.dim_size(0) != part.size()) {
        return absl::InternalError(absl::StrCat("Expected results of ", part.size(),
                                                " images of a batch of ", part.batch_size,
                                                ", got the shape ", value.shape().DebugString()));
      }
    }
    return absl::OkStatus();
  }

  static absl::Status Join(OpKernelContext* context, int64_t batch_size,
                           absl::Span<const std::vector<Tensor>> parts, int result) {
    tensorflow::TensorShape shape = parts[0][result].shape();
    shape.set_dim(0, batch_size);
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(result, shape, &output));
    int64_t first = 0;
    for (const std::vector<Tensor>& part : parts) {
      const int64_t last = first + part[result].dim_size(0);
      Tensor place = output->Slice(first, last);
      if (place.shape() != part[result].shape()) {
        return absl::InternalError(absl::StrCat("Expected parts of one shape, got ",
                                                part[result].shape().DebugString(), " and ",
                                                place.shape().DebugString()));
      }
      const absl::string_view bytes = part[result].tensor_data();
      std::memcpy(const_cast<char*>(place.tensor_data().data()), bytes.data(), bytes.size());
      first = last;
    }
    return absl::OkStatus();
  }

  std::vector<Step> steps_;
  std::vector<Operand> results_;
  std::vector<int64_t> batch_sizes_;
  std::vector<int> cores_;
  std::vector<int64_t> split_inputs_;
  int value_count_ = 0;
  std::vector<DataType> primitive_types_;
  TimelineCalls timeline_calls_;
};

REGISTER_KERNEL_BUILDER(Name("TfInterop>Unit").Device(tensorflow::DEVICE_CPU), Unit);

}  // namespace
}  // namespace tf_interop
