// Engines of the stand-in for libcudnn and their configurations; fake_cudnn.h says which there are.
#ifndef TF_INTEROP_TESTS_CC_FAKE_CUDNN_ENGINE_H_
#define TF_INTEROP_TESTS_CC_FAKE_CUDNN_ENGINE_H_

#include <cudnn.h>

#include <cstdint>
#include <map>
#include <vector>

#include "tests/cc/fake_cudnn_descriptor.h"

namespace tf_interop::fake_cudnn {

constexpr int64_t kEngineCount = 6;

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

const Engine& EngineAt(int64_t index);

// Descriptors that are final.
NodePtr MakeEngine(const NodePtr& graph, int64_t index);
NodePtr MakeConfig(const NodePtr& engine, const std::map<int64_t, int64_t>& knobs);

// What a plan makes of the configuration that it is asked for. As cuDNN does: knobs that the engine
// does not know are dropped, others get their defaults.
NodePtr BuiltConfig(const Node& asked);

cudnnStatus_t FinalizeEngine(Node* node);
cudnnStatus_t FinalizeHeuristic(Node* node);
// Checks what cuDNN knows before it compiles.
cudnnStatus_t FinalizeConfig(const Node& node);

}  // namespace tf_interop::fake_cudnn

#endif  // TF_INTEROP_TESTS_CC_FAKE_CUDNN_ENGINE_H_
