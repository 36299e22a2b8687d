#include "cc_kernels/core/cudnn/execution_plan.h"

#include <algorithm>
#include <string>

namespace tf_interop {
namespace {

// Room for what cuDNN returns by the array; newer versions than the headers' may have more kinds
// than these name (9.28 has 46 kinds of knobs and 10 notes).
constexpr size_t kMostKnobs = 128;
constexpr size_t kMostNotes = 64;

BackendDescriptor MakeConfig(const CudnnLibrary& library) {
  return BackendDescriptor(library, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "engine configuration");
}

Status ReadEngine(const CudnnLibrary& library, const BackendDescriptor& config,
                  BackendDescriptor* engine) {
  *engine = BackendDescriptor(library, CUDNN_BACKEND_ENGINE_DESCRIPTOR, "engine");
  return config.GetDescriptor(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
}

Status ReadTag(const CudnnLibrary& library, const BackendDescriptor& config, EngineTag* tag) {
  BackendDescriptor engine;
  TF_INTEROP_RETURN_IF_ERROR(ReadEngine(library, config, &engine));
  TF_INTEROP_RETURN_IF_ERROR(engine.Get(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, &tag->index));
  std::vector<BackendDescriptor> choices;
  for (size_t i = 0; i < kMostKnobs; ++i) {
    choices.emplace_back(library, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "knob choice");
  }
  TF_INTEROP_RETURN_IF_ERROR(config.GetDescriptors(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, &choices));
  tag->knobs.clear();
  for (const BackendDescriptor& choice : choices) {
    cudnnBackendKnobType_t type;
    int64_t value = 0;
    TF_INTEROP_RETURN_IF_ERROR(choice.Get(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, &type));
    TF_INTEROP_RETURN_IF_ERROR(choice.Get(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, &value));
    tag->knobs[static_cast<int64_t>(type)] = value;
  }
  return Status::Ok();
}

Status ReducesPrecision(const CudnnLibrary& library, const BackendDescriptor& config,
                        bool* reduces_precision) {
  BackendDescriptor engine;
  TF_INTEROP_RETURN_IF_ERROR(ReadEngine(library, config, &engine));
  std::vector<cudnnBackendNumericalNote_t> notes(kMostNotes);
  TF_INTEROP_RETURN_IF_ERROR(engine.GetArray(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, &notes));
  *reduces_precision =
      std::any_of(notes.begin(), notes.end(), [](cudnnBackendNumericalNote_t note) {
        return note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE ||
               note == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
      });
  return Status::Ok();
}

Status CheckPrecision(const CudnnLibrary& library, const BackendDescriptor& config,
                      const PlanRequest& request) {
  if (request.allow_reduced_precision) return Status::Ok();
  bool reduces_precision = false;
  TF_INTEROP_RETURN_IF_ERROR(ReducesPrecision(library, config, &reduces_precision));
  if (!reduces_precision) return Status::Ok();
  return Unsupported(
      "Expected an engine that computes in full float precision, got one that uses TF32 or less "
      "while TF32 is off. Allow TF32, or profile with it off.");
}

Status CheckWorkspace(const ExecutionPlan& plan, const PlanRequest& request) {
  if (request.wants_least_workspace || plan.workspace_bytes() <= request.workspace_limit_bytes) {
    return Status::Ok();
  }
  return Unsupported("Expected at most " + std::to_string(request.workspace_limit_bytes) +
                     " bytes of workspace for '" + ToString(plan.engine()) + "', got " +
                     std::to_string(plan.workspace_bytes()) + ".");
}

// Finalizes a plan of `config` and holds it against the request.
Status TryConfig(const CudnnLibrary& library, cudnnHandle_t handle,
                 const std::shared_ptr<const OperationGraph>& graph, BackendDescriptor config,
                 const PlanRequest& request, std::unique_ptr<const ExecutionPlan>* plan) {
  TF_INTEROP_RETURN_IF_ERROR(CheckPrecision(library, config, request));
  auto candidate = std::make_unique<ExecutionPlan>(library, graph);
  TF_INTEROP_RETURN_IF_ERROR(candidate->Build(handle, std::move(config)));
  TF_INTEROP_RETURN_IF_ERROR(CheckWorkspace(*candidate, request));
  *plan = std::move(candidate);
  return Status::Ok();
}

// The configurations that one heuristic proposes, best first.
Status ProposeConfigs(const CudnnLibrary& library, const OperationGraph& graph,
                      cudnnBackendHeurMode_t mode, std::vector<BackendDescriptor>* configs) {
  BackendDescriptor heuristic(library, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "engine heuristic");
  heuristic.SetDescriptor(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.graph);
  heuristic.Set(CUDNN_ATTR_ENGINEHEUR_MODE, mode);
  TF_INTEROP_RETURN_IF_ERROR(heuristic.Finalize());
  int64_t count = 0;
  TF_INTEROP_RETURN_IF_ERROR(heuristic.CountDescriptors(CUDNN_ATTR_ENGINEHEUR_RESULTS, &count));
  configs->clear();
  for (int64_t i = 0; i < count; ++i) configs->push_back(MakeConfig(library));
  return heuristic.GetDescriptors(CUDNN_ATTR_ENGINEHEUR_RESULTS, configs);
}

// Why no proposal was taken: the first reason of the worst kind stands for all.
class Refusals {
 public:
  void Add(const Status& status) {
    ++count_;
    if (first_.ok() || (first_.code() != StatusCode::kResourceExhausted &&
                        status.code() == StatusCode::kResourceExhausted)) {
      first_ = status;
    }
  }

  Status ToStatus() const {
    if (count_ == 0) return Unsupported("cuDNN proposes no engine.");
    const StatusCode code = first_.code() == StatusCode::kResourceExhausted
                                ? StatusCode::kResourceExhausted
                                : StatusCode::kUnsupported;
    return Status(code, "None of " + std::to_string(count_) +
                            " proposals of cuDNN can be used, for example: " + first_.message());
  }

 private:
  Status first_;
  int count_ = 0;
};

Status MakePinnedConfig(const CudnnLibrary& library, const OperationGraph& graph,
                        const EngineTag& tag, BackendDescriptor* config) {
  BackendDescriptor engine(library, CUDNN_BACKEND_ENGINE_DESCRIPTOR, "engine");
  engine.SetDescriptor(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph.graph);
  engine.Set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, tag.index);
  TF_INTEROP_RETURN_IF_ERROR(engine.Finalize());
  std::vector<BackendDescriptor> choices;
  for (const auto& [type, value] : tag.knobs) {
    BackendDescriptor choice(library, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "knob choice");
    choice.Set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, static_cast<cudnnBackendKnobType_t>(type));
    choice.Set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value);
    TF_INTEROP_RETURN_IF_ERROR(choice.Finalize());
    choices.push_back(std::move(choice));
  }
  *config = MakeConfig(library);
  config->SetDescriptor(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  if (!choices.empty()) config->SetDescriptors(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, choices);
  return config->Finalize();
}

// Knobs that the pin does not name are the engine's own business.
Status CheckPinnedKnobs(const EngineTag& pinned, const EngineTag& built) {
  std::string difference;
  for (const auto& [type, value] : pinned.knobs) {
    const auto found = built.knobs.find(type);
    if (found != built.knobs.end() && found->second == value) continue;
    if (!difference.empty()) difference += ", ";
    difference += "knob " + std::to_string(type) + " is " +
                  (found == built.knobs.end() ? "not there" : std::to_string(found->second)) +
                  " in place of " + std::to_string(value);
  }
  if (pinned.index != built.index) {
    difference = "the engine is " + std::to_string(built.index) + " in place of " +
                 std::to_string(pinned.index);
  }
  if (difference.empty()) return Status::Ok();
  return Unsupported("Expected cuDNN to take '" + ToString(pinned) + "', got '" + ToString(built) +
                     "': " + difference + ". Profile this device and cuDNN version anew.");
}

// What cuDNN refuses about a pin is the pin's fault unless memory or a library is missing.
Status AsRefusalOfPin(const EngineTag& tag, const Status& status) {
  if (status.ok() || status.code() == StatusCode::kResourceExhausted ||
      status.code() == StatusCode::kUnavailable) {
    return status;
  }
  return Unsupported("cuDNN cannot run '" + ToString(tag) + "' here: " + status.message());
}

}  // namespace

