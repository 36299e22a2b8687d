#include "cc_kernels/core/cudnn/execution_plan.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <mutex>
#include <string>
#include <utility>

namespace tf_interop {
namespace {

// Room for what cuDNN returns by the array; newer versions than the headers' may have more kinds
// than these name (9.28 has 46 kinds of knobs and 10 notes).
constexpr size_t kMostKnobs = 128;
constexpr size_t kMostNotes = 64;

BackendDescriptor NewConfig(const CudnnLibrary& library) {
  return BackendDescriptor(library, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "engine configuration");
}

Status ReadEngine(const CudnnLibrary& library, const BackendDescriptor& config,
                  BackendDescriptor* engine) {
  *engine = BackendDescriptor(library, CUDNN_BACKEND_ENGINE_DESCRIPTOR, "engine");
  return config.GetDescriptor(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
}

// Whether the engine of a configuration has one of `asked`.
Status HasNote(const CudnnLibrary& library, const BackendDescriptor& config,
               std::initializer_list<cudnnBackendNumericalNote_t> asked, bool* has) {
  BackendDescriptor engine;
  TF_INTEROP_RETURN_IF_ERROR(ReadEngine(library, config, &engine));
  std::vector<cudnnBackendNumericalNote_t> notes(kMostNotes);
  TF_INTEROP_RETURN_IF_ERROR(engine.GetArray(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, &notes));
  *has = std::find_first_of(notes.begin(), notes.end(), asked.begin(), asked.end()) != notes.end();
  return Status::Ok();
}

Status MakeEngine(const CudnnLibrary& library, const OperationGraph& graph, const EngineTag& tag,
                  BackendDescriptor* engine) {
  *engine = BackendDescriptor(library, CUDNN_BACKEND_ENGINE_DESCRIPTOR, "engine");
  engine->SetDescriptor(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph.graph);
  engine->Set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, tag.index);
  return engine->Finalize();
}

Status MakeKnobChoice(const CudnnLibrary& library, int64_t type, int64_t value,
                      BackendDescriptor* choice) {
  *choice = BackendDescriptor(library, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "knob choice");
  choice->Set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, static_cast<cudnnBackendKnobType_t>(type));
  choice->Set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value);
  return choice->Finalize();
}

Status RefuseReducedPrecision() {
  return Unsupported(
      "Expected an engine that computes in full float precision, got one that uses TF32 or less "
      "while TF32 is off. Allow TF32, or profile with it off.");
}

// Before anything is compiled.
Status CheckNotes(const CudnnLibrary& library, const BackendDescriptor& config,
                  const ExecutableRequest& request) {
  if (!request.allow_reduced_precision) {
    bool reduces_precision = false;
    TF_INTEROP_RETURN_IF_ERROR(ReadReducesPrecision(library, config, &reduces_precision));
    if (reduces_precision) return RefuseReducedPrecision();
  }
  if (!request.requires_determinism) return Status::Ok();
  bool is_nondeterministic = false;
  TF_INTEROP_RETURN_IF_ERROR(
      HasNote(library, config, {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}, &is_nondeterministic));
  return CheckDeterminism(!is_nondeterministic, request);
}

// It owns the graph it runs. The handle it was made with must stay alive.
class ExecutionPlan : public Executable {
 public:
  explicit ExecutionPlan(const CudnnLibrary& library) : library_(library) {}

