#include "cc_kernels/tf/steps.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cc_kernels/tf/program_rewrites.h"
#include "cc_kernels/tf/stock_kernel.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/platform/errors.h"
#include "tsl/profiler/lib/traceme.h"

namespace tf_interop {
namespace {

using tensorflow::AllocatorAttributes;
using tensorflow::DataTypeString;
using tensorflow::NodeDef;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

absl::Status AtStep(absl::string_view name, const absl::Status& status) {
  return tensorflow::errors::CreateWithUpdatedMessage(
      status, absl::StrCat(status.message(), " [at step '", name, "']"));
}

}  // namespace

StepsReader::StepsReader(tensorflow::OpKernelConstruction* context,
                         tensorflow::DataTypeVector input_types,
                         tensorflow::DataTypeVector result_types, std::vector<int64_t> kept_inputs,
                         Steps* steps)
    : context_(context),
      input_types_(std::move(input_types)),
      result_types_(std::move(result_types)),
      kept_inputs_(std::move(kept_inputs)),
      steps_(*steps) {}

absl::Status StepsReader::Read(bool replaces_steps) {
  replaces_steps_ = replaces_steps;
  std::string timed_graph;
  if (replaces_steps) TF_RETURN_IF_ERROR(context_->GetAttr("timed_graph", &timed_graph));
  // It depends on times, which matter only to a unit that times itself.
  tries_ways_ = !timed_graph.empty();
  std::vector<std::string> steps;
  std::vector<std::string> results;
  TF_RETURN_IF_ERROR(context_->GetAttr("steps", &steps));
  TF_RETURN_IF_ERROR(context_->GetAttr("results", &results));
  const int input_count = static_cast<int>(input_types_.size());
  for (const int64_t input : kept_inputs_) {
    if (input < 0 || input >= input_count) {
      return InvalidArgument("Expected kept_inputs from 0 to ", input_count - 1, ", got ", input,
                             ".");
    }
  }
  steps_.input_count = steps_.first_held_input = steps_.operand_count = input_count;
  std::vector<NodeDef> nodes;
  TF_RETURN_IF_ERROR(ParseSteps(steps, &nodes));
  if (replaces_steps) {
    JoinConcatenations(&nodes, &results);
    JoinElementwise(&nodes, &results);
    ReplaceResponseNormalizations(&nodes);
  }
  for (const NodeDef& node : nodes) {
    const absl::Status status = ReadStep(node);
    if (!status.ok()) return AtStep(node.name(), status);
  }
  if (results.size() != result_types_.size()) {
    return InvalidArgument("Expected ", result_types_.size(), " results, one for each output, got ",
                           results.size(), ".");
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const tensorflow::DataType expected = result_types_[i];
    tensorflow::DataType dtype = tensorflow::DT_INVALID;
    TF_RETURN_IF_ERROR(ReadOperand(results[i], &steps_.results.emplace_back(), &dtype));
    if (dtype != expected) {
      return InvalidArgument("Expected a ", DataTypeString(expected), " as result ", i, ", got '",
                             results[i], "', a ", DataTypeString(dtype), ".");
    }
  }
  FindReads();
  return absl::OkStatus();
}

absl::Status StepsReader::ReadStep(const NodeDef& node) {
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

  KernelStep step;
  if (node.input_size() != static_cast<int>(input_types.size())) {
    return InvalidArgument("Expected ", input_types.size(), " operands of ", node.op(), ", got ",
                           node.input_size(), ".");
  }
  for (int i = 0; i < node.input_size(); ++i) {
    tensorflow::DataType dtype = tensorflow::DT_INVALID;
    TF_RETURN_IF_ERROR(ReadOperand(node.input(i), &step.reads.emplace_back().operand, &dtype));
    if (dtype != input_types[i]) {
      return InvalidArgument("Expected a ", DataTypeString(input_types[i]), " as operand ", i,
                             ", got '", node.input(i), "', a ", DataTypeString(dtype), ".");
    }
  }
  TF_RETURN_IF_ERROR(MakeStockKernel(context_->device(), context_->graph_def_version(),
                                     /*has_constant_filter=*/false, node, &step.kernel));
  if (step.reads.size() > 1 && absl::c_linear_search(kept_inputs_, step.reads[1].operand)) {
    step.filter_kernel = std::make_unique<FilterKernel>(
        context_->device(), context_->graph_def_version(), node, tries_ways_);
  } else if (tries_ways_) {
    step.tried = TriedStep::Make(*step.kernel);
  }
  if (replaces_steps_) step.vector_product = VectorProduct::Make(*step.kernel);
  std::vector<std::string> fused_ops;
  if (tensorflow::TryGetNodeAttr(complete, "fused_ops", &fused_ops) &&
      absl::c_linear_search(fused_ops, "Add")) {
    step.summand = node.input_size() - 1;
  }
  step.output_count = static_cast<int>(output_types.size());
  step.first_output = steps_.operand_count;
  steps_.operand_count += step.kernel->num_outputs();
  if (absl::StartsWith(step.kernel->type_string_view(), "_Mkl")) {
    steps_.onednn_types.insert(steps_.onednn_types.end(), input_types.begin(), input_types.end());
    steps_.onednn_types.insert(steps_.onednn_types.end(), output_types.begin(), output_types.end());
  }
  steps_.steps.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status StepsReader::ReadOperand(absl::string_view text, int* operand,
                                      tensorflow::DataType* dtype) const {
  const int step_count = static_cast<int>(steps_.steps.size());
  const std::optional<Operand> named = ParseOperand(text);
  if (named.has_value() && !named->is_step && named->index < steps_.input_count) {
    *operand = named->index;
    *dtype = input_types_[named->index];
    return absl::OkStatus();
  }
  if (named.has_value() && named->is_step && named->index < step_count &&
      named->port < steps_.steps[named->index].output_count) {
    const KernelStep& step = steps_.steps[named->index];
    *operand = step.first_output + named->port;
    *dtype = step.kernel->output_type(named->port);
    return absl::OkStatus();
  }
  return InvalidArgument("Expected 'inputs:<i>' of ", steps_.input_count,
                         " inputs or 'steps:<j>:<port>', an output of one of the ", step_count,
                         " steps before, got '", text, "'.");
}

void StepsReader::FindReads() {
  steps_.read_counts.resize(steps_.operand_count);
  std::vector<int> maker(steps_.operand_count, -1);
  std::vector<std::vector<int>> sources;
  std::vector<bool> is_long;
  for (const int result : steps_.results) ++steps_.read_counts[result];
  for (KernelStep& step : steps_.steps) {
    std::vector<int>& read_steps = sources.emplace_back();
    for (OperandRead& read : step.reads) {
      ++steps_.read_counts[read.operand];
      for (OperandRead& other : step.reads) {
        if (&other < &read && other.operand == read.operand) {
          read.reads_of_step += std::exchange(other.reads_of_step, 0);
        }
      }
      ++read.reads_of_step;
      const int source = maker[read.operand];
      if (source >= 0 && !absl::c_linear_search(read_steps, source)) read_steps.push_back(source);
    }
    for (int port = 0; port < step.kernel->num_outputs(); ++port) {
      maker[step.first_output + port] = static_cast<int>(is_long.size());
    }
    is_long.push_back(step.kernel->IsExpensive());
  }
  for (KernelStep& step : steps_.steps) {
    for (int port = 0; port < step.kernel->num_outputs(); ++port) {
      const int output = step.first_output + port;
      if (steps_.read_counts[output] == 0) step.unread_outputs.push_back(output);
    }
  }
  steps_.order = StepOrder(sources, std::move(is_long));
}

StepsRun::StepsRun(const OpKernelContext& context, const Steps& steps, Kind kind,
                   absl::Span<const tensorflow::TensorValue> inputs, const Part& part)
    : context_(context),
      kind_(kind),
      inputs_(inputs),
      first_held_input_(steps.first_held_input),
      part_(part),
      attributes_(steps.operand_count),
      outputs_(steps.operand_count),
      reads_left_(steps.operand_count) {
  for (int i = 0; i < steps.operand_count; ++i) {
    reads_left_[i].store(steps.read_counts[i], std::memory_order_relaxed);
  }
}

StepsRun::Lane::Lane(StepsRun* run)
    : run_(*run), params_(StepParams(run->context_)), derived_(&params_, /*num_outputs=*/0) {}

void StepsRun::Share(const StepsRun& shared) {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (shared.outputs_[i] != nullptr) outputs_[i] = std::make_unique<Tensor>(*shared.outputs_[i]);
  }
}

absl::Status StepsRun::Lane::Run(const KernelStep& step, tensorflow::DeviceBase* device) {
  const Kind kind = run_.kind_;
  OpKernel* kernel = step.kernel.get();
  absl::InlinedVector<tensorflow::TensorValue, 4> inputs;
  absl::InlinedVector<AllocatorAttributes, 4> input_attributes;
  // Kernels may overwrite a tensor that nobody else holds, so this holds those that are read again.
  absl::InlinedVector<Tensor, 2> held;
  // The executor holds an input until the op returns. An input that nobody else holds is taken from
  // the executor, so that a kernel can overwrite it and it is freed as early as in stock
  // TensorFlow.
  absl::InlinedVector<Tensor, 2> taken;
  taken.reserve(step.reads.size());
  for (const OperandRead& read : step.reads) {
    input_attributes.push_back(run_.attributes_[read.operand]);
    const bool is_input = static_cast<size_t>(read.operand) < run_.inputs_.size();
    if (is_input && read.operand >= run_.first_held_input_) {
      inputs.push_back(run_.inputs_[read.operand]);
      held.push_back(*inputs.back().tensor);
      continue;
    }
    // Steps that read it at the same time have not counted themselves down yet.
    const bool is_last =
        kind != Kind::kShared &&
        run_.reads_left_[read.operand].load(std::memory_order_acquire) == read.reads_of_step;
    if (!is_input) {
      inputs.emplace_back(run_.outputs_[read.operand].get());
    } else if (const tensorflow::TensorValue& input = run_.inputs_[read.operand];
               kind == Kind::kWhole && is_last && !input.is_ref() && input->RefCountIsOne()) {
      inputs.emplace_back(&taken.emplace_back(std::move(*input.tensor)));
    } else {
      inputs.push_back(input);
    }
    if (!is_last) held.push_back(*inputs.back().tensor);
  }
  Tensor sizes;
  if (kind == Kind::kPart && step.sizes_of_batch >= 0) {
    tensorflow::TensorValue& given = inputs[step.sizes_of_batch];
    sizes = run_.SizesOfPart(*given.tensor);
    given = tensorflow::TensorValue(&sizes);
  }
  // oneDNN's convolution writes its result over the summand. If others hold the summand, the kernel
  // copies it first, with members that calls at the same time would share. So the copy is made
  // here.
  Tensor summand;
  if (step.summand >= 0 && !inputs[step.summand]->RefCountIsOne()) {
    summand = tensorflow::tensor::DeepCopy(*inputs[step.summand].tensor);
    inputs[step.summand] = tensorflow::TensorValue(&summand);
  }
  params_.device = device;
  params_.op_kernel = kernel;
  params_.inputs = inputs;
  params_.input_alloc_attrs = input_attributes;
  params_.output_attr_array = run_.attributes_.data() + step.first_output;
  derived_.ResetOutputs(kernel->num_outputs());
  const bool is_vector = step.vector_product != nullptr && step.vector_product->Takes(&derived_);
  std::shared_ptr<const FilterKernel::Kernels> of_filter;
  if (!is_vector && step.filter_kernel != nullptr) {
    of_filter = step.filter_kernel->Find(*inputs[1].tensor);
  }
  const bool has_direct = of_filter != nullptr && of_filter->direct != nullptr &&
                          (of_filter->is_direct_stock || device != run_.context_.device());
  const auto direct = has_direct ? of_filter->direct->Find(&derived_) : nullptr;
  const bool runs_held =
      direct == nullptr && of_filter != nullptr &&
      of_filter->kernel->BeginRun(*inputs[0].tensor,
                                  device->tensorflow_cpu_worker_threads()->num_threads);
  if (runs_held) params_.op_kernel = kernel = of_filter->kernel->get();
  TriedStep::Turn turn;
  if (!is_vector && step.tried != nullptr) turn = step.tried->Find(derived_);
  {
    const tsl::profiler::TraceMe trace(
        [&] {
          if (is_vector) return absl::StrCat(kernel->name_view(), ":", kVectorProduct);
          if (direct != nullptr)
            return absl::StrCat(kernel->name_view(), ":", DirectConvolution::Name(*direct));
          if (turn.is_other) return absl::StrCat(kernel->name_view(), ":", turn.name());
          return kernel->TraceString(derived_, tsl::profiler::TfOpDetailsEnabled());
        },
        tsl::profiler::GetTFTraceMeLevel(kernel->IsExpensive()));
    if (is_vector) {
      derived_.SetStatus(step.vector_product->Run(&derived_));
    } else if (direct != nullptr) {
      derived_.SetStatus(of_filter->direct->Run(&derived_, direct.get()));
    } else if (turn.ways != nullptr) {
      TriedStep::Run(&derived_, kernel, turn);
    } else {
      kernel->Compute(&derived_);
    }
  }
  if (runs_held) {
    const bool is_complete =
        derived_.status().ok() && derived_.mutable_output(0)->NumElements() > 0;
    of_filter->kernel->EndRun(is_complete);
  }
  if (!derived_.status().ok()) return AtStep(kernel->name_view(), derived_.status());
  for (int port = 0; port < kernel->num_outputs(); ++port) {
    const int output = step.first_output + port;
    run_.outputs_[output].reset(derived_.release_output(port).tensor);
    if (run_.outputs_[output] == nullptr && !absl::c_linear_search(step.unread_outputs, output)) {
      return AtStep(kernel->name_view(),
                    absl::InternalError(absl::StrCat("Missing ", port, "-th output")));
    }
  }
  for (const int output : step.unread_outputs) run_.outputs_[output].reset();
  if (kind == Kind::kShared) return absl::OkStatus();
  held.clear();
  for (const OperandRead& read : step.reads) {
    const int left = run_.reads_left_[read.operand].fetch_sub(1, std::memory_order_acq_rel);
    if (left == 1) run_.outputs_[read.operand].reset();
  }
  return absl::OkStatus();
}

Tensor StepsRun::SizesOfPart(const Tensor& sizes) const {
  Tensor of_part = tensorflow::tensor::DeepCopy(sizes);
  const auto set_first = [&](auto flat) {
    if (flat.size() > 0 && flat(0) == part_.batch_size) flat(0) = part_.size();
  };
  if (sizes.dtype() == tensorflow::DT_INT32) set_first(of_part.flat<int32_t>());
  if (sizes.dtype() == tensorflow::DT_INT64) set_first(of_part.flat<int64_t>());
  return of_part;
}

}  // namespace tf_interop