Status ExecutionPlan::Build(cudnnHandle_t handle, BackendDescriptor config) {
  config_ = std::move(config);
  plan_ = BackendDescriptor(library_, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "execution plan");
  plan_.Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle);
  plan_.SetDescriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config_);
  TF_INTEROP_RETURN_IF_ERROR(plan_.Finalize());

  int64_t workspace = 0;
  TF_INTEROP_RETURN_IF_ERROR(plan_.Get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, &workspace));
  if (workspace < 0) {
    return Unsupported("Expected cuDNN to know the plan's workspace in bytes, got " +
                       std::to_string(workspace) + ".");
  }
  workspace_bytes_ = static_cast<size_t>(workspace);

  BackendDescriptor built = MakeConfig(library_);
  TF_INTEROP_RETURN_IF_ERROR(plan_.GetDescriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &built));
  return ReadTag(library_, built, &engine_);
}

Status ExecutionPlan::Execute(cudnnHandle_t handle, const std::vector<TensorBinding>& bindings,
                              void* workspace) const {
  std::vector<int64_t> ids;
  std::vector<void*> pointers;
  for (const auto& [id, pointer] : bindings) {
    ids.push_back(id);
    pointers.push_back(pointer);
  }
  BackendDescriptor pack(library_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "variant pack");
  pack.SetArray(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids);
  pack.SetArray(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, pointers);
  pack.Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, workspace);
  TF_INTEROP_RETURN_IF_ERROR(pack.Finalize());

  std::lock_guard<std::mutex> lock(execute_mutex_);
  return library_.Check(library_.cudnnBackendExecute(handle, plan_.get(), pack.get()),
                        "cudnnBackendExecute of '" + ToString(engine_) + "'");
}

