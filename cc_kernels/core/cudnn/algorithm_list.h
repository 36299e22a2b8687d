// The algorithms that cuDNN has for a convolution.
#ifndef TF_INTEROP_CORE_CUDNN_ALGORITHM_LIST_H_
#define TF_INTEROP_CORE_CUDNN_ALGORITHM_LIST_H_

#include <string>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Lists the names of algorithms that may be able to compute `convolution`, each once, in an order
// that depends only on cuDNN's answers:
//
//   kHeuristic  the proposals of cuDNN's heuristics, best first, one formulation after another in
//               the order of algorithm.h. An epilogue is split off only if nothing is proposed for
//               the fused graph.
//   kAll        these, then every engine with its own choice of knobs (written without knobs unless
//               cuDNN reports them), in every formulation, then the names of the legacy API in the
//               formulations that it accepts: equal paddings, no epilogue.
//   kKnobs      these, then every engine with one knob moved, in every formulation. At most 16
//               values of a knob are tried, from the smallest to the largest.
//
// Any formulation can win: NCHW has other engines than NHWC, few accept unequal paddings, and few
// fuse an epilogue.
//
// Only epilogues are compiled: one is split off only if it has a plan. Engines that cuDNN refuses
// before compiling are left out: most of the 70 or so that it counts are for other graphs or GPUs.
// Without `allow_tf32`, engines that reduce the precision of floats are left out too.
//
// Returns kUnsupported, with a reason, if there is nothing to list; kResourceExhausted if memory
// ran out, because the list would be too short. The context of `handle` must be current.
Status ListCudnnAlgorithms(const CudnnLibrary& library, cudnnHandle_t handle,
                           const Convolution& convolution, AlgorithmScope scope, bool allow_tf32,
                           std::vector<std::string>* algorithms);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_ALGORITHM_LIST_H_