  // Compiles the plan; to be called once, before anything else.
  Status Build(cudnnHandle_t handle, std::shared_ptr<const OperationGraph> graph,
               BackendDescriptor config) {
    graph_ = std::move(graph);
    config_ = std::move(config);
    plan_ = BackendDescriptor(library_, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "execution plan");
    plan_.Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle);
    plan_.SetDescriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config_);
    TF_INTEROP_RETURN_IF_ERROR(plan_.Finalize());
    return ReadBack();
  }

  AlgorithmTag tag() const override { return engine_; }
  const EngineTag& engine() const { return engine_; }
  size_t workspace_bytes() const override { return workspace_bytes_; }
  bool reduces_precision() const override { return reduces_precision_; }

  Status Execute(cudnnHandle_t handle, const TensorBindings& bindings,
                 void* workspace) const override {
    std::lock_guard<std::mutex> lock(execute_mutex_);
    const BackendDescriptor* pack = nullptr;
    TF_INTEROP_RETURN_IF_ERROR(FindPack(bindings, workspace, &pack));
    const cudnnStatus_t executed = library_.cudnnBackendExecute(handle, plan_.get(), pack->get());
    if (executed == CUDNN_STATUS_SUCCESS) return Status::Ok();
    return library_.Check(executed, "cudnnBackendExecute of '" + ToString(engine_) + "'");
  }

 private:
  // A finalized variant pack, which says where the tensors of an execution are. cuDNN does not let
  // one be changed, but any number of executions may name it. An allocator that is asked for the
  // same in every step gives the same addresses, as TensorFlow's does: the last few packs serve
  // nearly every call, and making one costs several times what executing does.
  struct VariantPack {
    BackendDescriptor descriptor;
    TensorBindings bindings;
    void* workspace = nullptr;
  };
  // As many as steps of one graph that are alike in everything may well be.
  static constexpr size_t kMostPacks = 8;

  // Reads what the finalized plan says of itself.
  Status ReadBack() {
    int64_t workspace = 0;
    TF_INTEROP_RETURN_IF_ERROR(plan_.Get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, &workspace));
    if (workspace < 0) {
      return Unsupported("Expected cuDNN to know the plan's workspace in bytes, got " +
                         std::to_string(workspace) + ".");
    }
    workspace_bytes_ = static_cast<size_t>(workspace);

    BackendDescriptor built(library_, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "engine configuration");
    TF_INTEROP_RETURN_IF_ERROR(
        plan_.GetDescriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &built));
    TF_INTEROP_RETURN_IF_ERROR(ReadReducesPrecision(library_, built, &reduces_precision_));
    return ReadTag(library_, built, &engine_);
  }

  // The variant pack of these places, made where it is not among the last few. Requires
  // execute_mutex_.
  Status FindPack(const TensorBindings& bindings, void* workspace,
                  const BackendDescriptor** pack) const {
    for (const VariantPack& known : packs_) {
      if (known.workspace == workspace && known.bindings == bindings) {
        *pack = &known.descriptor;
        return Status::Ok();
      }
    }
    std::vector<int64_t> ids;
    std::vector<void*> pointers;
    for (const auto& [id, pointer] : bindings) {
      ids.push_back(id);
      pointers.push_back(pointer);
    }
    VariantPack made = {
        {library_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "variant pack"}, bindings, workspace};
    made.descriptor.SetArray(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids);
    made.descriptor.SetArray(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, pointers);
    made.descriptor.Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, workspace);
    TF_INTEROP_RETURN_IF_ERROR(made.descriptor.Finalize());
    VariantPack& place = packs_[next_pack_];
    next_pack_ = (next_pack_ + 1) % packs_.size();
    place = std::move(made);
    *pack = &place.descriptor;
    return Status::Ok();
  }

  const CudnnLibrary& library_;
  std::shared_ptr<const OperationGraph> graph_;
  BackendDescriptor config_;
  BackendDescriptor plan_;
  EngineTag engine_;
  size_t workspace_bytes_ = 0;
  bool reduces_precision_ = false;
  // cuDNN allows one handle per thread, but not for all engines one plan on two threads at once
  // (PyTorch keeps a plan per thread for this reason). Enqueueing takes microseconds, and what is
  // enqueued still runs at the same time.
  mutable std::mutex execute_mutex_;
  mutable std::array<VariantPack, kMostPacks> packs_;  // guarded by execute_mutex_
  mutable size_t next_pack_ = 0;                       // the oldest; guarded by execute_mutex_
};

// Finalizes a plan of `config` and holds it against the request.
Status TryConfig(const CudnnLibrary& library, cudnnHandle_t handle,
                 const std::shared_ptr<const OperationGraph>& graph, BackendDescriptor config,
                 const ExecutableRequest& request, std::unique_ptr<const ExecutionPlan>* plan) {
  TF_INTEROP_RETURN_IF_ERROR(CheckNotes(library, config, request));
  auto candidate = std::make_unique<ExecutionPlan>(library);
  TF_INTEROP_RETURN_IF_ERROR(candidate->Build(handle, graph, std::move(config)));
  TF_INTEROP_RETURN_IF_ERROR(CheckWorkspace(*candidate, request));
  *plan = std::move(candidate);
  return Status::Ok();
}

// Knobs that the pin does not name are the engine's own business.
Status CheckTaken(const EngineTag& pinned, const EngineTag& built) {
  const auto is_built = [&](const auto& knob) {
    const auto found = built.knobs.find(knob.first);
    return found != built.knobs.end() && found->second == knob.second;
  };
  if (pinned.index == built.index &&
      std::all_of(pinned.knobs.begin(), pinned.knobs.end(), is_built)) {
    return Status::Ok();
  }
  return Unsupported("Expected cuDNN to take '" + ToString(pinned) + "', got '" + ToString(built) +
                     "'. Profile this device and cuDNN version anew.");
}

}  // namespace

