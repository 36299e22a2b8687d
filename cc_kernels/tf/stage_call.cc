#include "cc_kernels/tf/stage_call.h"

#include <chrono>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "cc_kernels/core/host/stream.h"
#include "cc_kernels/core/workspace_limit.h"
#include "cc_kernels/tf/held_filters.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tensor_float_32_utils.h"
#include "tensorflow/core/util/determinism.h"
#include "tensorflow/core/util/device_name_utils.h"
#include "tensorflow/core/util/env_var.h"

namespace tf_interop {

using tensorflow::AllocatorAttributes;
using tensorflow::OpInputList;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

namespace {

// TensorFlow's own limit for convolutions (kDefaultWorkspaceLimit of conv_ops_gpu: 8 GiB).
constexpr int64_t kDefaultWorkspaceLimitMb = 8192;

// Bytes that one convolution may ask for as workspace: those of TF_CUDNN_WORKSPACE_LIMIT_IN_MB, as
// for TensorFlow's own convolutions. For those of a stage together see core/workspace_limit.h.
size_t WorkspaceLimitBytes() {
  static const size_t limit = [] {
    int64_t megabytes = kDefaultWorkspaceLimitMb;
    // A value that is no number leaves the default in place, as in TensorFlow.
    (void)tensorflow::ReadInt64FromEnvVar("TF_CUDNN_WORKSPACE_LIMIT_IN_MB",
                                          kDefaultWorkspaceLimitMb, &megabytes);
    return static_cast<size_t>(megabytes < 0 ? 0 : megabytes) << 20;
  }();
  return limit;
}

// Such as "GPU:0".
std::string ShortDeviceName(const tensorflow::OpKernelConstruction* context) {
  const std::string& name = context->device()->name();
  tensorflow::DeviceNameUtils::ParsedName parsed;
  if (!tensorflow::DeviceNameUtils::ParseFullName(name, &parsed) || !parsed.has_type) return name;
  return absl::StrCat(parsed.type, ":", parsed.id);
}

Status FromAbslStatus(const absl::Status& status) {
  if (status.ok()) return Status::Ok();
  std::string message(status.message());
  if (absl::IsInvalidArgument(status)) return InvalidArgument(std::move(message));
  if (absl::IsUnimplemented(status)) return Unsupported(std::move(message));
  if (absl::IsResourceExhausted(status)) return ResourceExhausted(std::move(message));
  return Internal(std::move(message));
}

size_t Total(const std::vector<size_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), size_t{0});
}

// `limit` is that of all workspaces together.
CallSignature SignatureOf(const OpInputList& inputs, const OpInputList& sizes,
                          const PrepareOptions& options, size_t limit, Backend* backend) {
  CallSignature signature = {static_cast<int64_t>(options.workspace_limit_bytes),
                             options.allow_tf32, options.deterministic, static_cast<int64_t>(limit),
                             reinterpret_cast<int64_t>(backend)};
  for (const Tensor& input : inputs) {
    signature.push_back(input.dims());
    for (int i = 0; i < input.dims(); ++i) signature.push_back(input.dim_size(i));
  }
  for (const Tensor& size : sizes) {
    const auto values = size.flat<int32_t>();
    signature.push_back(values.size());
    signature.insert(signature.end(), values.data(), values.data() + values.size());
  }
  return signature;
}

// Where the workspaces of a prepared stage are over the user's limit, which no call can change:
// prepares the first lesser stage within it.
absl::Status KeepWithin(size_t limit, Backend* backend, ResolvedStage* resolved) {
  if (Total(resolved->prepared.lane_workspace_bytes) <= limit) return absl::OkStatus();
  LadderCalls calls;
  calls.get_workspaces = [&](const std::vector<size_t>& bytes, bool, std::vector<void*>*) {
    return Total(bytes) <= limit;
  };
  calls.run_stock = [] { return Status::Ok(); };  // says that there is stock; each call has its own
  LesserStage lesser;
  TF_RETURN_IF_ERROR(ToAbslStatus(FindForMemory(backend, resolved->stage, resolved->options,
                                                resolved->prepared, calls, &lesser)));
  resolved->prepared = std::move(lesser.stage);
  resolved->rung = lesser.rung;
  return absl::OkStatus();
}

}  // namespace

