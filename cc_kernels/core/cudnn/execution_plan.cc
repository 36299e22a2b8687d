#include "cc_kernels/core/cudnn/execution_plan.h"

#include <algorithm>
#include <initializer_list>
#include <mutex>
#include <string>
#include <utility>

namespace tf_interop {
namespace {

// cuDNN 9.28 has 10 notes; newer versions may have more.
constexpr int64_t kMostNotes = 64;

// Whether the engine of a configuration has one of these notes.
Status HasNote(const BackendDescriptor& config,
               std::initializer_list<cudnnBackendNumericalNote_t> asked, bool* has) {
  std::vector<cudnnBackendNumericalNote_t> notes;
  TF_INTEROP_RETURN_IF_ERROR(
      EngineOf(config).Get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, kMostNotes, &notes));
  *has = std::find_first_of(notes.begin(), notes.end(), asked.begin(), asked.end()) != notes.end();
  return Status::Ok();
}

Status CheckNotes(const BackendDescriptor& config, const PrepareOptions& options) {
  bool reduces_precision = false, is_nondeterministic = false;
  TF_INTEROP_RETURN_IF_ERROR(ReadReducesPrecision(config, &reduces_precision));
  if (reduces_precision && !options.allow_tf32) {
    return Unsupported(
        "Expected an engine that computes in full float precision, got one that uses TF32 or less "
        "while TF32 is off. Allow TF32, or profile with it off.");
  }
  TF_INTEROP_RETURN_IF_ERROR(
      HasNote(config, {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}, &is_nondeterministic));
  return CheckDeterminism(!is_nondeterministic, options);
}

class ExecutionPlan : public Executable {
 public:
  ExecutionPlan(std::shared_ptr<const OperationGraph> graph, BackendDescriptor config)
      : library_(*graph->library), graph_(std::move(graph)), config_(std::move(config)) {}

  // Compiles the plan and reads its properties. Call this once, before anything else.
  Status Build() {
    plan_ = BackendDescriptor(library_, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "execution plan");
    plan_.Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, graph_->handle);
    plan_.Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config_);
    plan_.Finalize();

    int64_t workspace = 0;
    TF_INTEROP_RETURN_IF_ERROR(plan_.Get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, &workspace));
    if (workspace < 0) {
      return Unsupported("Expected cuDNN to know the plan's workspace in bytes, got " +
                         std::to_string(workspace) + ".");
    }
    workspace_bytes_ = static_cast<size_t>(workspace);
    const BackendDescriptor built =
        plan_.GetDescriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                            CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "engine configuration");
    TF_INTEROP_RETURN_IF_ERROR(ReadReducesPrecision(built, &reduces_precision_));
    return ReadTag(built, &tag_.emplace<EngineTag>());
  }

  Status Execute(cudnnHandle_t handle, const TensorBindings& bindings,
                 void* workspace) const override {
    std::lock_guard<std::mutex> lock(execute_mutex_);
    const BackendDescriptor* pack = nullptr;
    TF_INTEROP_RETURN_IF_ERROR(FindPack(bindings, workspace, &pack));
    const cudnnStatus_t executed = library_.cudnnBackendExecute(handle, plan_.get(), pack->get());
    if (executed == CUDNN_STATUS_SUCCESS) return Status::Ok();
    return library_.Check(executed, "cudnnBackendExecute of '" + ToString(tag_) + "'");
  }

 private:
  // A finalized variant pack: the addresses of an execution's tensors. It cannot be changed, but
  // any number of executions may use it. An allocator such as TensorFlow's, asked for the same in
  // every step, returns the same addresses: the last few packs serve nearly every call, and making
  // one takes several times as long as executing.
  struct VariantPack {
    BackendDescriptor descriptor;
    TensorBindings bindings = {};
    void* workspace = nullptr;
  };
  // One graph may well have this many identical steps, which share this plan.
  static constexpr size_t kMostPacks = 8;

  // The variant pack for these addresses, from the last few or new. Requires execute_mutex_.
  Status FindPack(const TensorBindings& bindings, void* workspace,
                  const BackendDescriptor** pack) const {
    for (const VariantPack& known : packs_) {
      if (known.workspace == workspace && known.bindings == bindings) {
        *pack = &known.descriptor;
        return Status::Ok();
      }
    }
    // On the stack: every launch of a call with new addresses gets here.
    int64_t ids[kBoundTensors];
    void* pointers[kBoundTensors];
    size_t count = 0;
    for (size_t id = 0; id < bindings.size(); ++id) {
      if (bindings[id] == nullptr) continue;
      ids[count] = static_cast<int64_t>(id);
      pointers[count++] = bindings[id];
    }
    VariantPack made = {
        {library_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "variant pack"}, bindings, workspace};
    made.descriptor.Set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids, count);
    made.descriptor.Set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, pointers, count);
    made.descriptor.Set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, workspace);
    made.descriptor.Finalize();
    TF_INTEROP_RETURN_IF_ERROR(made.descriptor.status());
    VariantPack& place = packs_[next_pack_];
    next_pack_ = (next_pack_ + 1) % packs_.size();
    place = std::move(made);
    *pack = &place.descriptor;
    return Status::Ok();
  }

  const CudnnLibrary& library_;
  const std::shared_ptr<const OperationGraph> graph_;
  const BackendDescriptor config_;
  BackendDescriptor plan_;
  // cuDNN allows one handle per thread, but not every engine allows two threads in one plan
  // (PyTorch keeps a plan per thread for this reason). Enqueueing takes a few µs, and the enqueued
  // work still runs in parallel.
  mutable std::mutex execute_mutex_;
  mutable std::array<VariantPack, kMostPacks> packs_;  // guarded by execute_mutex_
  mutable size_t next_pack_ = 0;                       // the oldest; guarded by execute_mutex_
};

