// Engines and execution plans of the stand-in for libcudnn; fake_cudnn.h says which engines there
// are.
#include <cudnn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cc/fake_cuda.h"
#include "tests/cc/fake_cudnn.h"
#include "tests/cc/fake_cudnn_graph.h"

namespace tf_interop::fake_cudnn {
namespace {

struct Knob {
  int64_t type, by_itself, minimum, maximum, stride;
};

struct Engine {
  int64_t workspace_bytes;
  std::vector<Knob> knobs;
  std::vector<cudnnBackendNumericalNote_t> notes;

  std::map<int64_t, int64_t> OwnKnobs() const {
    std::map<int64_t, int64_t> values;
    for (const Knob& knob : knobs) values[knob.type] = knob.by_itself;
    return values;
  }
};

const Engine& EngineAt(int64_t index) {
  static const auto* engines = new std::array<Engine, kEngineCount>{
      Engine{0, {}, {}}, Engine{4096, {{CUDNN_KNOB_TYPE_TILE_SIZE, 5, 0, 9, 1}}, {}},
      Engine{1024, {}, {}},
      Engine{1 << 20,
             {{CUDNN_KNOB_TYPE_TILE_SIZE, 7, 0, 1000, 1}, {CUDNN_KNOB_TYPE_STAGES, 3, 1, 7, 2}},
             {CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_TENSOR_CORE}},
      Engine{512, {}, {CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS}},
      // For another GPU.
      Engine{0, {}, {}}};
  return (*engines)[index];
}

constexpr int64_t kForeignEngine = 5;

void PutKnobInfo(Node* engine, int64_t index) {
  std::vector<NodePtr> infos;
  for (const Knob& knob : EngineAt(index).knobs) {
    auto info = std::make_shared<Node>(CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR);
    info->Put(CUDNN_ATTR_KNOB_INFO_TYPE, CUDNN_TYPE_KNOB_TYPE,
              static_cast<cudnnBackendKnobType_t>(knob.type));
    info->Put(CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE, CUDNN_TYPE_INT64, knob.minimum);
    info->Put(CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE, CUDNN_TYPE_INT64, knob.maximum);
    info->Put(CUDNN_ATTR_KNOB_INFO_STRIDE, CUDNN_TYPE_INT64, knob.stride);
    info->is_final = true;
    infos.push_back(info);
  }
  engine->PutNodes(CUDNN_ATTR_ENGINE_KNOB_INFO, infos);
}

void PutNotes(Node* engine, int64_t index) {
  std::vector<cudnnBackendNumericalNote_t> notes = EngineAt(index).notes;
  if (FakeCudnn().nondeterministic_engines.count(index) != 0) {
    notes.push_back(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
  }
  Attribute attribute;
  attribute.type = CUDNN_TYPE_NUMERICAL_NOTE;
  attribute.bytes.resize(notes.size() * sizeof(notes[0]));
  std::memcpy(attribute.bytes.data(), notes.data(), attribute.bytes.size());
  engine->attributes[CUDNN_ATTR_ENGINE_NUMERICAL_NOTE] = std::move(attribute);
}

NodePtr MakeChoice(int64_t type, int64_t value) {
  auto choice = std::make_shared<Node>(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
  choice->Put(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE,
              static_cast<cudnnBackendKnobType_t>(type));
  choice->Put(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, value);
  choice->is_final = true;
  return choice;
}

// Descriptors that are final.
NodePtr MakeEngine(const NodePtr& graph, int64_t index) {
  auto engine = std::make_shared<Node>(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  engine->PutNodes(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, {graph});
  engine->Put(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, index);
  PutKnobInfo(engine.get(), index);
  PutNotes(engine.get(), index);
  engine->is_final = true;
  return engine;
}

NodePtr MakeConfig(const NodePtr& engine, const std::map<int64_t, int64_t>& knobs) {
  auto config = std::make_shared<Node>(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  config->PutNodes(CUDNN_ATTR_ENGINECFG_ENGINE, {engine});
  std::vector<NodePtr> choices;
  for (const auto& [type, value] : knobs) choices.push_back(MakeChoice(type, value));
  config->PutNodes(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, choices);
  config->is_final = true;
  return config;
}

// What a plan makes of the configuration that it is asked for. As cuDNN does: knobs that the engine
// does not know are dropped, others get their defaults.
NodePtr BuiltConfig(const Node& asked) {
  const NodePtr engine = asked.Sub(CUDNN_ATTR_ENGINECFG_ENGINE);
  auto knobs = EngineAt(engine->One<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX)).OwnKnobs();
  const auto choices = asked.attributes.find(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
  if (choices != asked.attributes.end()) {
    for (const NodePtr& choice : choices->second.nodes) {
      const auto type = static_cast<int64_t>(
          choice->One<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE));
      const auto known = knobs.find(type);
      if (known == knobs.end() || type == FakeCudnn().ignored_knob) continue;
      known->second = choice->One<int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
    }
  }
  return MakeConfig(engine, knobs);
}

bool IsNhwc(const Tensor& tensor) {
  const int64_t width = tensor.extents[4], pixels = tensor.extents[3] * width;
  const Five packed = {1, tensor.extents[2] * pixels, pixels, width, 1};
  for (size_t i = 1; i < packed.size(); ++i) {
    if (tensor.extents[i] > 1 && tensor.strides[i] != packed[i]) return true;
  }
  return false;
}

cudnnStatus_t ExecutePlan(cudnnHandle_t handle, const NodePtr& plan, const Node& pack) {
  const NodePtr engine =
      plan->Sub(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->Sub(CUDNN_ATTR_ENGINECFG_ENGINE);
  const auto index = engine->One<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  if (FakeCudnn().fail_execution || FakeCudnn().engines_failing_execution.count(index) != 0) {
    return FakeCudnnFail(CUDNN_STATUS_EXECUTION_FAILED, "execution switched off");
  }
  const NodePtr graph = engine->Sub(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  const auto ids = pack.All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  auto memory = std::make_shared<Memory>();
  for (size_t i = 0; i < ids.size(); ++i) memory->Bind(ids[i], pointers[i]);
  for (const auto& [id, tensor] : TensorsOf(*graph)) {
    const auto found = std::find(ids.begin(), ids.end(), id);
    if (tensor.is_virtual != (found == ids.end())) {
      return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM,
                           "tensor bound that is virtual, or the other way round");
    }
    if (tensor.is_virtual) continue;
    const void* pointer = pointers[found - ids.begin()];
    if (pointer == nullptr || reinterpret_cast<uintptr_t>(pointer) % tensor.alignment != 0) {
      return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "misaligned pointer");
    }
  }
  const auto bytes = plan->One<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  void* const workspace = pack.One<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  if (bytes > 0 && workspace == nullptr) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no workspace");
  }
  FakeCudaEnqueue(handle->stream, [graph, memory, workspace, bytes] {
    // A real engine leaves anything here; a tensor that overlaps it comes out wrong.
    if (bytes > 0) std::memset(workspace, 0xA5, bytes);
    RunGraph(*graph, memory.get());
    if (bytes > 0) std::memset(workspace, 0x5A, bytes);
  });
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

cudnnStatus_t FinalizeEngine(Node* node) {
  const auto index = node->One<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  if (FakeCudnn().fail_engine_allocation) {
    return FakeCudnnFail(CUDNN_STATUS_ALLOC_FAILED, "no memory for the engine");
  }
  if (index < 0 || index >= kEngineCount) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED, "no such engine");
  }
  if (index == kForeignEngine) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, "engine for another GPU");
  }
  PutKnobInfo(node, index);
  PutNotes(node, index);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizeHeuristic(Node* node) {
  const NodePtr graph = node->Sub(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  const size_t most = FakeCudnn().no_proposals_from_operations;
  if (most != 0 && graph->attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).nodes.size() >= most) {
    return CUDNN_STATUS_SUCCESS;
  }
  std::vector<int64_t> indices;
  switch (node->One<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE)) {
    case CUDNN_HEUR_MODE_B: {
      const NodePtr* convolution = ConvolutionOf(*graph);
      if (convolution == nullptr)
        return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED, "not a convolution");
      indices = {3, 1};
      break;
    }
    case CUDNN_HEUR_MODE_A:
      indices = {1, 2};
      break;
    default:
      indices = {0};
      break;
  }
  std::vector<NodePtr> configs;
  for (const int64_t index : indices) {
    configs.push_back(MakeConfig(MakeEngine(graph, index), EngineAt(index).OwnKnobs()));
  }
  node->PutNodes(CUDNN_ATTR_ENGINEHEUR_RESULTS, configs);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizeConfig(const Node& node) {
  const auto choices = node.attributes.find(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
  if (choices == node.attributes.end()) return CUDNN_STATUS_SUCCESS;
  const auto index =
      node.Sub(CUDNN_ATTR_ENGINECFG_ENGINE)->One<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  for (const NodePtr& choice : choices->second.nodes) {
    for (const Knob& knob : EngineAt(index).knobs) {
      const auto value = choice->One<int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
      if (knob.type == choice->One<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE) &&
          (value < knob.minimum || value > knob.maximum ||
           FakeCudnn().unsupported_knob_values.count(value) != 0)) {
        return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED, "value that the knob does not have");
      }
    }
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t FinalizePlan(Node* node) {
  if (FakeCudnn().plan_delay_us > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(FakeCudnn().plan_delay_us));
  }
  if (FakeCudnn().fail_plan_allocation) {
    return FakeCudnnFail(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED,
                         "no memory for the plan");
  }
  const NodePtr asked = node->Sub(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const NodePtr engine = asked->Sub(CUDNN_ATTR_ENGINECFG_ENGINE);
  const NodePtr graph = engine->Sub(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  const auto index = engine->One<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  if (FakeCudnn().unsupported_engines.count(index) != 0) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED, "engine switched off");
  }
  if (const NodePtr* convolution = ConvolutionOf(*graph)) {
    const ConvolutionNames& names = *NamesOf((*convolution)->type);
    const Spatial spatial(*(*convolution)->Sub(names.applied));
    if (FakeCudnn().no_asymmetric_padding && spatial.before != spatial.after) {
      return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED_PADDING, "paddings differ");
    }
    if (FakeCudnn().no_nhwc && IsNhwc(Tensor(*(*convolution)->Sub(names.image)))) {
      return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "NHWC");
    }
  }
  const NodePtr built = BuiltConfig(*asked);
  node->PutNodes(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, {built});
  node->Put(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
            EngineAt(index).workspace_bytes);
  ++FakeCudnnCounts().plans_finalized;
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace tf_interop::fake_cudnn

using namespace tf_interop;              // NOLINT: the C interface of the functions above
using namespace tf_interop::fake_cudnn;  // NOLINT

#pragma GCC visibility push(default)
extern "C" {

cudnnStatus_t CUDNNWINAPI cudnnBackendExecute(cudnnHandle_t handle,
                                              cudnnBackendDescriptor_t plan_descriptor,
                                              cudnnBackendDescriptor_t pack_descriptor) {
  const NodePtr plan = static_cast<Descriptor*>(plan_descriptor)->node;
  const NodePtr pack = static_cast<Descriptor*>(pack_descriptor)->node;
  UseGuard handle_guard(&handle->in_use, &FakeCudnnCounts().handle_races);
  UseGuard plan_guard(&plan->in_use, &FakeCudnnCounts().plan_races);
  if (!plan->is_final || !pack->is_final) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "not finalized");
  }
  const cudnnStatus_t status = FakeCudnnCheckHandle(*handle);
  if (status != CUDNN_STATUS_SUCCESS || FakeCudnnComputesNothing()) return status;
  ++FakeCudnnCounts().executions;
  return ExecutePlan(handle, plan, *pack);
}

}  // extern "C"

#pragma GCC visibility pop