absl::Status ToAbslStatus(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return absl::OkStatus();
    case StatusCode::kInvalidArgument:
      return absl::InvalidArgumentError(status.message());
    case StatusCode::kUnsupported:
      return absl::UnimplementedError(status.message());
    case StatusCode::kResourceExhausted:
      return absl::ResourceExhaustedError(status.message());
    case StatusCode::kUnavailable:
      return absl::UnavailableError(status.message());
    case StatusCode::kInternal:
      return absl::InternalError(status.message());
  }
  return absl::InternalError(status.message());
}

StageNode::StageNode(tensorflow::OpKernelConstruction* context)
    : counted_device_(ShortDeviceName(context)),
      is_on_cpu_(context->device_type() == tensorflow::DEVICE_CPU),
      stock_kernels_(&program_, is_on_cpu_) {
  StageTensors tensors;
  OP_REQUIRES_OK(context, GetStageProgram(context, &tensors, &program_));
}

absl::Status StageNode::Resolve(OpKernelContext* context, Backend* backend,
                                std::shared_ptr<const ResolvedStage>* resolved) {
  OpInputList inputs, sizes;
  TF_RETURN_IF_ERROR(context->input_list("inputs", &inputs));
  TF_RETURN_IF_ERROR(context->input_list("sizes", &sizes));
  PrepareOptions options;
  options.workspace_limit_bytes = WorkspaceLimitBytes();
  options.allow_tf32 = tensorflow::tensor_float_32_execution_enabled();
  options.deterministic = tensorflow::OpDeterminismRequired();
  const size_t limit = StageWorkspaceLimit();
  const CallSignature signature = SignatureOf(inputs, sizes, options, limit, backend);
  *resolved = cache_.Find(signature).value_or(nullptr);
  if (*resolved != nullptr && (!(*resolved)->try_again_at.has_value() ||
                               std::chrono::steady_clock::now() < *(*resolved)->try_again_at)) {
    return absl::OkStatus();
  }
  auto made = std::make_shared<ResolvedStage>();
  TF_RETURN_IF_ERROR(ResolveStage(program_, inputs, sizes, options, backend, made.get()));
  if (made->unplanned_kind == nullptr) {
    TF_RETURN_IF_ERROR(KeepWithin(limit, backend, made.get()));
  }
  if (made->unplanned_kind == nullptr && made->rung != Rung::kStock) {
    made->held_filters = FindHeldFilters(program_, *made, backend);
  }
  *resolved = cache_.Insert(signature, std::move(made),
                            [](const auto& there) { return there->try_again_at.has_value(); });
  return absl::OkStatus();
}

StageCall::StageCall(StageNode* node, OpKernelContext* context, Backend* backend)
    : node_(node), context_(context), backend_(backend) {}

absl::Status StageCall::Prepare() {
  TF_RETURN_IF_ERROR(node_->Resolve(context_, backend_, &resolved_));
  results_.resize(node_->program().steps.size());
  runs_stock_ = resolved_->unplanned_kind != nullptr || resolved_->rung == Rung::kStock;
  if (resolved_->rung.has_value()) CountForMemory(*resolved_->rung);
  if (!runs_stock_) {
    TF_RETURN_IF_ERROR(AllocateResults());
    TF_RETURN_IF_ERROR(AllocateWorkspaces());
    BindOperands();
  }
  CountStageRun();
  for (const std::string& reason : resolved_->prepared.fallbacks) {
    CountFallback(kRefusedAlgorithm, reason);
  }
  for (const std::string& reason : resolved_->prepared.unmerged) {
    CountFallback(kUnmergedLane, reason);
  }
  return absl::OkStatus();
}

