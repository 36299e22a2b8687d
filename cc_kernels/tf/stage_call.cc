#include "cc_kernels/tf/stage_call.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc_kernels/core/host/stream.h"
#include "cc_kernels/core/stage_replays.h"
#include "cc_kernels/core/workspace_limit.h"
#include "cc_kernels/tf/stock_kernel.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tensor_float_32_utils.h"
#include "tensorflow/core/public/version.h"
#include "tensorflow/core/util/determinism.h"
#include "tensorflow/core/util/env_var.h"

namespace tf_interop {

using tensorflow::AllocatorAttributes;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

namespace {

size_t ReadWorkspaceLimitBytes(int64_t default_mb) {
  int64_t megabytes = default_mb;
  // A value that is not a number leaves the default in place, as in TensorFlow.
  (void)tensorflow::ReadInt64FromEnvVar("TF_CUDNN_WORKSPACE_LIMIT_IN_MB", default_mb, &megabytes);
  return static_cast<size_t>(megabytes < 0 ? 0 : megabytes) << 20;
}

// The workspace limit of one convolution, the same as for TensorFlow's and XLA's own. For all
// workspaces of a stage see core/workspace_limit.h.
size_t WorkspaceLimitBytes(bool is_in_xla) {
  // kDefaultWorkspaceLimit in TensorFlow's conv_ops_gpu.h, and the default of XLA's autotuner.
  static const size_t outside = ReadWorkspaceLimitBytes(8192);
  static const size_t inside = ReadWorkspaceLimitBytes(4096);
  return is_in_xla ? inside : outside;
}

CallSignature SignatureOf(const OpKernelContext& context, const StageOptions& options,
                          Backend* backend) {
  const auto numbers = options.Numbers();
  CallSignature signature(numbers.begin(), numbers.end());
  signature.push_back(reinterpret_cast<int64_t>(backend));
  for (int i = 0; i < context.num_inputs(); ++i) {
    const Tensor& input = context.input(i);
    signature.push_back(input.dims());
    for (int d = 0; d < input.dims(); ++d) signature.push_back(input.dim_size(d));
    if (input.dtype() != tensorflow::DT_INT32) continue;  // no sizes
    const auto values = input.flat<int32_t>();
    signature.insert(signature.end(), values.data(), values.data() + values.size());
  }
  return signature;
}

StageInputs InputsOf(const OpKernelContext& context) {
  StageInputs inputs;
  for (int i = 0; i < context.num_inputs(); ++i) {
    const Tensor& input = context.input(i);
    inputs.shapes.push_back(input.shape());
    std::vector<int64_t>& sizes = inputs.sizes.emplace_back();
    if (input.dtype() != tensorflow::DT_INT32) continue;
    const auto values = input.flat<int32_t>();
    sizes.assign(values.data(), values.data() + values.size());
  }
  return inputs;
}

// Allocates from the device's allocator. Neither waits for memory nor logs a failure.
absl::Status AllocateBytes(OpKernelContext* context, size_t bytes, Tensor* tensor) {
  tensorflow::AllocationAttributes attributes;
  attributes.retry_on_failure = false;
  return context->allocate_temp(tensorflow::DT_UINT8,
                                tensorflow::TensorShape({static_cast<int64_t>(bytes)}), tensor,
                                AllocatorAttributes(), attributes);
}

// Allocates memory for transformed filters. A tensor is a reference to its memory, so holding the
// filters keeps their addresses from being reused.
FilterMemory AllocateFor(OpKernelContext* context, const std::vector<size_t>& inputs,
                         size_t bytes) {
  struct Held {
    std::vector<Tensor> filters;
    Tensor transformed;
  };
  auto held = std::make_shared<Held>();
  for (const size_t input : inputs) {
    held->filters.push_back(context->input(static_cast<int>(input)));
  }
  if (!AllocateBytes(context, bytes, &held->transformed).ok()) return {};
  void* const data = held->transformed.data();
  return {data, std::move(held)};
}

}  // namespace

StageOptions StageOptionsNow(bool is_in_xla) {
  static const bool are_always_deterministic = IsCudnnToBeDeterministic();
  const size_t limit = WorkspaceLimitBytes(is_in_xla);
  StageOptions options;
  options.convolutions.workspace_limit_bytes = limit;
  options.convolutions.allow_tf32 = tensorflow::tensor_float_32_execution_enabled();
  options.convolutions.deterministic =
      tensorflow::OpDeterminismRequired() || are_always_deterministic;
  options.workspace_limit_bytes = stage_workspace_limit_bytes;
  if (is_in_xla) options.workspace_limit_bytes = std::min(options.workspace_limit_bytes, limit);
  return options;
}

StageNode::StageNode(tensorflow::OpKernelConstruction* context)
    : counts_(FindCounts(ShortDeviceName(context))),
      is_on_cpu_(context->device_type() == tensorflow::DEVICE_CPU) {
  OP_REQUIRES_OK(context, GetStageProgram(context, &program_));
  OP_REQUIRES_OK(context, context->GetAttr("timed", &is_timed_));
  if (context->HasAttr(kInXla)) {
    std::vector<int64_t> numbers;
    OP_REQUIRES_OK(context, context->GetAttr(kInXla, &numbers));
    OP_REQUIRES(context, numbers.size() == StageOptions::kNumbers,
                absl::InvalidArgumentError(absl::StrCat("Expected ", StageOptions::kNumbers,
                                                        " options, got ", numbers.size(), ".")));
    compiled_options_ = StageOptions::Of(numbers);
    is_timed_ = false;
    // XLA may use the memory of a filter for something else after the call.
    for (StepProgram& step : program_.steps) step.has_held_filter = false;
  }
  stock_kernels_.resize(program_.steps.size());
}

absl::Status StageNode::Resolve(const OpKernelContext& context, Backend* backend,
                                std::shared_ptr<const ResolvedStage>* resolved) {
  const StageOptions options = compiled_options_.value_or(StageOptionsNow(/*is_in_xla=*/false));
  const CallSignature signature = SignatureOf(context, options, backend);
  *resolved = cache_.Find(signature).value_or(nullptr);
  if (*resolved != nullptr && (!(*resolved)->try_again_at.has_value() ||
                               std::chrono::steady_clock::now() < *(*resolved)->try_again_at)) {
    return absl::OkStatus();
  }
  auto made = std::make_shared<ResolvedStage>();
  TF_RETURN_IF_ERROR(ResolveStage(program_, InputsOf(context), options, backend, made.get()));
  if (is_timed_) AddTiming(context, backend, made.get());
  *resolved = cache_.Insert(signature, std::move(made),
                            [](const auto& there) { return there->try_again_at.has_value(); });
  return absl::OkStatus();
}

void StageNode::AddTiming(const OpKernelContext& context, Backend* backend,
                          ResolvedStage* resolved) const {
  const bool has_plan = resolved->unplanned_kind == nullptr && resolved->rung != Rung::kStock;
  if (!has_plan || resolved->try_again_at.has_value()) return;
  // Ways may round differently, so none is tried where all results must be the same.
  if (resolved->options.convolutions.deterministic) return;
  const PreparedStage& planned = resolved->prepared;
  if (planned.lane_workspace_bytes.size() > 1 && planned.merged.empty()) {
    resolved->in_sequence = PreparedInSequence(planned);
    if (StageReplays::AreOn() && backend->CanCapture()) {
      resolved->in_sequence->replays = std::make_shared<StageReplays>();
    }
  }
  const auto sizes = context.num_inputs() == 0 ? absl::InlinedVector<int64_t, 4>()
                                               : context.input(0).shape().dim_sizes();
  resolved->timing = MakeStageTiming(std::string(context.op_kernel().name_view()),
                                     absl::StrJoin(sizes, "x"), resolved->in_sequence.has_value());
}

absl::Status StageNode::FindStockKernel(OpKernelContext* context, size_t operation,
                                        OpKernel** kernel) {
  const std::lock_guard<std::mutex> lock(stock_kernels_mutex_);
  std::unique_ptr<OpKernel>& known = stock_kernels_[operation];
  if (known == nullptr) {
    TF_RETURN_IF_ERROR(MakeStockKernel(context->device(), TF_GRAPH_DEF_VERSION,
                                       /*has_constant_filter=*/false,
                                       program_.steps[operation].node_def, &known));
  }
  *kernel = known.get();
  return absl::OkStatus();
}

StageCall::StageCall(StageNode* node, OpKernelContext* context, Backend* backend)
    : node_(node), context_(context), backend_(backend) {}

absl::Status StageCall::Prepare(Stream caller) {
  TF_RETURN_IF_ERROR(node_->Resolve(*context_, backend_, &resolved_));
  results_.resize(node_->program().steps.size());
  runs_stock_ = resolved_->unplanned_kind != nullptr || resolved_->rung == Rung::kStock;
  if (resolved_->timing != nullptr) {
    timed_ = resolved_->timing->Begin();
    runs_stock_ = timed_.way == StageTiming::Way::kStock;
    if (runs_stock_ && !timed_.is_trial) {
      // Only calls of the plan would notice an update.
      for (const HeldFilter& each : resolved_->held_filters) {
        node_->filters()->Forget(each.operation, each.key);
      }
    }
    if (timed_.is_timed) begin_ = Mark(caller, nullptr);
  }
  if (resolved_->rung.has_value()) CountForMemory(*resolved_->rung);
  if (!runs_stock_) {
    const absl::Status allocated = AllocateResults();
    if (allocated.ok()) {
      AllocateWorkspaces();
      BindOperands();
    } else if (absl::IsResourceExhausted(allocated) && node_->can_run_stock()) {
      CountFallback(kNoMemoryForResults, std::string(allocated.message()));
      runs_stock_ = true;
    } else {
      return allocated;
    }
  }
  Count(&Counters::stages_run);
  for (const Status& reason : resolved_->prepared.fallbacks) {
    CountFallback(kRefusedAlgorithm, reason.message());
  }
  for (const Status& reason : resolved_->prepared.unmerged) {
    CountFallback(kUnmergedLane, reason.message());
  }
  return absl::OkStatus();
}

const PreparedStage& StageCall::prepared() const {
  if (lesser_ != nullptr) return lesser_->stage;
  const bool is_sequence = timed_.way == StageTiming::Way::kSequence;
  if (is_sequence && resolved_->in_sequence.has_value()) return *resolved_->in_sequence;
  return resolved_->prepared;
}

// If there is no memory for a result, frees transformed filters: stock TensorFlow keeps none.
absl::Status StageCall::AllocateResults() {
  const StageProgram& program = node_->program();
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    TF_RETURN_IF_ERROR(AllocateOutput(static_cast<int>(i)));
  }
  for (size_t operation = 0; operation < program.steps.size(); ++operation) {
    if (program.steps[operation].output >= 0) continue;
    absl::Status status;
    const auto get = [&](bool may_wait) {
      status = AllocateTemporary(operation, AllocatorAttributes(), may_wait);
      return !absl::IsResourceExhausted(status);
    };
    // TensorFlow's own kernels hold fewer results at a time, so they need not wait for this one.
    if (node_->can_run_stock()) {
      TransformedFilters::GetWithoutWaiting(backend_, get);
    } else {
      TransformedFilters::GetMemory(backend_, get);
    }
    TF_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status StageCall::AllocateOutput(int output) {
  const size_t operation = node_->program().outputs[output];
  const AllocatorAttributes attributes = context_->output_alloc_attr(output);
  absl::Status status;
  TransformedFilters::GetMemory(backend_, [&](bool may_wait) {
    // Only a temporary can be allocated without waiting. It cannot belong to a scope, whose memory
    // is already allocated.
    if (may_wait || attributes.scope_id > 0) {
      Tensor* allocated = nullptr;
      status = context_->allocate_output(output, resolved_->result_shapes[operation], &allocated);
      if (status.ok()) results_[operation] = *allocated;
    } else {
      status = AllocateTemporary(operation, attributes, may_wait);
      if (status.ok()) context_->set_output(output, results_[operation]);
    }
    return !absl::IsResourceExhausted(status);
  });
  return status;
}

absl::Status StageCall::AllocateTemporary(size_t operation, AllocatorAttributes attributes,
                                          bool may_wait) {
  tensorflow::AllocationAttributes allocation;
  allocation.retry_on_failure = may_wait;
  return context_->allocate_temp(node_->program().steps[operation].dtype,
                                 resolved_->result_shapes[operation], &results_[operation],
                                 attributes, allocation);
}

// Allocates a tensor for each lane that needs workspace, or none at all.
bool StageCall::GetWorkspaces(const std::vector<size_t>& bytes, std::vector<void*>* lanes) {
  const size_t limit = resolved_->options.workspace_limit_bytes;
  if (absl::c_accumulate(bytes, size_t{0}) > limit) return false;
  lanes->assign(bytes.size(), nullptr);
  const size_t got_before = workspaces_.size();
  for (size_t lane = 0; lane < bytes.size(); ++lane) {
    if (bytes[lane] == 0) continue;
    Tensor workspace;
    if (!AllocateBytes(context_, bytes[lane], &workspace).ok()) {
      workspaces_.resize(got_before);
      return false;
    }
    (*lanes)[lane] = workspace.data();
    workspaces_.push_back(std::move(workspace));
  }
  return true;
}

// If there is no memory for the workspaces, frees transformed filters. If that is not enough,
// prepares the stage to need less.
void StageCall::AllocateWorkspaces() {
  const std::vector<size_t>& planned = prepared().lane_workspace_bytes;
  std::vector<void*>* const lanes = &buffers_.lane_workspaces;
  const auto get = [&](bool) { return GetWorkspaces(planned, lanes); };
  if (TransformedFilters::GetWithoutWaiting(backend_, get)) return;
  lesser_ = std::make_unique<LesserStage>(FindForMemory(
      backend_, resolved_->stage, resolved_->options.convolutions, resolved_->prepared, Ladder()));
  CountForMemory(lesser_->rung);
  runs_stock_ = lesser_->rung == Rung::kStock;
  *lanes = lesser_->lane_workspaces;
}

void StageCall::BindOperands() {
  const std::vector<size_t>& operations = resolved_->schedule->operations;
  buffers_.steps.resize(operations.size());
  for (size_t i = 0; i < operations.size(); ++i) {
    auto& bound = buffers_.steps[i].inputs;
    size_t next = 0;
    const StepProgram& step = node_->program().steps[operations[i]];
    for (size_t place = 0; place < step.operands.size(); ++place) {
      // ParseStageProgram lets no step read more operands than fit.
      if (step.is_sizes(place) || next == std::size(bound)) continue;
      bound[next++] = OperandOf(step.operands[place]).data();
    }
    buffers_.steps[i].result = results_[operations[i]].data();
  }
}

const Tensor& StageCall::OperandOf(const Operand& operand) const {
  return operand.is_step ? results_[operand.index] : context_->input(operand.index);
}

absl::Status StageCall::ComputeByStockKernel(size_t operation, AllocatorAttributes attributes,
                                             Tensor* result) {
  OpKernel* kernel = nullptr;
  TF_RETURN_IF_ERROR(node_->FindStockKernel(context_, operation, &kernel));
  // Copies, because a kernel may overwrite an operand that nobody else holds.
  absl::InlinedVector<Tensor, 4> operands;
  absl::InlinedVector<tensorflow::TensorValue, 4> inputs;
  absl::InlinedVector<AllocatorAttributes, 4> input_attributes;
  const StepProgram& step = node_->program().steps[operation];
  for (const Operand& operand : step.operands) {
    input_attributes.emplace_back().set_on_host(step.is_sizes(operands.size()));
    operands.push_back(OperandOf(operand));
  }
  for (Tensor& operand : operands) inputs.emplace_back(&operand);
  // oneDNN's kernels may have more results, which nobody reads.
  std::vector<AllocatorAttributes> result_attributes(kernel->num_outputs());
  result_attributes[0] = attributes;
  OpKernelContext::Params params = StepParams(*context_);
  params.op_kernel = kernel;
  params.inputs = inputs;
  params.input_alloc_attrs = input_attributes;
  params.output_attr_array = result_attributes.data();
  OpKernelContext derived(&params, kernel->num_outputs());
  kernel->Compute(&derived);
  TF_RETURN_IF_ERROR(derived.status());
  const std::unique_ptr<Tensor> computed(derived.release_output(0).tensor);
  const tensorflow::TensorShape& expected = resolved_->result_shapes[operation];
  if (computed->shape() != expected) {
    return absl::InternalError(absl::StrCat("expected a result of shape ", expected.DebugString(),
                                            ", got ", computed->shape().DebugString(), "."));
  }
  *result = *computed;
  return absl::OkStatus();
}

absl::Status StageCall::ComputeStock() {
  const StageProgram& program = node_->program();
  // Frees the results of an earlier attempt first: there may not be enough memory for both.
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    delete context_->release_output(static_cast<int>(i)).tensor;
  }
  results_.assign(program.steps.size(), Tensor());
  std::vector<size_t> readers = program.reader_counts;  // still to come
  for (size_t operation = 0; operation < program.steps.size(); ++operation) {
    const StepProgram& step = program.steps[operation];
    if (resolved_->computes_nothing[operation]) {
      // oneDNN's kernels compute some of these with a wrong shape, or fail.
      TF_RETURN_IF_ERROR(AllocateTemporary(operation, AllocatorAttributes(), /*may_wait=*/true));
      TF_RETURN_IF_ERROR(FillZero(&results_[operation]));
    } else {
      AllocatorAttributes attributes;
      if (step.output >= 0) attributes = context_->output_alloc_attr(step.output);
      const absl::Status status = ComputeByStockKernel(operation, attributes, &results_[operation]);
      if (!status.ok()) {
        return absl::Status(status.code(),
                            absl::StrCat("ConvStage step '", step.name,
                                         "' with TensorFlow's own kernel: ", status.message()));
      }
    }
    // Freed as early as in stock TensorFlow, so that the stage needs no more memory.
    for (const Operand& operand : step.operands) {
      if (!operand.is_step || --readers[operand.index] > 0) continue;
      if (program.steps[operand.index].output < 0) results_[operand.index] = Tensor();
    }
  }
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    context_->set_output(static_cast<int>(i), results_[program.outputs[i]]);
  }
  return absl::OkStatus();
}

