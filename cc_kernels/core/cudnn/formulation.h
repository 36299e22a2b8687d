// The ways in which one convolution can be put to cuDNN (algorithm.h names them).
//
//   1. plain, with a fused epilogue where there is one
//   2. split: bias and activation in a graph of their own
//   3. nchw (NCDHW of volumes)
//   4. nchw and split
//
// Unequal paddings stay as they are in all of them: cuDNN's graph API takes what is padded before
// and after apart from each other. Its legacy API does not, so that its algorithms are refused
// there.
//
// Formulations that would change nothing for the convolution at hand are left out.
#ifndef TF_INTEROP_CORE_CUDNN_FORMULATION_H_
#define TF_INTEROP_CORE_CUDNN_FORMULATION_H_

#include <cstdint>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// kInvalidArgument where `convolution` is not valid, or reads or computes nothing, which cuDNN has
// no form for.
Status CheckComputesSomething(const Convolution& convolution);

// The formulations of `convolution`, in the order in which they are tried.
std::vector<Formulation> FormulationsOf(const Convolution& convolution);

bool HasAsymmetricPadding(const Convolution& convolution);

// What remains after transposing: convolution and epilogue, whether they are split or
// not.
Convolution FormulatedConvolution(const Convolution& convolution, const Formulation& formulation);

Convolution WithoutEpilogue(const Convolution& convolution);

// What the convolution's own executable computes, which is without the epilogue where that is split
// off.
Convolution ExecutedConvolution(const Convolution& convolution, const Formulation& formulation);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_FORMULATION_H_
