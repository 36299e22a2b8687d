// TfInterop>Unit on a CPU: runs the kernels of its steps back to back, on one core or a few, or
// once for each part of the batch.
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
#include "cc_kernels/tf/narrow_device.h"
#include "cc_kernels/tf/primitive_cache.h"
#include "cc_kernels/tf/stock_kernel.h"
#include "tensorflow/core/framework/node_def_util.h"
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

// Operands are numbered: the inputs of the op, then the outputs of all steps.
struct Read {
  int operand = 0;
  bool is_last = false;  // nothing reads the operand later, and the op does not return it
};

struct Step {
  std::unique_ptr<OpKernel> kernel;
  std::vector<Read> reads;
  int output_count = 0;             // of the step's op; its kernel may have more
  int first_output = 0;             // its number among the operands
  bool is_of_batch = false;         // reads a split input, directly or through other steps
  int sizes_of_batch = -1;          // the read of sizes of the whole batch, or -1
  std::vector<int> unread_outputs;  // freed after the step
  std::vector<int> dead_operands;   // outputs of other steps that this is the last to read
};

// The attributes of a unit, read and checked.
struct UnitProgram {
  std::vector<Step> steps;
  std::vector<int> results;  // operands
  std::vector<int64_t> batch_sizes;
  std::vector<int> cores;  // for each batch size, or one for all
  std::vector<int64_t> split_inputs;
  int operand_count = 0;
  std::vector<DataType> primitive_types;  // see PrimitiveCacheTypes
};

class UnitReader {
 public:
  UnitReader(OpKernelConstruction* context, UnitProgram* unit) : context_(context), unit_(*unit) {}

  absl::Status Read();

 private:
  absl::Status ReadAttributes(std::vector<std::string>* steps, std::vector<std::string>* results);
  absl::Status ReadStep(const NodeDef& node);
  absl::Status ReadOperand(absl::string_view text, int* operand, DataType* dtype) const;
  void FindLastReads();
  absl::Status FindStepsOfBatch();

  OpKernelConstruction* const context_;
  UnitProgram& unit_;
  std::vector<int64_t> constant_inputs_;
  std::vector<DataType> onednn_types_;  // read and written by steps with oneDNN's kernels
};

absl::Status UnitReader::Read() {
  std::vector<std::string> steps;
  std::vector<std::string> results;
  TF_RETURN_IF_ERROR(ReadAttributes(&steps, &results));
  unit_.operand_count = context_->num_inputs();
  for (const std::string& serialized : steps) {
    NodeDef node;
    if (!node.ParseFromString(serialized)) {
      return InvalidArgument("Expected a serialized NodeDef at step ", unit_.steps.size(),
                             ", got other bytes.");
    }
    const absl::Status status = ReadStep(node);
    if (!status.ok()) {
      return tensorflow::errors::CreateWithUpdatedMessage(
          status, absl::StrCat(status.message(), " [at step '", node.name(), "']"));
    }
  }
  unit_.primitive_types = PrimitiveCacheTypes(onednn_types_);
  if (static_cast<int>(results.size()) != context_->num_outputs()) {
    return InvalidArgument("Expected ", context_->num_outputs(),
                           " results, one for each output, got ", results.size(), ".");
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const DataType expected = context_->output_type(static_cast<int>(i));
    DataType dtype = tensorflow::DT_INVALID;
    TF_RETURN_IF_ERROR(ReadOperand(results[i], &unit_.results.emplace_back(), &dtype));
    if (dtype != expected) {
      return InvalidArgument("Expected a ", DataTypeString(expected), " as result ", i, ", got '",
                             results[i], "', a ", DataTypeString(dtype), ".");
    }
  }
  FindLastReads();
  return FindStepsOfBatch();
}

