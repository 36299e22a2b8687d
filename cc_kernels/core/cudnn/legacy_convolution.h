// Convolutions by cuDNN's legacy API (cudnnConvolutionForward and its like), whose algorithms have
// names such as IMPLICIT_GEMM, FFT_TILING and WINOGRAD_NONFUSED.
#ifndef TF_INTEROP_CORE_CUDNN_LEGACY_CONVOLUTION_H_
#define TF_INTEROP_CORE_CUDNN_LEGACY_CONVOLUTION_H_

#include <memory>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/execution_plan.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Returns kUnsupported if the API cannot express `convolution`: it pads both sides alike, and fuses
// nothing that TensorFlow's epilogues need.
Status CheckLegacyForm(const Convolution& convolution);

// Returns kUnsupported if `tag` is an algorithm for another kind of convolution.
Status CheckLegacyKind(const LegacyTag& tag, const Convolution& convolution);

// Makes one call of the legacy API. Returns kUnsupported if the algorithm breaks the options, or
// cannot run the convolution as far as cuDNN can tell in advance.
Status MakeLegacyConvolution(const CudnnLibrary& library, cudnnHandle_t handle,
                             const Convolution& convolution, const LegacyTag& tag,
                             const PrepareOptions& options,
                             std::shared_ptr<const Executable>* executable);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_LEGACY_CONVOLUTION_H_