const PreparedStage& StageCall::prepared() const {
  return lesser_ == nullptr ? resolved_->prepared : lesser_->stage;
}

// TensorFlow's own convolutions keep no filters: if there is no memory for a result, these go.
absl::Status StageCall::AllocateResults() {
  const StageProgram& program = node_->program();
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    TF_RETURN_IF_ERROR(AllocateOutput(static_cast<int>(i)));
  }
  for (const size_t operation : program.intermediates) {
    absl::Status status;
    TransformedFilters::GetMemory(backend_, [&](bool may_wait) {
      status = AllocateTemporary(operation, AllocatorAttributes(), may_wait);
      return !absl::IsResourceExhausted(status);
    });
    TF_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status StageCall::AllocateOutput(int output) {
  const size_t operation = node_->program().outputs[output];
  const AllocatorAttributes attributes = context_->output_alloc_attr(output);
  absl::Status status;
  TransformedFilters::GetMemory(backend_, [&](bool may_wait) {
    // Only a temporary can be asked for without waiting. It cannot be of a scope, whose memory has
    // been allocated before.
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

// One tensor for each lane that needs workspace; for all of them, or for none.
bool StageCall::GetWorkspaces(const std::vector<size_t>& bytes, bool is_last,
                              std::vector<void*>* lanes) {
  if (Total(bytes) > StageWorkspaceLimit() && !is_last) return false;
  lanes->assign(bytes.size(), nullptr);
  const size_t got_before = workspaces_.size();
  for (size_t lane = 0; lane < bytes.size(); ++lane) {
    if (bytes[lane] == 0) continue;
    Tensor workspace;
    // Where nothing less can be done, TensorFlow may wait until another op has freed its memory.
    if (!AllocateBytes(context_, bytes[lane], /*may_wait=*/is_last, &workspace).ok()) {
      workspaces_.resize(got_before);
      return false;
    }
    (*lanes)[lane] = workspace.data();
    workspaces_.push_back(std::move(workspace));
  }
  return true;
}

// If there is no memory for the workspaces, transformed filters go, and where that is not
// enough, the stage is made to need less.
absl::Status StageCall::AllocateWorkspaces() {
  const std::vector<size_t>& planned = resolved_->prepared.lane_workspace_bytes;
  std::vector<void*>* const lanes = &buffers_.lane_workspaces;
  // Over a limit that the user has set, more memory is no help.
  if (Total(planned) <= StageWorkspaceLimit() &&
      TransformedFilters::GetWithoutWaiting(
          backend_, [&](bool) { return GetWorkspaces(planned, /*is_last=*/false, lanes); })) {
    return absl::OkStatus();
  }
  lesser_ = std::make_unique<LesserStage>();
  TF_RETURN_IF_ERROR(ToAbslStatus(DescendForMemory(backend_, resolved_->stage, resolved_->options,
                                                   resolved_->prepared, Ladder(), lesser_.get())));
  runs_stock_ = lesser_->rung == Rung::kStock;
  *lanes = lesser_->lane_workspaces;
  return absl::OkStatus();
}

void StageCall::BindOperands() {
  const std::vector<size_t>& operations = resolved_->schedule->operations;
  buffers_.steps.resize(operations.size());
  for (size_t i = 0; i < operations.size(); ++i) {
    auto& bound = buffers_.steps[i].inputs;
    size_t next = 0;
    for (const Operand& operand : node_->program().steps[operations[i]].operands) {
      // ParseStageProgram lets no step read more than there is room for.
      if (operand.source == Operand::Source::kSize || next == std::size(bound)) continue;
      bound[next++] = OperandOf(operand).data();
    }
    buffers_.steps[i].result = results_[operations[i]].data();
  }
}

const Tensor& StageCall::OperandOf(const Operand& operand) const {
  if (operand.source == Operand::Source::kStep) return results_[operand.index];
  // The list `inputs` comes first, then the list `sizes`.
  const size_t first = operand.source == Operand::Source::kInput ? 0 : node_->program().input_count;
  return context_->input(static_cast<int>(first + operand.index));
}

// Runs TensorFlow's own kernel for one step.
absl::Status StageCall::ComputeByKernel(size_t operation, AllocatorAttributes attributes,
                                        Tensor* result) {
  std::vector<Tensor> operands;
  for (const Operand& operand : node_->program().steps[operation].operands) {
    operands.push_back(OperandOf(operand));
  }
  TF_RETURN_IF_ERROR(
      node_->stock_kernels()->Run(context_, operation, std::move(operands), attributes, result));
  if (result->shape() == resolved_->result_shapes[operation]) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "ConvStage step '", node_->program().steps[operation].name, "': expected a result of shape ",
      resolved_->result_shapes[operation].DebugString(), " from TensorFlow's own kernel, got ",
      result->shape().DebugString(), "."));
}

absl::Status StageCall::ComputeStock() {
  const StageProgram& program = node_->program();
  // Results of an attempt before this one go first: there may be no memory for both.
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    delete context_->release_output(static_cast<int>(i)).tensor;
  }
  results_.assign(program.steps.size(), Tensor());
  std::vector<size_t> readers = program.reader_counts;  // that are still to come
  for (const size_t operation : program.order()) {
    const StepProgram& step = program.steps[operation];
    if (resolved_->computes_nothing[operation]) {
      // oneDNN gives some of them a wrong shape, or an error.
      TF_RETURN_IF_ERROR(AllocateTemporary(operation, AllocatorAttributes(), /*may_wait=*/true));
      TF_RETURN_IF_ERROR(FillZero(&results_[operation]));
    } else {
      AllocatorAttributes attributes;
      if (step.output >= 0) attributes = context_->output_alloc_attr(step.output);
      TF_RETURN_IF_ERROR(ComputeByKernel(operation, attributes, &results_[operation]));
    }
    // As TensorFlow would, so that no more memory is needed than without the stage.
    for (const Operand& operand : step.operands) {
      if (operand.source != Operand::Source::kStep || --readers[operand.index] > 0) continue;
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
  calls.get_workspaces = [this](const std::vector<size_t>& bytes, bool is_last,
                                std::vector<void*>* lanes) {
    return GetWorkspaces(bytes, is_last, lanes);
  };
  calls.run_stock = [this] {
    // A GPU's kernels are enqueued on the caller's stream; those of a CPU run at once, which has to
    // be after what is on the stream, if there is one.
    if (!node_->is_on_cpu() || caller_ == nullptr) return FromAbslStatus(ComputeStock());
    static_cast<HostStream*>(caller_)->Enqueue([this] { return FromAbslStatus(ComputeStock()); });
    return Status::Ok();
  };
  return calls;
}

absl::Status StageCall::RunStock(Stream caller) {
  caller_ = caller;
  const LadderCalls calls = Ladder();
  // What there was no memory for has been counted.
  if (resolved_->unplanned_kind == nullptr) return ToAbslStatus(calls.run_stock());
  const Status ran =
      tf_interop::RunStock(calls, resolved_->unplanned_kind, resolved_->why_unplanned);
  if (ran.ok()) return absl::OkStatus();
  return ToAbslStatus(Status(
      ran.code(), ran.message() + " The stage ran as without a plan: " + resolved_->why_unplanned));
}

Status StageCall::Enqueue(Stream caller) {
  caller_ = caller;
  if (lesser_ == nullptr) {
    BindHeldFilters(context_, *resolved_, caller, node_->filters(), &buffers_,
                    &transformed_filters_);
  }
  const TimelineCall timed(node_->timeline_calls(), context_->op_kernel().name_view());
  return RunOrDescend(backend_, resolved_->stage, resolved_->options, prepared(), buffers_, caller,
                      Ladder());
}

void StageCall::MarkComplete() {
  for (const auto& filter : transformed_filters_) filter->MarkComplete();
}

}  // namespace tf_interop