absl::Status UnitReader::ReadAttributes(std::vector<std::string>* steps,
                                        std::vector<std::string>* results) {
  TF_RETURN_IF_ERROR(context_->GetAttr("steps", steps));
  TF_RETURN_IF_ERROR(context_->GetAttr("results", results));
  TF_RETURN_IF_ERROR(context_->GetAttr("constant_inputs", &constant_inputs_));
  TF_RETURN_IF_ERROR(context_->GetAttr("batch_sizes", &unit_.batch_sizes));
  TF_RETURN_IF_ERROR(context_->GetAttr("cores", &unit_.cores));
  TF_RETURN_IF_ERROR(context_->GetAttr("split_inputs", &unit_.split_inputs));
  for (const auto& [name, inputs] :
       {std::pair("constant_inputs", &constant_inputs_), {"split_inputs", &unit_.split_inputs}}) {
    for (const int64_t input : *inputs) {
      if (input < 0 || input >= context_->num_inputs()) {
        return InvalidArgument("Expected ", name, " from 0 to ", context_->num_inputs() - 1,
                               ", got ", input, ".");
      }
    }
  }
  if (!unit_.batch_sizes.empty() && context_->num_inputs() == 0) {
    return InvalidArgument("Expected an input from which to read the batch size, got none.");
  }
  const size_t core_count = std::max<size_t>(1, unit_.batch_sizes.size());
  if (unit_.cores.empty()) unit_.cores.assign(core_count, 1);
  if (unit_.cores.size() != core_count || *absl::c_min_element(unit_.cores) < 1) {
    return InvalidArgument("Expected ", core_count,
                           " cores of at least 1, one for each batch size, got [",
                           absl::StrJoin(unit_.cores, ", "), "].");
  }
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
  const bool has_constant_filter =
      step.reads.size() > 1 && absl::c_linear_search(constant_inputs_, step.reads[1].operand);
  TF_RETURN_IF_ERROR(MakeStockKernel(context_->device(), context_->graph_def_version(),
                                     has_constant_filter, node, &step.kernel));
  step.output_count = static_cast<int>(output_types.size());
  step.first_output = unit_.operand_count;
  unit_.operand_count += step.kernel->num_outputs();
  if (absl::StartsWith(step.kernel->type_string_view(), "_Mkl")) {
    onednn_types_.insert(onednn_types_.end(), input_types.begin(), input_types.end());
    onednn_types_.insert(onednn_types_.end(), output_types.begin(), output_types.end());
  }
  unit_.steps.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status UnitReader::ReadOperand(absl::string_view text, int* operand, DataType* dtype) const {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  std::vector<int> numbers(parts.size() - 1);
  bool is_known = true;
  for (size_t i = 0; i < numbers.size(); ++i) {
    is_known = is_known && absl::SimpleAtoi(parts[i + 1], &numbers[i]) && numbers[i] >= 0;
  }
  if (is_known && parts[0] == "inputs" && numbers.size() == 1 &&
      numbers[0] < context_->num_inputs()) {
    *operand = numbers[0];
    *dtype = context_->input_type(numbers[0]);
    return absl::OkStatus();
  }
  const int step_count = static_cast<int>(unit_.steps.size());
  if (is_known && parts[0] == "steps" && numbers.size() == 2 && numbers[0] < step_count &&
      numbers[1] < unit_.steps[numbers[0]].output_count) {
    const Step& step = unit_.steps[numbers[0]];
    *operand = step.first_output + numbers[1];
    *dtype = step.kernel->output_type(numbers[1]);
    return absl::OkStatus();
  }
  return InvalidArgument("Expected 'inputs:<i>' of ", context_->num_inputs(),
                         " inputs or 'steps:<j>:<port>', an output of one of the ", step_count,
                         " steps before, got '", text, "'.");
}

void UnitReader::FindLastReads() {
  std::vector<bool> is_read_later(unit_.operand_count);
  for (const int result : unit_.results) is_read_later[result] = true;
  for (auto step = unit_.steps.rbegin(); step != unit_.steps.rend(); ++step) {
    for (int port = 0; port < step->kernel->num_outputs(); ++port) {
      const int output = step->first_output + port;
      if (!is_read_later[output]) step->unread_outputs.push_back(output);
    }
    for (auto read = step->reads.rbegin(); read != step->reads.rend(); ++read) {
      read->is_last = !is_read_later[read->operand];
      is_read_later[read->operand] = true;
      if (read->is_last && read->operand >= context_->num_inputs()) {
        step->dead_operands.push_back(read->operand);
      }
    }
  }
}

// The operand with all sizes of a kernel's result, or -1.
int SizesOperand(const tensorflow::OpKernel& kernel) {
  const absl::string_view op = kernel.type_string_view();  // maybe oneDNN's
  if (op == "Reshape") return 1;
  const bool is_transposed_convolution =
      absl::EndsWith(op, "Conv2DBackpropInput") || absl::EndsWith(op, "Conv3DBackpropInputV2");
  return is_transposed_convolution ? 0 : -1;
}

absl::Status UnitReader::FindStepsOfBatch() {
  if (unit_.split_inputs.empty()) return absl::OkStatus();
  std::vector<bool> is_of_batch(unit_.operand_count);
  for (const int64_t input : unit_.split_inputs) is_of_batch[input] = true;
  for (Step& step : unit_.steps) {
    step.is_of_batch =
        absl::c_any_of(step.reads, [&](const auto& read) { return is_of_batch[read.operand]; });
    const int sizes = SizesOperand(*step.kernel);
    if (step.is_of_batch && sizes >= 0 && !is_of_batch[step.reads[sizes].operand]) {
      step.sizes_of_batch = sizes;
    }
    for (int port = 0; port < step.kernel->num_outputs(); ++port) {
      is_of_batch[step.first_output + port] = step.is_of_batch;
    }
  }
  for (size_t i = 0; i < unit_.results.size(); ++i) {
    if (unit_.results[i] < context_->num_inputs() || !is_of_batch[unit_.results[i]]) {
      return InvalidArgument("Expected results of steps that read a split input, got result ", i,
                             ", which does not depend on any.");
    }
  }
  return absl::OkStatus();
}

absl::Status AtStep(const OpKernel& kernel, const absl::Status& status) {
  return tensorflow::errors::CreateWithUpdatedMessage(
      status, absl::StrCat(status.message(), " [at step '", kernel.name_view(), "' of the unit]"));
}

// Part of a batch: the images from `first` to before `last`.
struct Part {
  int64_t batch_size = 0;
  int64_t first = 0;
  int64_t last = 0;

  int64_t size() const { return last - first; }
};

// A run of steps and the values that they compute.
class UnitRun {
 public:
  enum class Kind {
    kWhole,   // all steps, over the whole batch
    kShared,  // the steps whose values all parts read
    kPart,    // all other steps, over a part
  };

  // `inputs` are those of `context`, or a part's slices of them. They must outlive this.
  UnitRun(const OpKernelContext& context, const UnitProgram& unit, Kind kind,
          absl::Span<const tensorflow::TensorValue> inputs, const Part& part = {})
      : kind_(kind),
        inputs_(inputs),
        part_(part),
        params_(StepParams(context)),
        derived_(&params_, /*num_outputs=*/0),
        attributes_(unit.operand_count),
        outputs_(unit.operand_count) {
    for (int i = 0; i < context.num_inputs(); ++i) attributes_[i] = context.input_alloc_attr(i);
    for (size_t i = 0; i < unit.results.size(); ++i) {
      if (unit.results[i] < context.num_inputs()) continue;
      attributes_[unit.results[i]] = context.output_alloc_attr(static_cast<int>(i));
    }
  }
  UnitRun(const UnitRun&) = delete;
  UnitRun& operator=(const UnitRun&) = delete;

  absl::Status Run(const Step& step, tensorflow::DeviceBase* device);

  // Adopts the outputs of the shared run, which all parts read.
  void Share(const UnitRun& shared) {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (shared.outputs_[i] != nullptr)
        outputs_[i] = std::make_unique<Tensor>(*shared.outputs_[i]);
    }
  }

  const Tensor& output(int operand) const { return *outputs_[operand]; }

 private:
  // Replaces the batch size at the front of `sizes` with the part's.
  Tensor SizesOfPart(const Tensor& sizes) const;

  const Kind kind_;
  const absl::Span<const tensorflow::TensorValue> inputs_;
  const Part part_;
  OpKernelContext::Params params_;
  OpKernelContext derived_;
  absl::InlinedVector<AllocatorAttributes, 16> attributes_;   // by operand
  absl::InlinedVector<std::unique_ptr<Tensor>, 16> outputs_;  // by operand; null for inputs
};