Status CheckWorkspace(const Executable& executable, const ExecutableRequest& request) {
  if (request.wants_least_workspace ||
      executable.workspace_bytes() <= request.workspace_limit_bytes) {
    return Status::Ok();
  }
  return Unsupported("Expected at most " + std::to_string(request.workspace_limit_bytes) +
                     " bytes of workspace for '" + ToString(executable.tag()) + "', got " +
                     std::to_string(executable.workspace_bytes()) + ".");
}

Status CheckDeterminism(bool is_deterministic, const ExecutableRequest& request) {
  if (is_deterministic || !request.requires_determinism) return Status::Ok();
  return Unsupported(
      "Expected an algorithm that gives the same bits every time, as "
      "tf.config.experimental.enable_op_determinism or TF_CUDNN_DETERMINISTIC asks for, got one "
      "that may not. Plan from a profile with determinism on.");
}

Status AsRefusalOfPin(const AlgorithmTag& tag, const Status& status) {
  if (status.ok() || status.code() == StatusCode::kResourceExhausted ||
      status.code() == StatusCode::kUnavailable) {
    return status;
  }
  return Unsupported("cuDNN cannot run '" + ToString(tag) + "' here: " + status.message());
}

std::vector<cudnnBackendHeurMode_t> HeuristicsFor(const Convolution& c) {
  const bool is_dilated = c.dilation_depth != 1 || c.dilation_height != 1 || c.dilation_width != 1;
  if (c.group_count == 1 && !is_dilated) {
    return {CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
  }
  return {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
}

Status ProposeConfigs(const CudnnLibrary& library, const OperationGraph& graph,
                      cudnnBackendHeurMode_t heuristic, std::vector<BackendDescriptor>* configs) {
  BackendDescriptor proposals(library, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "engine heuristic");
  proposals.SetDescriptor(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.graph);
  proposals.Set(CUDNN_ATTR_ENGINEHEUR_MODE, heuristic);
  TF_INTEROP_RETURN_IF_ERROR(proposals.Finalize());
  int64_t count = 0;
  TF_INTEROP_RETURN_IF_ERROR(proposals.CountDescriptors(CUDNN_ATTR_ENGINEHEUR_RESULTS, &count));
  configs->clear();
  for (int64_t i = 0; i < count; ++i) configs->push_back(NewConfig(library));
  return proposals.GetDescriptors(CUDNN_ATTR_ENGINEHEUR_RESULTS, configs);
}

Status MakeConfig(const CudnnLibrary& library, const OperationGraph& graph, const EngineTag& tag,
                  BackendDescriptor* config) {
  BackendDescriptor engine;
  TF_INTEROP_RETURN_IF_ERROR(MakeEngine(library, graph, tag, &engine));
  std::vector<BackendDescriptor> choices;
  for (const auto& [type, value] : tag.knobs) {
    BackendDescriptor choice;
    TF_INTEROP_RETURN_IF_ERROR(MakeKnobChoice(library, type, value, &choice));
    choices.push_back(std::move(choice));
  }
  *config = NewConfig(library);
  config->SetDescriptor(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  if (!choices.empty()) config->SetDescriptors(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, choices);
  return config->Finalize();
}

Status ReadTag(const CudnnLibrary& library, const BackendDescriptor& config, EngineTag* tag) {
  *tag = EngineTag();
  BackendDescriptor engine;
  TF_INTEROP_RETURN_IF_ERROR(ReadEngine(library, config, &engine));
  TF_INTEROP_RETURN_IF_ERROR(engine.Get(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, &tag->index));
  std::vector<BackendDescriptor> choices;
  for (size_t i = 0; i < kMostKnobs; ++i) {
    choices.emplace_back(library, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "knob choice");
  }
  TF_INTEROP_RETURN_IF_ERROR(config.GetDescriptors(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, &choices));
  for (const BackendDescriptor& choice : choices) {
    cudnnBackendKnobType_t type;
    int64_t value = 0;
    TF_INTEROP_RETURN_IF_ERROR(choice.Get(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, &type));
    TF_INTEROP_RETURN_IF_ERROR(choice.Get(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, &value));
    tag->knobs[static_cast<int64_t>(type)] = value;
  }
  return Status::Ok();
}

Status ReadReducesPrecision(const CudnnLibrary& library, const BackendDescriptor& config,
                            bool* reduces_precision) {
  return HasNote(library, config,
                 {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS},
                 reduces_precision);
}

Status CountEngines(const OperationGraph& graph, int64_t* count) {
  return graph.graph.Get(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, count);
}

Status ReadKnobRanges(const CudnnLibrary& library, const BackendDescriptor& config,
                      std::vector<KnobRange>* ranges) {
  BackendDescriptor engine;
  TF_INTEROP_RETURN_IF_ERROR(ReadEngine(library, config, &engine));
  std::vector<BackendDescriptor> knobs;
  for (size_t i = 0; i < kMostKnobs; ++i) {
    knobs.emplace_back(library, CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR, "knob");
  }
  TF_INTEROP_RETURN_IF_ERROR(engine.GetDescriptors(CUDNN_ATTR_ENGINE_KNOB_INFO, &knobs));
  ranges->clear();
  for (const BackendDescriptor& knob : knobs) {
    KnobRange range;
    cudnnBackendKnobType_t type;
    TF_INTEROP_RETURN_IF_ERROR(knob.Get(CUDNN_ATTR_KNOB_INFO_TYPE, &type));
    TF_INTEROP_RETURN_IF_ERROR(knob.Get(CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE, &range.minimum));
    TF_INTEROP_RETURN_IF_ERROR(knob.Get(CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE, &range.maximum));
    TF_INTEROP_RETURN_IF_ERROR(knob.Get(CUDNN_ATTR_KNOB_INFO_STRIDE, &range.stride));
    range.type = static_cast<int64_t>(type);
    ranges->push_back(range);
  }
  std::sort(ranges->begin(), ranges->end(),
            [](const KnobRange& a, const KnobRange& b) { return a.type < b.type; });
  return Status::Ok();
}

Status ChoosePlan(const CudnnLibrary& library, cudnnHandle_t handle,
                  const std::shared_ptr<const OperationGraph>& graph,
                  const std::vector<cudnnBackendHeurMode_t>& heuristics,
                  const ExecutableRequest& request, std::shared_ptr<const Executable>* plan) {
  // Of the refusals, the first of the worst kind.
  Status refusal = Unsupported("cuDNN proposes no engine.");
  int refusals = 0;
  const auto refuse = [&](const Status& status) {
    const bool is_worse = IsLasting(refusal) && !IsLasting(status);
    if (refusals++ == 0 || is_worse) refusal = status;
  };
  std::unique_ptr<const ExecutionPlan> least;
  for (const cudnnBackendHeurMode_t heuristic : heuristics) {
    std::vector<BackendDescriptor> configs;
    const Status proposed = ProposeConfigs(library, *graph, heuristic, &configs);
    if (!proposed.ok()) {
      refuse(proposed);
      continue;
    }
    for (BackendDescriptor& config : configs) {
      std::unique_ptr<const ExecutionPlan> candidate;
      const Status tried =
          TryConfig(library, handle, graph, std::move(config), request, &candidate);
      if (!tried.ok()) {
        refuse(tried);
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
  if (!least && refusals == 0) return refusal;
  if (!least) {
    return Status(IsLasting(refusal) ? StatusCode::kUnsupported : refusal.code(),
                  "None of " + std::to_string(refusals) +
                      " proposals of cuDNN can be used, for example: " + refusal.message());
  }
  *plan = std::move(least);
  return Status::Ok();
}

Status PrepareEpilogue(const CudnnLibrary& library, cudnnHandle_t handle,
                       const Convolution& convolution, ExecutableRequest request,
                       std::shared_ptr<const Executable>* plan) {
  // Its engines are said to use tensor cores, as those that fuse it with a convolution do; sums of
  // two floats lose nothing there.
  request.allow_reduced_precision = true;
  auto graph = std::make_shared<OperationGraph>();
  TF_INTEROP_RETURN_IF_ERROR(BuildEpilogueGraph(library, handle, convolution, graph.get()));
  return ChoosePlan(library, handle, graph, {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}, request,
                    plan);
}

Status PinPlan(const CudnnLibrary& library, cudnnHandle_t handle,
               const std::shared_ptr<const OperationGraph>& graph, const EngineTag& engine,
               const ExecutableRequest& request, std::shared_ptr<const Executable>* plan) {
  BackendDescriptor config;
  TF_INTEROP_RETURN_IF_ERROR(AsRefusalOfPin(engine, MakeConfig(library, *graph, engine, &config)));
  std::unique_ptr<const ExecutionPlan> candidate;
  TF_INTEROP_RETURN_IF_ERROR(AsRefusalOfPin(
      engine, TryConfig(library, handle, graph, std::move(config), request, &candidate)));
  TF_INTEROP_RETURN_IF_ERROR(CheckTaken(engine, candidate->engine()));
  *plan = std::move(candidate);
  return Status::Ok();
}

}  // namespace tf_interop
