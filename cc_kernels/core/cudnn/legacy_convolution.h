// Convolutions by cuDNN's legacy API (cudnnConvolutionForward and its like), whose algorithms have
// names: IMPLICIT_GEMM, FFT_TILING, WINOGRAD_NONFUSED ...
#ifndef TF_INTEROP_CORE_CUDNN_LEGACY_CONVOLUTION_H_
#define TF_INTEROP_CORE_CUDNN_LEGACY_CONVOLUTION_H_

#include <memory>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/execution_plan.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// kUnsupported where the API has no form for `convolution`: it pads alike on both sides, and fuses
// nothing that TensorFlow's epilogues need.
Status CheckLegacyForm(const Convolution& convolution);

// kUnsupported where `tag` is the name of an algorithm for another kind of convolution.
Status CheckLegacyKind(const LegacyTag& tag, const Convolution& convolution);

// Makes one call of the legacy API. Returns kUnsupported where the algorithm cannot run the
// convolution as far as cuDNN tells before it runs, or where it does not fit the request.
Status MakeLegacyConvolution(const CudnnLibrary& library, cudnnHandle_t handle,
                             const Convolution& convolution, const LegacyTag& tag,
                             const ExecutableRequest& request,
                             std::shared_ptr<const Executable>* executable);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_LEGACY_CONVOLUTION_H_
