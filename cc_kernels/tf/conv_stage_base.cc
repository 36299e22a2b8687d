#include "cc_kernels/tf/conv_stage_base.h"

#include <cstdint>
#include <functional>
#include <iterator>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/launch_recovery.h"
#include "cc_kernels/core/memory_ladder.h"
#include "cc_kernels/core/workspace_limit.h"
#include "cc_kernels/tf/resolve_step.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tensor_float_32_utils.h"
#include "tensorflow/core/util/determinism.h"
#include "tensorflow/core/util/device_name_utils.h"
#include "tensorflow/core/util/env_var.h"

namespace tf_interop {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// TensorFlow's own limit for convolutions (kDefaultWorkspaceLimit of conv_ops_gpu: 8 GiB).
constexpr int64_t kDefaultWorkspaceLimitMb = 8192;

// Kinds of fallbacks.
constexpr char kUnplannedBatchSize[] = "no schedule, so that a stage ran in sequence";
constexpr char kFiltersGivenUp[] = "no memory, so that a stage gave up its transformed filters";

std::vector<int64_t> SizesValue(const Tensor& tensor) {
  const auto values = tensor.flat<int32_t>();
  return std::vector<int64_t>(values.data(), values.data() + values.size());
}

// Shapes of all steps: what to run and what comes out.
absl::Status ResolveSteps(const StageProgram& program, const OpInputList& inputs,
                          const OpInputList& sizes, std::vector<StageStep>* steps,
                          std::vector<TensorShape>* result_shapes) {
  for (const StepProgram& step : program.steps) {
    std::vector<TensorShape> operand_shapes;
    std::vector<int64_t> sizes_value;
    for (const Operand& operand : step.operands) {
      const Tensor& tensor = operand.is_size ? sizes[operand.index] : inputs[operand.index];
      operand_shapes.push_back(tensor.shape());
      if (operand.is_size) sizes_value = SizesValue(tensor);
    }
    StageStep resolved;
    TensorShape result_shape;
    TF_RETURN_IF_ERROR(
        ResolveStep(step, operand_shapes, sizes_value, &resolved.convolution, &result_shape));
    resolved.name = step.name;
    steps->push_back(std::move(resolved));
    result_shapes->push_back(result_shape);
  }
  return absl::OkStatus();
}

absl::Status AllocateBytes(OpKernelContext* context, size_t bytes, bool may_wait, Tensor* tensor) {
  tensorflow::AllocationAttributes attributes;
  attributes.retry_on_failure = may_wait;
  return context->allocate_temp(tensorflow::DT_UINT8, TensorShape({static_cast<int64_t>(bytes)}),
                                tensor, tensorflow::AllocatorAttributes(), attributes);
}

size_t Total(const std::vector<size_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), size_t{0});
}

// One tensor for each lane that needs workspace; for all of them, or for none.
bool GetWorkspaces(OpKernelContext* context, const std::vector<size_t>& bytes, bool is_last,
                   StageCall* call) {
  call->lane_workspaces.assign(bytes.size(), nullptr);
  call->workspace_tensors.assign(bytes.size(), Tensor());
  if (Total(bytes) > StageWorkspaceLimit() && !is_last) return false;
  for (size_t lane = 0; lane < bytes.size(); ++lane) {
    if (bytes[lane] == 0) continue;
    Tensor* const tensor = &call->workspace_tensors[lane];
    // Where nothing less can be done, TensorFlow may wait until another op has freed its memory.
    if (!AllocateBytes(context, bytes[lane], /*may_wait=*/is_last, tensor).ok()) {
      call->workspace_tensors.clear();
      return false;
    }
    call->lane_workspaces[lane] = tensor->data();
  }
  return true;
}

// TensorFlow's own convolutions keep no filters: where there is no memory for an output, these go.
absl::Status AllocateOutputs(OpKernelContext* context, const std::vector<TensorShape>& shapes,
                             TransformedFilters* filters, std::vector<Tensor*>* results) {
  results->assign(shapes.size(), nullptr);
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto allocate = [&] {
      return context->allocate_output(static_cast<int>(i), shapes[i], &(*results)[i]);
    };
    absl::Status allocated = allocate();
    if (absl::IsResourceExhausted(allocated) && filters->Clear()) {
      CountFallback(kFiltersGivenUp);
      allocated = allocate();
    }
    TF_RETURN_IF_ERROR(allocated);
  }
  return absl::OkStatus();
}

void BindOperands(const StageProgram& program, const OpInputList& inputs,
                  const std::vector<Tensor*>& results, StageCall* call) {
  call->buffers.resize(program.steps.size());
  for (size_t i = 0; i < program.steps.size(); ++i) {
    auto& bound = call->buffers[i].inputs;
    size_t next = 0;
    for (const Operand& operand : program.steps[i].operands) {
      // ParseStageProgram lets no step read more than there is room for.
      if (operand.is_size || next == std::size(bound)) continue;
      bound[next++] = inputs[operand.index].data();
    }
    call->buffers[i].result = results[i]->data();
  }
}

// The one gate of this process: TensorFlow's switches are for all devices.
absl::Status PrepareUnderSwitches(Backend* backend, const PrepareSwitches& switches,
                                  const std::function<Status()>& prepare) {
  static auto* const gate = new PrepareGate();
  return ToAbslStatus(gate->Prepare(backend, switches, prepare));
}