// Compiles a plan of `config` unless it violates the options.
Status TryConfig(const std::shared_ptr<const OperationGraph>& graph, BackendDescriptor config,
                 const PrepareOptions& options, std::unique_ptr<const Executable>* plan) {
  TF_INTEROP_RETURN_IF_ERROR(CheckNotes(config, options));
  auto candidate = std::make_unique<ExecutionPlan>(graph, std::move(config));
  TF_INTEROP_RETURN_IF_ERROR(candidate->Build());
  TF_INTEROP_RETURN_IF_ERROR(CheckWorkspace(*candidate, options));
  *plan = std::move(candidate);
  return Status::Ok();
}

}  // namespace

Status CheckWorkspace(const Executable& executable, const PrepareOptions& options) {
  if (executable.workspace_bytes() <= options.workspace_limit_bytes) return Status::Ok();
  return Unsupported("Expected at most " + std::to_string(options.workspace_limit_bytes) +
                     " bytes of workspace for '" + ToString(executable.tag()) + "', got " +
                     std::to_string(executable.workspace_bytes()) + ".");
}

Status CheckDeterminism(bool is_deterministic, const PrepareOptions& options) {
  if (is_deterministic || !options.deterministic) return Status::Ok();
  return Unsupported(
      "Expected an algorithm that produces the same bits every time, as "
      "tf.config.experimental.enable_op_determinism or TF_CUDNN_DETERMINISTIC demands, got one "
      "that may not. Plan from a profile made with determinism on.");
}

Status AsRefusalOfPin(const AlgorithmTag& tag, const Status& status) {
  if (status.ok() || !IsLasting(status)) return status;
  return Unsupported("cuDNN cannot run '" + ToString(tag) + "' here: " + status.message());
}

std::vector<cudnnBackendHeurMode_t> HeuristicsFor(const Convolution& c) {
  const bool is_dilated = c.dilation_depth != 1 || c.dilation_height != 1 || c.dilation_width != 1;
  if (c.group_count == 1 && !is_dilated) {
    return {CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
  }
  return {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
}

Status ProposeConfigs(const OperationGraph& graph, cudnnBackendHeurMode_t heuristic,
                      std::vector<BackendDescriptor>* configs) {
  BackendDescriptor proposals(*graph.library, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
                              "engine heuristic");
  proposals.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.graph);
  proposals.Set(CUDNN_ATTR_ENGINEHEUR_MODE, heuristic);
  proposals.Finalize();
  int64_t count = 0;
  TF_INTEROP_RETURN_IF_ERROR(proposals.CountDescriptors(CUDNN_ATTR_ENGINEHEUR_RESULTS, &count));
  return proposals.GetDescriptors(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                                  "engine configuration", count, configs);
}

BackendDescriptor MakeConfig(const OperationGraph& graph, const EngineTag& tag) {
  const CudnnLibrary& library = *graph.library;
  BackendDescriptor engine(library, CUDNN_BACKEND_ENGINE_DESCRIPTOR, "engine");
  engine.Set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph.graph);
  engine.Set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, tag.index);
  engine.Finalize();
  std::vector<BackendDescriptor> choices;
  for (const auto& [type, value] : tag.knobs) {
    BackendDescriptor& choice =
        choices.emplace_back(library, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, "knob choice");
    choice.Set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, static_cast<cudnnBackendKnobType_t>(type));
    choice.Set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value);
    choice.Finalize();
  }
  BackendDescriptor config(library, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "engine configuration");
  config.Set(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  if (!choices.empty()) config.Set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, choices);
  config.Finalize();
  return config;
}

