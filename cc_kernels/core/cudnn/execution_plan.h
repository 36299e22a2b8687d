// The executables of a prepared convolution and its epilogue: plans that cuDNN compiles from
// configurations of its graph API's engines, and calls of its legacy API (cudnnConvolutionForward
// and the like), whose algorithms have names such as IMPLICIT_GEMM and WINOGRAD_NONFUSED.
#ifndef TF_INTEROP_CORE_CUDNN_EXECUTION_PLAN_H_
#define TF_INTEROP_CORE_CUDNN_EXECUTION_PLAN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/graph.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// The device memory of one execution, by TensorId; null for tensors that it does not have.
using TensorBindings = std::array<void*, kBoundTensors>;

// A plan of an operation graph, or a call of the legacy API. Immutable and thread-safe: it may be
// executed with any handle of its device.
class Executable {
 public:
  virtual ~Executable() = default;

  // The algorithm that cuDNN reports it will run, which may differ from the requested one.
  const AlgorithmTag& tag() const { return tag_; }
  size_t workspace_bytes() const { return workspace_bytes_; }
  // Whether float operands may be rounded to TF32 or less.
  bool reduces_precision() const { return reduces_precision_; }

  // Enqueues the work on the handle's stream. `workspace` has workspace_bytes().
  virtual Status Execute(cudnnHandle_t handle, const TensorBindings& bindings,
                         void* workspace) const = 0;

 protected:
  AlgorithmTag tag_;
  size_t workspace_bytes_ = 0;
  bool reduces_precision_ = false;
};

// Returns kUnsupported if the workspace exceeds the limit.
Status CheckWorkspace(const Executable& executable, const PrepareOptions& options);

// Returns kUnsupported if the options demand the same bits every time and cuDNN does not promise
// them.
Status CheckDeterminism(bool is_deterministic, const PrepareOptions& options);

// Turns an error of a pinned algorithm into kUnsupported, naming the algorithm. Leaves a lack of
// memory or of a library, which is not the pin's fault, as it is.
Status AsRefusalOfPin(const AlgorithmTag& tag, const Status& status);

// The heuristics to try for a convolution, best first. The learned one (mode B) knows only plain
// convolutions: no groups, dilations or pointwise operations.
std::vector<cudnnBackendHeurMode_t> HeuristicsFor(const Convolution& convolution);

// The configurations that one heuristic proposes, best first.
Status ProposeConfigs(const OperationGraph& graph, cudnnBackendHeurMode_t heuristic,
                      std::vector<BackendDescriptor>* configs);

// The configuration with this name. It has an error if cuDNN can tell without compiling that the
// engine cannot run the graph in this way.
BackendDescriptor MakeConfig(const OperationGraph& graph, const EngineTag& tag);

// cuDNN 9.28 has 46 kinds of knobs; newer versions may have more.
inline constexpr int64_t kMostKnobs = 128;

// The engine of a configuration.
BackendDescriptor EngineOf(const BackendDescriptor& config);

// The name of a configuration: its engine and knobs.
Status ReadTag(const BackendDescriptor& config, EngineTag* tag);

// Whether the engine claims to use tensor cores or to convert its operands, which means TF32 or
// less for floats.
Status ReadReducesPrecision(const BackendDescriptor& config, bool* reduces_precision);

// The first plan, in the order of the heuristics, that compiles and satisfies the options; with
// `wants_least_workspace`, the one that needs the least workspace. Returns kUnsupported if there is
// none, kResourceExhausted if memory ran out.
Status ChoosePlan(const std::shared_ptr<const OperationGraph>& graph,
                  const std::vector<cudnnBackendHeurMode_t>& heuristics,
                  const PrepareOptions& options, bool wants_least_workspace,
                  std::shared_ptr<const Executable>* plan);

// Like ChoosePlan, for only the bias and the activation of `convolution` (BuildEpilogueGraph).
Status PrepareEpilogue(const CudnnLibrary& library, cudnnHandle_t handle,
                       const Convolution& convolution, PrepareOptions options,
                       bool wants_least_workspace, std::shared_ptr<const Executable>* plan);

// The plan of one engine. Returns kUnsupported if the engine cannot run the graph, violates the
// options, or silently drops one of its knobs.
Status PinPlan(const std::shared_ptr<const OperationGraph>& graph, const EngineTag& engine,
               const PrepareOptions& options, std::shared_ptr<const Executable>* plan);

// Returns kUnsupported if the legacy API cannot express `convolution`: it pads both sides alike,
// and fuses nothing that TensorFlow's epilogues need.
Status CheckLegacyForm(const Convolution& convolution);

// Makes one call of the legacy API. Returns kUnsupported if the algorithm is for another kind of
// convolution, violates the options, or, as far as cuDNN can tell in advance, cannot run the
// convolution.
Status MakeLegacyConvolution(const CudnnLibrary& library, cudnnHandle_t handle,
                             const Convolution& convolution, const LegacyTag& tag,
                             const PrepareOptions& options,
                             std::shared_ptr<const Executable>* executable);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_EXECUTION_PLAN_H_