absl::Status StageCall::FillZero(Tensor* tensor) {
  if (tensor->TotalBytes() == 0) return absl::OkStatus();
  if (!node_->is_on_cpu()) {
    return ToAbslStatus(backend_->FillZero(tensor->data(), tensor->TotalBytes(), caller_));
  }
  std::memset(tensor->data(), 0, tensor->TotalBytes());
  return absl::OkStatus();
}

LadderCalls StageCall::Ladder() {
  LadderCalls calls;
  calls.get_workspaces = [this](const std::vector<size_t>& bytes, std::vector<void*>* lanes) {
    return GetWorkspaces(bytes, lanes);
  };
  calls.run_stock = [this] {
    if (!node_->can_run_stock()) {
      return Unsupported("TensorFlow's own kernels cannot run in a function that XLA compiled.");
    }
    // On a GPU this enqueues kernels on the caller's stream. On a CPU they run at once, so they
    // must wait for the work on the stream, if there is one.
    const auto compute = [this] {
      absl::Status status = ComputeStock();
      if (absl::IsResourceExhausted(status) && TransformedFilters::GiveUpAll(backend_)) {
        status = ComputeStock();
      }
      return FromAbslStatus(status);
    };
    if (!node_->is_on_cpu() || caller_ == nullptr) return compute();
    static_cast<HostStream*>(caller_)->Enqueue(compute);
    return Status::Ok();
  };
  return calls;
}