BackendDescriptor EngineOf(const BackendDescriptor& config) {
  return config.GetDescriptor(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR,
                              "engine");
}

Status ReadTag(const BackendDescriptor& config, EngineTag* tag) {
  *tag = EngineTag();
  TF_INTEROP_RETURN_IF_ERROR(EngineOf(config).Get(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, &tag->index));
  std::vector<BackendDescriptor> choices;
  TF_INTEROP_RETURN_IF_ERROR(config.GetDescriptors(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                                   CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
                                                   "knob choice", kMostKnobs, &choices));
  for (const BackendDescriptor& choice : choices) {
    cudnnBackendKnobType_t type;
    int64_t value = 0;
    TF_INTEROP_RETURN_IF_ERROR(choice.Get(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, &type));
    TF_INTEROP_RETURN_IF_ERROR(choice.Get(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, &value));
    tag->knobs[static_cast<int64_t>(type)] = value;
  }
  return Status::Ok();
}

Status ReadReducesPrecision(const BackendDescriptor& config, bool* reduces_precision) {
  return HasNote(config,
                 {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS},
                 reduces_precision);
}

Status ChoosePlan(const std::shared_ptr<const OperationGraph>& graph,
                  const std::vector<cudnnBackendHeurMode_t>& heuristics,
                  const PrepareOptions& options, bool wants_least_workspace,
                  std::shared_ptr<const Executable>* plan) {
  // The first refusal that may pass, else the first.
  Status refusal;
  int refusals = 0;
  const auto refuse = [&](const Status& status) {
    ++refusals;
    if (refusal.ok() || (IsLasting(refusal) && !IsLasting(status))) refusal = status;
  };
  std::unique_ptr<const Executable> least;
  for (const cudnnBackendHeurMode_t heuristic : heuristics) {
    std::vector<BackendDescriptor> configs;
    const Status proposed = ProposeConfigs(*graph, heuristic, &configs);
    if (!proposed.ok()) {
      refuse(proposed);
      continue;
    }
    for (BackendDescriptor& config : configs) {
      std::unique_ptr<const Executable> candidate;
      const Status tried = TryConfig(graph, std::move(config), options, &candidate);
      if (!tried.ok()) {
        refuse(tried);
        continue;
      }
      if (!least || candidate->workspace_bytes() < least->workspace_bytes()) {
        least = std::move(candidate);
      }
      if (!wants_least_workspace || least->workspace_bytes() == 0) {
        *plan = std::move(least);
        return Status::Ok();
      }
    }
  }
  if (!least) {
    if (refusals == 0) return Unsupported("cuDNN proposed no engine.");
    return Status(IsLasting(refusal) ? StatusCode::kUnsupported : refusal.code(),
                  "None of cuDNN's " + std::to_string(refusals) +
                      " proposals can be used, for example: " + refusal.message());
  }
  *plan = std::move(least);
  return Status::Ok();
}

Status PrepareEpilogue(const CudnnLibrary& library, cudnnHandle_t handle,
                       const Convolution& convolution, PrepareOptions options,
                       bool wants_least_workspace, std::shared_ptr<const Executable>* plan) {
  // The engines claim to use tensor cores, like those that fuse an epilogue with a convolution, but
  // a sum of two floats loses nothing there.
  options.allow_tf32 = true;
  auto graph =
      std::make_shared<const OperationGraph>(BuildEpilogueGraph(library, handle, convolution));
  TF_INTEROP_RETURN_IF_ERROR(graph->graph.status());
  return ChoosePlan(graph, {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}, options,
                    wants_least_workspace, plan);
}

Status PinPlan(const std::shared_ptr<const OperationGraph>& graph, const EngineTag& engine,
               const PrepareOptions& options, std::shared_ptr<const Executable>* plan) {
  BackendDescriptor config = MakeConfig(*graph, engine);
  TF_INTEROP_RETURN_IF_ERROR(AsRefusalOfPin(engine, config.status()));
  std::unique_ptr<const Executable> candidate;
  TF_INTEROP_RETURN_IF_ERROR(
      AsRefusalOfPin(engine, TryConfig(graph, std::move(config), options, &candidate)));
  // The engine sets the knobs that the pin does not name. Both maps are sorted.
  const auto& built = std::get<EngineTag>(candidate->tag());
  if (engine.index != built.index || !std::includes(built.knobs.begin(), built.knobs.end(),
                                                    engine.knobs.begin(), engine.knobs.end())) {
    return Unsupported("Expected cuDNN to use '" + ToString(engine) + "', got '" + ToString(built) +
                       "'. Profile again with this device and cuDNN version.");
  }
  *plan = std::move(candidate);
  return Status::Ok();
}

}  // namespace tf_interop
