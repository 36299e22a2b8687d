#include "cc_kernels/tf/conv_stage_base.h"

#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/prepare_gate.h"
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
constexpr char kRefusedAlgorithm[] = "another algorithm than the plan's";

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

// One tensor for each lane that needs workspace.
absl::Status AllocateWorkspaces(OpKernelContext* context, StageCall* call) {
  const std::vector<size_t>& bytes = call->stage.lane_workspace_bytes;
  call->lane_workspaces.assign(bytes.size(), nullptr);
  call->workspace_tensors.assign(bytes.size(), Tensor());
  for (size_t lane = 0; lane < bytes.size(); ++lane) {
    if (bytes[lane] == 0) continue;
    TF_RETURN_IF_ERROR(AllocateBytesOrGiveUp(context, bytes[lane], &call->workspace_tensors[lane]));
    call->lane_workspaces[lane] = call->workspace_tensors[lane].data();
  }
  return absl::OkStatus();
}

void BindOperands(const StageProgram& program, const OpInputList& inputs,
                  const std::vector<Tensor*>& results, StageCall* call) {
  call->buffers.resize(program.steps.size());
  for (size_t i = 0; i < program.steps.size(); ++i) {
    int next = 0;
    for (const Operand& operand : program.steps[i].operands) {
      if (operand.is_size) continue;
      call->buffers[i].inputs[next++] = inputs[operand.index].data();
    }
    call->buffers[i].result = results[i]->data();
  }
}

// The one gate of this process: TensorFlow's switches are for all devices.
absl::Status PrepareUnderSwitches(Backend* backend, const PrepareSwitches& switches,
                                  const std::function<Status()>& prepare) {
  static PrepareGate* const gate = new PrepareGate();
  return ToAbslStatus(gate->Prepare(backend, switches, prepare));
}

// Where there is no memory for the workspaces, `filters` go, and where that is not enough, the
// stage becomes a sequential one.
absl::Status AllocateWorkspacesOrGoSequential(OpKernelContext* context, Backend* backend,
                                              TransformedFilters* filters, StageCall* call) {
  const absl::Status allocated = AllocateWorkspaces(context, call);
  if (allocated.ok()) return allocated;
  if (filters->Clear() && AllocateWorkspaces(context, call).ok()) return absl::OkStatus();
  CountFallback("No memory for the workspaces of a stage; its convolutions ran in sequence.");
  call->is_short_of_memory = true;
  call->workspace_tensors.clear();
  TF_RETURN_IF_ERROR(PrepareUnderSwitches(backend, call->switches, [&] {
    return PrepareSequentialStage(backend, call->steps, &call->stage);
  }));
  return AllocateWorkspaces(context, call);
}

}  // namespace

absl::Status AllocateBytesOrGiveUp(OpKernelContext* context, size_t bytes, Tensor* tensor) {
  tensorflow::AllocationAttributes attributes;
  attributes.retry_on_failure = false;
  return context->allocate_temp(tensorflow::DT_UINT8, TensorShape({static_cast<int64_t>(bytes)}),
                                tensor, tensorflow::AllocatorAttributes(), attributes);
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
  std::string why_unplanned;
  ApplySchedule(program.schedules, &call->steps, &lanes, &why_unplanned);
  call->switches = {tensorflow::tensor_float_32_execution_enabled(),
                    tensorflow::OpDeterminismRequired()};
  TF_RETURN_IF_ERROR(PrepareUnderSwitches(backend, call->switches, [&] {
    return PrepareStage(backend, call->steps, lanes, WorkspaceLimitBytes(), &call->stage);
  }));

  std::vector<Tensor*> results(call->steps.size(), nullptr);
  for (size_t i = 0; i < call->steps.size(); ++i) {
    TF_RETURN_IF_ERROR(
        context->allocate_output(static_cast<int>(i), result_shapes[i], &results[i]));
  }
  CountStageRun();
  if (!why_unplanned.empty()) CountFallback(kUnplannedBatchSize, why_unplanned);
  for (const std::string& reason : call->stage.fallbacks) CountFallback(kRefusedAlgorithm, reason);
  TF_RETURN_IF_ERROR(AllocateWorkspacesOrGoSequential(context, backend, filters, call));
  BindOperands(program, inputs, results, call);
  return absl::OkStatus();
}

}  // namespace tf_interop