absl::Status StageCall::RunStock(Stream caller) {
  caller_ = caller;
  // A lack of memory has already been counted.
  if (resolved_->unplanned_kind == nullptr) {
    const Status ran = Ladder().run_stock();
    if (!ran.ok() && !node_->can_run_stock()) {
      return ToAbslStatus(
          ResourceExhausted(ran.message() +
                            " There is no memory for the stage's workspaces, or workspace_limit_mb "
                            "is too small for them."));
    }
    TF_RETURN_IF_ERROR(ToAbslStatus(ran));
    EndTiming(caller);
    return absl::OkStatus();
  }
  CountFallback(resolved_->unplanned_kind, resolved_->why_unplanned);
  const Status ran = Ladder().run_stock();
  if (ran.ok()) return absl::OkStatus();
  return ToAbslStatus(Status(
      ran.code(), ran.message() + " The stage ran without its plan: " + resolved_->why_unplanned));
}

Status StageCall::Enqueue(Stream caller) {
  caller_ = caller;
  if (lesser_ == nullptr) BindHeldFilters();
  const TimelineCall timed(node_->timeline_calls(), context_->op_kernel().name_view());
  TF_INTEROP_RETURN_IF_ERROR(RunOrDescend(backend_, resolved_->stage,
                                          resolved_->options.convolutions, prepared(), buffers_,
                                          caller, Ladder()));
  if (!node_->is_on_cpu()) EndTiming(caller);
  return Status::Ok();
}

