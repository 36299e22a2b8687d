// Which algorithms cuDNN has for a convolution.
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
// that depends on cuDNN's answers alone:
//
//   kHeuristic  what cuDNN's heuristics propose, best first, one formulation after the other in the
//               order of algorithm.h. An epilogue is split off only where nothing is proposed for
//               the fused graph.
//   kAll        these, then every engine with the knobs that it has by itself (written without
//               knobs unless cuDNN tells which), in every formulation, then the names of the legacy
//               API in the formulations that it takes: equal paddings, no epilogue.
//   kKnobs      these, then every engine with one knob moved, in every formulation; of a knob with
//               many values, 16 from the smallest to the largest.
//
// Every formulation is an alternative that can win: engines for NCHW are others than those for
// NHWC, few of them take unequal paddings, and few fuse an epilogue.
//
// Nothing is compiled but epilogues, which are split off only where they have a plan. What cuDNN
// refuses before it compiles is left out: most of the 70 or so engines that it counts are for other
// graphs or GPUs. Without `allow_tf32`, engines that reduce the precision of a float convolution
// are left out.
//
// Returns kUnsupported, with a reason, if there is nothing to list; kResourceExhausted where
// memory was missing, because the list would be shorter than the truth. The context of `handle`
// must be current.
Status ListCudnnAlgorithms(const CudnnLibrary& library, cudnnHandle_t handle,
                           const Convolution& convolution, AlgorithmScope scope, bool allow_tf32,
                           std::vector<std::string>* algorithms);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_ALGORITHM_LIST_H_
