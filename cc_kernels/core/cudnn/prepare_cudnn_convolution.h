// Makes convolutions ready for cuDNN.
//
// A convolution is tried in one formulation after the other (formulation.h), and the first that
// cuDNN has a plan for is taken.
#ifndef TF_INTEROP_CORE_CUDNN_PREPARE_CUDNN_CONVOLUTION_H_
#define TF_INTEROP_CORE_CUDNN_PREPARE_CUDNN_CONVOLUTION_H_

#include <memory>
#include <string>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/cudnn_convolution.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Prepares `convolution` with `algorithm`, or with cuDNN's own choice where that is empty. The
// workspace of the plan and the copies together are within the limit; a limit of 0 and no algorithm
// ask for the least that cuDNN can do with, since nearly every convolution needs
// its filter transposed. The context of `handle` must be current. See Backend::Prepare for errors.
Status PrepareCudnnConvolution(const CudnnLibrary& library, cudnnHandle_t handle,
                               const Convolution& convolution, const std::string& algorithm,
                               const PrepareOptions& options,
                               std::shared_ptr<const CudnnConvolution>* prepared);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_PREPARE_CUDNN_CONVOLUTION_H_