// Where there is no memory for the workspaces, `filters` go, and where that is not enough, the
// stage is made to need less.
absl::Status AllocateWorkspaces(OpKernelContext* context, Backend* backend,
                                TransformedFilters* filters, StageCall* call) {
  const auto get = [&](const std::vector<size_t>& lane_bytes, bool is_last) {
    return GetWorkspaces(context, lane_bytes, is_last, call);
  };
  const std::vector<size_t>& planned = call->stage.lane_workspace_bytes;
  if (get(planned, /*is_last=*/false)) return absl::OkStatus();
  // Over a limit that the user has set, more memory is no help.
  if (Total(planned) <= StageWorkspaceLimit() && filters->Clear()) {
    CountFallback(kFiltersGivenUp);
    if (get(planned, /*is_last=*/false)) return absl::OkStatus();
  }
  call->is_short_of_memory = true;
  return PrepareUnderSwitches(backend, call->switches, [&] {
    return PrepareWithLessMemory(backend, call->steps, WorkspaceLimitBytes(), get, &call->stage);
  });
}

}  // namespace

absl::Status AllocateBytesOrGiveUp(OpKernelContext* context, size_t bytes, Tensor* tensor) {
  return AllocateBytes(context, bytes, /*may_wait=*/false, tensor);
}

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

std::string ShortDeviceName(const tensorflow::OpKernelConstruction* context) {
  const std::string& name = context->device()->name();
  tensorflow::DeviceNameUtils::ParsedName parsed;
  if (!tensorflow::DeviceNameUtils::ParseFullName(name, &parsed) || !parsed.has_type) return name;
  return absl::StrCat(parsed.type, ":", parsed.id);
}

absl::Status GetStageProgram(tensorflow::OpKernelConstruction* context, StageProgram* program) {
  StageAttributes attributes;
  TF_RETURN_IF_ERROR(context->GetAttr("steps", &attributes.steps));
  TF_RETURN_IF_ERROR(context->GetAttr("batch_sizes", &attributes.schedules.batch_sizes));
  TF_RETURN_IF_ERROR(context->GetAttr("step_lanes", &attributes.schedules.step_lanes));
  TF_RETURN_IF_ERROR(context->GetAttr("algorithms", &attributes.schedules.algorithms));
  TF_RETURN_IF_ERROR(context->GetAttr("lane_priorities", &attributes.schedules.lane_priorities));
  TF_RETURN_IF_ERROR(context->GetAttr("lane_sm_counts", &attributes.schedules.lane_sm_counts));
  TF_RETURN_IF_ERROR(context->GetAttr("merged_lanes", &attributes.schedules.merged_lanes));
  TF_RETURN_IF_ERROR(context->GetAttr("Tin", &attributes.input_types));
  TF_RETURN_IF_ERROR(context->GetAttr("Tout", &attributes.output_types));
  TF_RETURN_IF_ERROR(context->GetAttr("num_sizes", &attributes.size_count));
  TF_RETURN_IF_ERROR(context->GetAttr("constant_inputs", &attributes.constant_inputs));
  return ParseStageProgram(attributes, program);
}

absl::Status MakeStageCall(OpKernelContext* context, const StageProgram& program, Backend* backend,
                           TransformedFilters* filters, StageCall* call) {
  OpInputList inputs, sizes;
  TF_RETURN_IF_ERROR(context->input_list("inputs", &inputs));
  TF_RETURN_IF_ERROR(context->input_list("sizes", &sizes));
  std::vector<TensorShape> result_shapes;
  TF_RETURN_IF_ERROR(ResolveSteps(program, inputs, sizes, &call->steps, &result_shapes));
  std::vector<LaneOptions> lanes;
  call->schedule_batch_size =
      ApplySchedule(program.schedules, &call->steps, &lanes, &call->why_unplanned);
  call->switches = {tensorflow::tensor_float_32_execution_enabled(),
                    tensorflow::OpDeterminismRequired()};
  TF_RETURN_IF_ERROR(PrepareUnderSwitches(backend, call->switches, [&] {
    return PrepareStage(backend, call->steps, lanes, WorkspaceLimitBytes(), &call->stage);
  }));

  std::vector<Tensor*> results;
  TF_RETURN_IF_ERROR(AllocateOutputs(context, result_shapes, filters, &results));
  CountStageRun();
  if (!call->why_unplanned.empty()) CountFallback(kUnplannedBatchSize, call->why_unplanned);
  for (const std::string& reason : call->stage.fallbacks) CountFallback(kRefusedAlgorithm, reason);
  for (const std::string& reason : call->stage.unmerged) CountFallback(kUnmergedLane, reason);
  TF_RETURN_IF_ERROR(AllocateWorkspaces(context, backend, filters, call));
  BindOperands(program, inputs, results, call);
  return absl::OkStatus();
}

Status RunStageCall(OpKernelContext* context, Backend* backend, Stream caller, StageCall* call) {
  const auto make_sequence = [&](Recovery recovery, PreparedStage* sequence, void** workspace) {
    const absl::Status prepared = PrepareUnderSwitches(backend, call->switches, [&] {
      return PrepareRecovery(backend, call->steps, recovery, WorkspaceLimitBytes(), sequence);
    });
    if (!prepared.ok()) return Internal(std::string(prepared.message()));
    const size_t bytes = sequence->lane_workspace_bytes[0];
    *workspace = nullptr;
    if (bytes == 0) return Status::Ok();
    // Beside the workspaces of the lanes, which may still be in use.
    Tensor* const tensor = &call->workspace_tensors.emplace_back();
    const bool is_last = recovery == Recovery::kLeastWorkspace;
    if (!AllocateBytes(context, bytes, /*may_wait=*/is_last, tensor).ok()) {
      return ResourceExhausted("Expected memory for a workspace of " + std::to_string(bytes) +
                               " bytes, got none.");
    }
    *workspace = tensor->data();
    return Status::Ok();
  };
  return RunStageOrRecover(backend, call->stage, call->buffers, call->lane_workspaces,
                           call->joined_filters, caller, make_sequence);
}

}  // namespace tf_interop