Status ChoosePlan(const CudnnLibrary& library, cudnnHandle_t handle,
                  const std::shared_ptr<const OperationGraph>& graph, const PlanRequest& request,
                  std::unique_ptr<const ExecutionPlan>* plan) {
  std::vector<cudnnBackendHeurMode_t> modes;
  if (request.use_learned_heuristic) modes.push_back(CUDNN_HEUR_MODE_B);
  modes.push_back(CUDNN_HEUR_MODE_A);
  modes.push_back(CUDNN_HEUR_MODE_FALLBACK);

  Refusals refusals;
  std::unique_ptr<const ExecutionPlan> least;
  for (const cudnnBackendHeurMode_t mode : modes) {
    std::vector<BackendDescriptor> configs;
    const Status proposed = ProposeConfigs(library, *graph, mode, &configs);
    if (!proposed.ok()) {
      refusals.Add(proposed);
      continue;
    }
    for (BackendDescriptor& config : configs) {
      std::unique_ptr<const ExecutionPlan> candidate;
      const Status tried =
          TryConfig(library, handle, graph, std::move(config), request, &candidate);
      if (!tried.ok()) {
        refusals.Add(tried);
        continue;
      }
      if (!least || candidate->workspace_bytes() < least->workspace_bytes()) {
        least = std::move(candidate);
      }
      if (!request.wants_least_workspace || least->workspace_bytes() == 0) {
        *plan = std::move(least);
        return Status::Ok();
      }
    }
  }
  if (!least) return refusals.ToStatus();
  *plan = std::move(least);
  return Status::Ok();
}

Status PinPlan(const CudnnLibrary& library, cudnnHandle_t handle,
               const std::shared_ptr<const OperationGraph>& graph, const EngineTag& engine,
               const PlanRequest& request, std::unique_ptr<const ExecutionPlan>* plan) {
  BackendDescriptor config;
  TF_INTEROP_RETURN_IF_ERROR(
      AsRefusalOfPin(engine, MakePinnedConfig(library, *graph, engine, &config)));
  std::unique_ptr<const ExecutionPlan> candidate;
  TF_INTEROP_RETURN_IF_ERROR(AsRefusalOfPin(
      engine, TryConfig(library, handle, graph, std::move(config), request, &candidate)));
  TF_INTEROP_RETURN_IF_ERROR(CheckPinnedKnobs(engine, candidate->engine()));
  *plan = std::move(candidate);
  return Status::Ok();
}

}  // namespace tf_interop
