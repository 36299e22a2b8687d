#include "cc_kernels/core/cudnn/prepare_cudnn_convolution.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/cudnn_assembly.h"
#include "cc_kernels/core/cudnn/cudnn_graph.h"
#include "cc_kernels/core/cudnn/engine_config.h"
#include "cc_kernels/core/cudnn/execution_plan.h"
#include "cc_kernels/core/cudnn/formulation.h"
#include "cc_kernels/core/cudnn/legacy_convolution.h"
#include "cc_kernels/core/cudnn/serialized_convolution.h"

namespace tf_interop {
namespace {

// Everything that preparing one convolution needs at every level.
struct PrepareContext {
  const CudaDriver& driver;
  const CudnnLibrary& library;
  cudnnHandle_t handle = nullptr;
  const Convolution& convolution;
  size_t workspace_limit_bytes = 0;
  bool wants_least_workspace = false;
  CudnnPrepareOptions options;
};

ExecutableRequest RequestFor(const PrepareContext& context, size_t copies_bytes) {
  ExecutableRequest request;
  request.allow_reduced_precision =
      context.convolution.dtype != DataType::kFloat || context.options.allow_tf32;
  request.requires_determinism = context.options.deterministic;
  request.workspace_limit_bytes =
      context.workspace_limit_bytes - std::min(context.workspace_limit_bytes, copies_bytes);
  request.wants_least_workspace = context.wants_least_workspace;
  return request;
}

Status PrepareConvolution(const PrepareContext& context, const Convolution& executed,
                          const AlgorithmTag* pinned, const ExecutableRequest& request,
                          std::unique_ptr<const Executable>* executable) {
  const auto* legacy = pinned == nullptr ? nullptr : std::get_if<LegacyTag>(pinned);
  if (legacy != nullptr) {
    return LegacyConvolution::Make(context.library, context.handle, executed, *legacy, request,
                                   executable);
  }
  auto graph = std::make_shared<OperationGraph>();
  TF_INTEROP_RETURN_IF_ERROR(
      BuildConvolutionGraph(context.library, context.handle, executed, graph.get()));
  if (pinned != nullptr) {
    return PinPlan(context.library, context.handle, graph, std::get<EngineTag>(*pinned), request,
                   executable);
  }
  return ChoosePlan(context.library, context.handle, graph, HeuristicsFor(executed), request,
                    executable);
}

Status PrepareEpilogue(const PrepareContext& context, const Convolution& computed,
                       const ExecutableRequest& request,
                       std::unique_ptr<const Executable>* executable) {
  auto graph = std::make_shared<OperationGraph>();
  TF_INTEROP_RETURN_IF_ERROR(
      BuildEpilogueGraph(context.library, context.handle, computed, graph.get()));
  return ChoosePlan(context.library, context.handle, graph, HeuristicsForEpilogue(), request,
                    executable);
}

// Prepares the convolution in one formulation, with a pinned algorithm unless that is null.
Status PrepareFormulation(const PrepareContext& context, const Formulation& formulation,
                          const AlgorithmTag* pinned,
                          std::shared_ptr<const CudnnConvolution>* prepared) {
  CudnnAssembly assembly(context.driver, context.library, context.convolution, formulation);
  TF_INTEROP_RETURN_IF_ERROR(assembly.PlaceTensors());
  if (!context.wants_least_workspace && assembly.copies_bytes() > context.workspace_limit_bytes) {
    return Unsupported("Expected at most " + std::to_string(context.workspace_limit_bytes) +
                       " bytes of workspace, got " + std::to_string(assembly.copies_bytes()) +
                       " for copies of tensors alone.");
  }
  const ExecutableRequest request = RequestFor(context, assembly.copies_bytes());
  std::unique_ptr<const Executable> convolution;
  TF_INTEROP_RETURN_IF_ERROR(
      PrepareConvolution(context, ExecutedConvolution(context.convolution, formulation), pinned,
                         request, &convolution));
  std::unique_ptr<const Executable> epilogue;
  if (formulation.splits_epilogue) {
    TF_INTEROP_RETURN_IF_ERROR(PrepareEpilogue(context, assembly.computed(), request, &epilogue));
  }
  *prepared = assembly.Finish(std::move(convolution), std::move(epilogue));
  return Status::Ok();
}

// Prepares the convolution in the first of `formulations` that works, with a pinned algorithm
// unless that is null.
Status PrepareFirst(const PrepareContext& context, const std::vector<Formulation>& formulations,
                    const AlgorithmTag* pinned, std::shared_ptr<const CudnnConvolution>* prepared) {
  StatusCode code = StatusCode::kUnsupported;
  std::string reasons;
  for (const Formulation& formulation : formulations) {
    const Status status = PrepareFormulation(context, formulation, pinned, prepared);
    if (status.ok()) return status;
    // What is out of memory, or gone, may be back later; that must not look like a lasting refusal.
    if (code == StatusCode::kUnsupported && (status.code() == StatusCode::kResourceExhausted ||
                                             status.code() == StatusCode::kUnavailable)) {
      code = status.code();
    }
    reasons += " [" + ToString(formulation) + "] " + status.message();
  }
  return Status(code, "Expected cuDNN to have an engine for " + ToString(context.convolution) +
                          ", got:" + reasons);
}

// The formulations that a pinned algorithm may run in.
Status FormulationsOfPin(const Convolution& convolution, const Algorithm& algorithm,
                         std::vector<Formulation>* formulations) {
  *formulations = FormulationsOf(convolution);
  if (!algorithm.formulation) return Status::Ok();
  if (std::find(formulations->begin(), formulations->end(), *algorithm.formulation) ==
      formulations->end()) {
    return Unsupported("Expected a formulation that " + ToString(convolution) + " has, got '" +
                       ToString(*algorithm.formulation) + "' of '" + ToString(algorithm) +
                       "'. Profile this convolution anew.");
  }
  *formulations = {*algorithm.formulation};
  return Status::Ok();
}

Status PreparePinned(const PrepareContext& context, const std::string& text,
                     std::shared_ptr<const CudnnConvolution>* prepared) {
  Algorithm algorithm;
  std::vector<Formulation> formulations;
  TF_INTEROP_RETURN_IF_ERROR(ParseAlgorithm(text, &algorithm));
  TF_INTEROP_RETURN_IF_ERROR(FormulationsOfPin(context.convolution, algorithm, &formulations));
  if (const auto* legacy = std::get_if<LegacyTag>(&algorithm.tag)) {
    TF_INTEROP_RETURN_IF_ERROR(CheckLegacyKind(*legacy, context.convolution));
  }
  return PrepareFirst(context, formulations, &algorithm.tag, prepared);
}

Status RestorePlan(const CudnnLibrary& library, cudnnHandle_t handle, const std::string& text,
                   const EngineTag* expected, std::unique_ptr<const Executable>* executable) {
  auto plan = std::make_unique<ExecutionPlan>(library);
  TF_INTEROP_RETURN_IF_ERROR(plan->Load(handle, text, expected));
  *executable = std::move(plan);
  return Status::Ok();
}

}  // namespace

Status PrepareCudnnConvolution(const CudaDriver& driver, const CudnnLibrary& library,
                               cudnnHandle_t handle, const Convolution& convolution,
                               const std::string& algorithm, size_t workspace_limit_bytes,
                               const CudnnPrepareOptions& options,
                               std::shared_ptr<const CudnnConvolution>* prepared) {
  TF_INTEROP_RETURN_IF_ERROR(CheckComputesSomething(convolution));
  const PrepareContext context = {driver,
                                  library,
                                  handle,
                                  convolution,
                                  workspace_limit_bytes,
                                  algorithm.empty() && workspace_limit_bytes == 0,
                                  options};
  if (algorithm.empty()) {
    return PrepareFirst(context, FormulationsOf(convolution), nullptr, prepared);
  }
  return PreparePinned(context, algorithm, prepared);
}

Status RestoreCudnnConvolution(const CudaDriver& driver, const CudnnLibrary& library,
                               cudnnHandle_t handle, const Convolution& convolution,
                               const std::string& serialized, const CudnnPrepareOptions& options,
                               std::shared_ptr<const CudnnConvolution>* prepared) {
  TF_INTEROP_RETURN_IF_ERROR(CheckComputesSomething(convolution));
  SerializedConvolution parts;
  TF_INTEROP_RETURN_IF_ERROR(ReadSerialized(serialized, &parts));
  TF_INTEROP_RETURN_IF_ERROR(CheckOfSameOrigin(parts, convolution, library.cudnnGetVersion()));
  Algorithm algorithm;
  std::vector<Formulation> formulations;
  TF_INTEROP_RETURN_IF_ERROR(ParseAlgorithm(parts.algorithm, &algorithm));
  TF_INTEROP_RETURN_IF_ERROR(FormulationsOfPin(convolution, algorithm, &formulations));
  const Formulation& formulation = formulations.front();  // without words: the plain one
  const auto* engine = std::get_if<EngineTag>(&algorithm.tag);
  const size_t plan_count = formulation.splits_epilogue ? 2 : 1;
  if (engine == nullptr || parts.plans.size() != plan_count) {
    return InvalidArgument("Expected an engine and " + std::to_string(plan_count) +
                           " plans in a serialized convolution, got '" + parts.algorithm +
                           "' and " + std::to_string(parts.plans.size()) + " plans.");
  }
  CudnnAssembly assembly(driver, library, convolution, formulation);
  TF_INTEROP_RETURN_IF_ERROR(assembly.PlaceTensors());
  std::unique_ptr<const Executable> plan, epilogue;
  TF_INTEROP_RETURN_IF_ERROR(RestorePlan(library, handle, parts.plans[0], engine, &plan));
  if (convolution.dtype == DataType::kFloat && plan->reduces_precision() && !options.allow_tf32) {
    return Unsupported("Expected '" + parts.algorithm +
                       "' to compute in full float precision while TF32 is off, got one that uses "
                       "TF32 or less. Allow TF32, or prepare another algorithm.");
  }
  ExecutableRequest request;
  request.requires_determinism = options.deterministic;
  TF_INTEROP_RETURN_IF_ERROR(CheckDeterminism(plan->is_deterministic(), request));
  if (formulation.splits_epilogue) {
    TF_INTEROP_RETURN_IF_ERROR(RestorePlan(library, handle, parts.plans[1], nullptr, &epilogue));
    TF_INTEROP_RETURN_IF_ERROR(CheckDeterminism(epilogue->is_deterministic(), request));
  }
  *prepared = assembly.Finish(std::move(plan), std::move(epilogue));
  return Status::Ok();
}

}  // namespace tf_interop
