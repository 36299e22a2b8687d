// Engines of an operation graph and their configurations: what there is, what cuDNN proposes, and
// how a configuration is named and made from its name. Nothing here compiles a plan.
#ifndef TF_INTEROP_CORE_CUDNN_ENGINE_CONFIG_H_
#define TF_INTEROP_CORE_CUDNN_ENGINE_CONFIG_H_

#include <cstdint>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/backend_descriptor.h"
#include "cc_kernels/core/cudnn/cudnn_graph.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// The heuristics to ask for the plan of a convolution, best first. The learned one (mode B) knows
// plain convolutions alone, neither grouped nor dilated nor pointwise ones.
std::vector<cudnnBackendHeurMode_t> HeuristicsFor(const Convolution& convolution);

// The heuristics for a graph without a convolution.
std::vector<cudnnBackendHeurMode_t> HeuristicsForEpilogue();

// The configurations that one heuristic proposes, best first.
Status ProposeConfigs(const CudnnLibrary& library, const OperationGraph& graph,
                      cudnnBackendHeurMode_t heuristic, std::vector<BackendDescriptor>* configs);

// The configuration of this name. Knobs that the tag leaves out are the engine's own business.
// Fails where cuDNN can tell without compiling that the engine cannot run the graph in this way.
Status MakeConfig(const CudnnLibrary& library, const OperationGraph& graph, const EngineTag& tag,
                  BackendDescriptor* config);

// Engine and knobs of a configuration.
Status ReadTag(const CudnnLibrary& library, const BackendDescriptor& config, EngineTag* tag);

// Whether the engine says that it uses tensor cores or converts its operands, which for float ones
// means TF32 or less.
Status ReadReducesPrecision(const CudnnLibrary& library, const BackendDescriptor& config,
                            bool* reduces_precision);

// Whether the engine gives the same bits every time: it does where it does not say otherwise.
Status ReadIsDeterministic(const CudnnLibrary& library, const BackendDescriptor& config,
                           bool* is_deterministic);

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

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_ENGINE_CONFIG_H_
