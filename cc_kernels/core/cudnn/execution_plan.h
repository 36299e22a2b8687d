// What computes a prepared convolution, or its epilogue: engines of cuDNN's graph API, their
// configurations, and the plans that cuDNN compiles of them. legacy_convolution.h has the other
// kind.
#ifndef TF_INTEROP_CORE_CUDNN_EXECUTION_PLAN_H_
#define TF_INTEROP_CORE_CUDNN_EXECUTION_PLAN_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/graph.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// The device memory bound to a tensor, by its TensorId (cudnn_graph.h).
using TensorBinding = std::pair<int64_t, void*>;

// Those of one execution: at most those of a fused convolution. Allocates nothing.
class TensorBindings {
 public:
  void Add(int64_t id, void* pointer) { bound_[size_++] = {id, pointer}; }
  const TensorBinding* begin() const { return bound_.data(); }
  const TensorBinding* end() const { return bound_.data() + size_; }
  // Null where the tensor is not bound.
  void* Find(int64_t id) const {
    for (const auto& [bound, pointer] : *this) {
      if (bound == id) return pointer;
    }
    return nullptr;
  }
  bool operator==(const TensorBindings& other) const {
    return size_ == other.size_ && std::equal(begin(), end(), other.begin());
  }

 private:
  std::array<TensorBinding, 4> bound_;
  size_t size_ = 0;
};

// A plan of an operation graph, or a call of the legacy API. Immutable and thread-safe: it may be
// executed with any handle of the device that it was made for.
class Executable {
 public:
  virtual ~Executable() = default;

  // What cuDNN says that it will run, which need not be what was asked for.
  virtual AlgorithmTag tag() const = 0;
  virtual size_t workspace_bytes() const = 0;
  // Whether float operands may be rounded to TF32 or less on the way.
  virtual bool reduces_precision() const = 0;

  // Enqueues the work on the handle's stream. `workspace` holds workspace_bytes().
  virtual Status Execute(cudnnHandle_t handle, const TensorBindings& bindings,
                         void* workspace) const = 0;
};

// Which executables are good enough.
struct ExecutableRequest {
  // Whether float operands may be rounded to TF32 or less.
  bool allow_reduced_precision = true;
  // Whether it has to give the same bits every time.
  bool requires_determinism = false;
  // The most that the workspace may hold.
  size_t workspace_limit_bytes = 0;
  // Takes the plan with the smallest workspace, whatever the limit.
  bool wants_least_workspace = false;
};

// kUnsupported where the workspace is larger than the request allows.
Status CheckWorkspace(const Executable& executable, const ExecutableRequest& request);

// kUnsupported where the request asks for the same bits every time and cuDNN does not promise them.
Status CheckDeterminism(bool is_deterministic, const ExecutableRequest& request);

// `status` for a pin: what cuDNN refuses about it is the pin's fault (kUnsupported) unless memory
// or a library is missing.
Status AsRefusalOfPin(const AlgorithmTag& tag, const Status& status);

// The heuristics to ask for the plan of a convolution, best first. The learned one (mode B) knows
// plain convolutions alone, neither grouped nor dilated nor pointwise ones.
std::vector<cudnnBackendHeurMode_t> HeuristicsFor(const Convolution& convolution);

// The configurations that one heuristic proposes, best first.
Status ProposeConfigs(const CudnnLibrary& library, const OperationGraph& graph,
                      cudnnBackendHeurMode_t heuristic, std::vector<BackendDescriptor>* configs);

// The configuration of this name. Fails where cuDNN can tell without compiling that the engine
// cannot run the graph in this way.
Status MakeConfig(const CudnnLibrary& library, const OperationGraph& graph, const EngineTag& tag,
                  BackendDescriptor* config);

// Engine and knobs of a configuration.
Status ReadTag(const CudnnLibrary& library, const BackendDescriptor& config, EngineTag* tag);

// Whether the engine says that it uses tensor cores or converts its operands, which for float ones
// means TF32 or less.
Status ReadReducesPrecision(const CudnnLibrary& library, const BackendDescriptor& config,
                            bool* reduces_precision);

// Engines have the indices from 0 up to this one. Most of them are made for other graphs or GPUs.
Status CountEngines(const OperationGraph& graph, int64_t* count);

// The values that a knob of an engine takes.
struct KnobRange {
  int64_t type = 0;  // cudnnBackendKnobType_t
  int64_t minimum = 0;
  int64_t maximum = 0;
  int64_t stride = 1;
};

// The knobs of a configuration's engine, by ascending type.
Status ReadKnobRanges(const CudnnLibrary& library, const BackendDescriptor& config,
                      std::vector<KnobRange>* ranges);

// The first plan in the order of the heuristics that compiles and fits the request. Returns
// kUnsupported if there is none, kResourceExhausted where memory is what was missing.
Status ChoosePlan(const CudnnLibrary& library, cudnnHandle_t handle,
                  const std::shared_ptr<const OperationGraph>& graph,
                  const std::vector<cudnnBackendHeurMode_t>& heuristics,
                  const ExecutableRequest& request, std::shared_ptr<const Executable>* plan);

// The plan of bias and activation of `convolution` alone (BuildEpilogueGraph). As ChoosePlan.
Status PrepareEpilogue(const CudnnLibrary& library, cudnnHandle_t handle,
                       const Convolution& convolution, ExecutableRequest request,
                       std::shared_ptr<const Executable>* plan);

// The plan of one engine. Returns kUnsupported where it cannot run the graph or does not fit the
// request, also where cuDNN drops one of its knobs without a word.
Status PinPlan(const CudnnLibrary& library, cudnnHandle_t handle,
               const std::shared_ptr<const OperationGraph>& graph, const EngineTag& engine,
               const ExecutableRequest& request, std::shared_ptr<const Executable>* plan);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_EXECUTION_PLAN_H_