absl::Status UnitRun::Run(const Step& step, tensorflow::DeviceBase* device) {
  OpKernel* const kernel = step.kernel.get();
  absl::InlinedVector<tensorflow::TensorValue, 4> inputs;
  absl::InlinedVector<AllocatorAttributes, 4> input_attributes;
  // Kernels may overwrite a tensor that nobody else holds, so this holds those that are read again.
  absl::InlinedVector<Tensor, 2> held;
  // The executor holds an input until the op returns. An input that nobody else holds is taken from
  // the executor, so that a kernel can overwrite it and it is freed as early as in stock
  // TensorFlow.
  absl::InlinedVector<Tensor, 2> taken;
  taken.reserve(step.reads.size());
  for (const Read& read : step.reads) {
    input_attributes.push_back(attributes_[read.operand]);
    if (static_cast<size_t>(read.operand) >= inputs_.size()) {
      inputs.emplace_back(outputs_[read.operand].get());
    } else if (const tensorflow::TensorValue& input = inputs_[read.operand];
               kind_ == Kind::kWhole && read.is_last && !input.is_ref() && input->RefCountIsOne()) {
      inputs.emplace_back(&taken.emplace_back(std::move(*input.tensor)));
    } else {
      inputs.push_back(input);
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
  params_.output_attr_array = attributes_.data() + step.first_output;
  derived_.ResetOutputs(kernel->num_outputs());
  {
    const tsl::profiler::TraceMe trace(
        [&] { return kernel->TraceString(derived_, tsl::profiler::TfOpDetailsEnabled()); },
        tsl::profiler::GetTFTraceMeLevel(kernel->IsExpensive()));
    kernel->Compute(&derived_);
  }
  if (!derived_.status().ok()) return AtStep(*kernel, derived_.status());
  for (int port = 0; port < kernel->num_outputs(); ++port) {
    const int output = step.first_output + port;
    outputs_[output].reset(derived_.release_output(port).tensor);
    if (outputs_[output] == nullptr && !absl::c_linear_search(step.unread_outputs, output)) {
      return AtStep(*kernel, absl::InternalError(absl::StrCat("Missing ", port, "-th output")));
    }
  }
  for (const int output : step.unread_outputs) outputs_[output].reset();
  if (kind_ == Kind::kShared) return absl::OkStatus();
  for (const int operand : step.dead_operands) outputs_[operand].reset();
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
    OP_REQUIRES_OK(context, UnitReader(context, &unit_).Read());
  }

  void Compute(OpKernelContext* context) override {
    const TimelineCall call(&timeline_calls_, name_view());
    const ThreadSpan span(call, [&] {
      return absl::StrJoin(unit_.steps, " ", [](std::string* names, const Step& step) {
        absl::StrAppend(names, step.kernel->name_view());
      });
    });
    const int all_cores = context->device()->tensorflow_cpu_worker_threads()->num_threads;
    const int cores = CoresFor(*context, all_cores);
    const int64_t part_count = unit_.split_inputs.empty() ? 0 : PartCount(*context, all_cores);
    if (cores == 0 || part_count == 1) {
      Run(context, context->device());
    } else if (part_count > 1) {
      RunParts(context, part_count, all_cores / static_cast<int>(part_count), call);
    } else {
      FewCores few(context, cores, unit_.primitive_types);
      Run(context, &few.device);
    }
  }

 private:
  // Makes the calling thread compute on a few cores.
  struct FewCores {
    FewCores(OpKernelContext* context, int cores, absl::Span<const DataType> types)
        : device(context->device(), cores), primitives(types, device.cores()) {}

    NarrowDevice device;
    const NarrowPrimitives primitives;
    // All threads of TensorFlow's pools flush denormals, but a Session may run ops on the caller's.
    const tsl::port::ScopedFlushDenormal flush;
  };

  // The number of cores for the steps; 0 to run them on all cores, as TensorFlow does.
  int CoresFor(const OpKernelContext& context, int all_cores) const {
    size_t place = 0;
    if (!unit_.batch_sizes.empty()) {
      const Tensor& first = context.input(0);
      if (first.dims() == 0) return 0;
      place = absl::c_find(unit_.batch_sizes, first.dim_size(0)) - unit_.batch_sizes.begin();
      if (place == unit_.batch_sizes.size()) return 0;
    }
    return unit_.cores[place] > 1 && unit_.cores[place] >= all_cores ? 0 : unit_.cores[place];
  }

  const Tensor& SplitInput(const OpKernelContext& context, size_t i) const {
    return context.input(static_cast<int>(unit_.split_inputs[i]));
  }

  // 1 if the split inputs do not have the same batch size.
  int64_t PartCount(const OpKernelContext& context, int all_cores) const {
    if (SplitInput(context, 0).dims() == 0) return 1;
    const int64_t batch_size = SplitInput(context, 0).dim_size(0);
    for (size_t i = 1; i < unit_.split_inputs.size(); ++i) {
      const Tensor& input = SplitInput(context, i);
      if (input.dims() == 0 || input.dim_size(0) != batch_size) return 1;
    }
    return std::max<int64_t>(1, std::min<int64_t>(batch_size, all_cores));
  }

  void Run(OpKernelContext* context, tensorflow::DeviceBase* device) {
    UnitRun run(*context, unit_, UnitRun::Kind::kWhole, context->params()->inputs);
    for (const Step& step : unit_.steps) OP_REQUIRES_OK(context, run.Run(step, device));
    for (int i = 0; i < context->num_outputs(); ++i) {
      const int result = unit_.results[i];
      context->set_output(
          i, result < context->num_inputs() ? context->input(result) : run.output(result));
    }
  }

  // Divides the batch as TensorFlow divides an operation, but once for all steps: each part runs
  // through them on `cores` cores.
  void RunParts(OpKernelContext* context, int64_t part_count, int cores, const TimelineCall& call) {
    const int64_t batch_size = SplitInput(*context, 0).dim_size(0);
    UnitRun shared(*context, unit_, UnitRun::Kind::kShared, context->params()->inputs);
    {
      FewCores one(context, /*cores=*/1, unit_.primitive_types);
      for (const Step& step : unit_.steps) {
        if (!step.is_of_batch) OP_REQUIRES_OK(context, shared.Run(step, &one.device));
      }
    }
    std::vector<absl::Status> statuses(part_count);
    std::vector<std::vector<Tensor>> results(part_count);
    const auto run_parts = [&](int64_t first, int64_t last) {
      FewCores few(context, cores, unit_.primitive_types);
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
    const auto failed = absl::c_find_if(statuses, [](const auto& status) { return !status.ok(); });
    if (failed != statuses.end()) {
      Run(context, context->device());  // its error names the shapes of the whole batch
      context->SetStatus(*failed);      // keeps that error
      return;
    }
    for (int i = 0; i < context->num_outputs(); ++i) {
      OP_REQUIRES_OK(context, Join(context, batch_size, results, i));
    }
  }

  absl::Status RunPart(const OpKernelContext& context, tensorflow::DeviceBase* device,
                       const UnitRun& shared, const Part& part, std::vector<Tensor>* results) {
    std::vector<Tensor> slices(unit_.split_inputs.size());
    absl::InlinedVector<tensorflow::TensorValue, 16> inputs(context.params()->inputs.begin(),
                                                            context.params()->inputs.end());
    for (size_t i = 0; i < slices.size(); ++i) {
      slices[i] = SplitInput(context, i).Slice(part.first, part.last);
      if (!slices[i].IsAligned()) slices[i] = tensorflow::tensor::DeepCopy(slices[i]);
      inputs[unit_.split_inputs[i]] = tensorflow::TensorValue(&slices[i]);
    }
    UnitRun run(context, unit_, UnitRun::Kind::kPart, inputs, part);
    run.Share(shared);
    for (const Step& step : unit_.steps) {
      if (step.is_of_batch) TF_RETURN_IF_ERROR(run.Run(step, device));
    }
    for (const int result : unit_.results) {
      const Tensor& value = results->emplace_back(run.output(result));
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

  UnitProgram unit_;
  TimelineCalls timeline_calls_;
};

REGISTER_KERNEL_BUILDER(Name("TfInterop>Unit").Device(tensorflow::DEVICE_CPU), Unit);

}  // namespace
}  // namespace tf_interop
