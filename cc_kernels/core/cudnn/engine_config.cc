#include "cc_kernels/core/cudnn/engine_config.h"

#include <algorithm>
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

Status ReadNotes(const CudnnLibrary& library, const BackendDescriptor& config,
                 std::vector<cudnnBackendNumericalNote_t>* notes) {
  BackendDescriptor engine;
  TF_INTEROP_RETURN_IF_ERROR(ReadEngine(library, config, &engine));
  notes->resize(kMostNotes);
  return engine.GetArray(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, notes);
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

}  // namespace

std::vector<cudnnBackendHeurMode_t> HeuristicsFor(const Convolution& c) {
  const bool is_dilated = c.dilation_depth != 1 || c.dilation_height != 1 || c.dilation_width != 1;
  if (c.group_count == 1 && !is_dilated) {
    return {CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
  }
  return HeuristicsForEpilogue();
}

std::vector<cudnnBackendHeurMode_t> HeuristicsForEpilogue() {
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
  std::vector<cudnnBackendNumericalNote_t> notes;
  TF_INTEROP_RETURN_IF_ERROR(ReadNotes(library, config, &notes));
  *reduces_precision =
      std::any_of(notes.begin(), notes.end(), [](cudnnBackendNumericalNote_t note) {
        return note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE ||
               note == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
      });
  return Status::Ok();
}

Status ReadIsDeterministic(const CudnnLibrary& library, const BackendDescriptor& config,
                           bool* is_deterministic) {
  std::vector<cudnnBackendNumericalNote_t> notes;
  TF_INTEROP_RETURN_IF_ERROR(ReadNotes(library, config, &notes));
  *is_deterministic =
      std::find(notes.begin(), notes.end(), CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) == notes.end();
  return Status::Ok();
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

}  // namespace tf_interop