// Binds transformed filters to launches. Enqueues the transformations that are still missing.
void StageCall::BindHeldFilters() {
  buffers_.joined_filters.assign(resolved_->prepared.merged.size(), nullptr);
  FilterAddresses addresses;
  for (const HeldFilter& each : resolved_->held_filters) {
    addresses.clear();
    for (const size_t input : each.inputs) {
      addresses.push_back(context_->input(static_cast<int>(input)).data());
    }
    const auto allocate = [&](size_t bytes) { return AllocateFor(context_, each.inputs, bytes); };
    size_t bytes = 0;
    TransformedFilters::Transform transform;
    const void** place = nullptr;
    if (each.merged == HeldFilter::kNotMerged) {
      const PreparedConvolution& prepared = *resolved_->prepared.steps[each.step].convolution;
      bytes = prepared.transformed_filter_bytes();
      transform = [&](void* transformed) {
        return backend_->TransformFilter(prepared, addresses[0], transformed, caller_);
      };
      place = &buffers_.steps[each.step].transformed_filter;
    } else {
      const PreparedMerge& merge = resolved_->prepared.merged[each.merged].merge;
      const size_t lane = resolved_->prepared.steps[each.step].lane;
      bytes = merge.joined_filter_bytes();
      transform = [&, lane](void* joined) {
        return EnqueueJoinedFilter(backend_, merge, addresses, buffers_.lane_workspaces[lane],
                                   joined, caller_);
      };
      place = &buffers_.joined_filters[each.merged];
    }
    std::shared_ptr<TransformedFilter> transformed = node_->filters()->FindOrMake(
        each.operation, addresses, each.key, bytes, caller_, allocate, transform);
    if (transformed == nullptr) continue;
    *place = transformed->memory.data;
    transformed_filters_.push_back(std::move(transformed));
  }
}

std::shared_ptr<const TimeMark> StageCall::Mark(
    Stream caller, const std::shared_ptr<const TimeMark>& since) const {
  if (node_->is_on_cpu()) {
    auto now = std::make_shared<HostTimeMark>();
    now->Pass();
    return now;
  }
  std::shared_ptr<const TimeMark> mark;
  return backend_->Mark(caller, since, &mark).ok() ? mark : nullptr;
}

void StageCall::EndTiming(Stream caller) {
  if (begin_ != nullptr) resolved_->timing->End(timed_, begin_, Mark(caller, begin_));
}

void StageCall::MarkComplete() {
  EndTiming(nullptr);
  for (const auto& filter : transformed_filters_) filter->is_complete = true;
}

}  // namespace tf_interop
