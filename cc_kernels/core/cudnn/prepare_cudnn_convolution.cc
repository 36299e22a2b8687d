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

namespace tf_interop {
namespace {

// Everything that preparing one convolution needs at every level.
struct PrepareContext {
  const CudnnLibrary& library;
  cudnnHandle_t handle = nullptr;
  const Convolution& convolution;
  bool wants_least_workspace = false;
  PrepareOptions options;
};

ExecutableRequest RequestFor(const PrepareContext& context, size_t copies_bytes) {
  const size_t limit_bytes = context.options.workspace_limit_bytes;
  ExecutableRequest request;
  request.allow_reduced_precision =
      context.convolution.dtype != DataType::kFloat || context.options.allow_tf32;
  request.requires_determinism = context.options.deterministic;
  request.workspace_limit_bytes = limit_bytes - std::min(limit_bytes, copies_bytes);
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
  CudnnAssembly assembly(context.library, context.convolution, formulation);
  TF_INTEROP_RETURN_IF_ERROR(assembly.PlaceTensors());
  if (!context.wants_least_workspace &&
      assembly.copies_bytes() > context.options.workspace_limit_bytes) {
    return Unsupported("Expected at most " + std::to_string(context.options.workspace_limit_bytes) +
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

}  // namespace

Status PrepareCudnnConvolution(const CudnnLibrary& library, cudnnHandle_t handle,
                               const Convolution& convolution, const std::string& algorithm,
                               const PrepareOptions& options,
                               std::shared_ptr<const CudnnConvolution>* prepared) {
  TF_INTEROP_RETURN_IF_ERROR(CheckComputesSomething(convolution));
  const PrepareContext context = {library, handle, convolution,
                                  algorithm.empty() && options.workspace_limit_bytes == 0, options};
  if (algorithm.empty()) {
    return PrepareFirst(context, FormulationsOf(convolution), nullptr, prepared);
  }
  return PreparePinned(context, algorithm, prepared);
}

}  // namespace tf_interop
