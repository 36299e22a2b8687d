// A convolution made ready for cuDNN: which copies and plans run, in which order, on which memory.
//
// TensorFlow's filters are HWIO; cuDNN wants OHWI beside NHWC images and OIHW beside NCHW ones. A
// filter that is read is therefore transposed into the workspace first, one that is computed is
// transposed out of it last, except where the order of bytes is the same.
//
// A convolution is tried in one formulation after the other (algorithm.h), and the first that
// cuDNN has a plan for is taken:
//
//   1. plain, with unequal paddings and a fused epilogue where there are such
//   2. split: bias and activation in a graph of their own
//   3. pad: a padded copy of the image takes up the difference of the paddings
//   4. pad and split
//   5. nchw, with a padded image where paddings differ
//   6. nchw and split
//
// Formulations that would change nothing for the convolution at hand are left out.
#ifndef TF_INTEROP_CORE_CUDNN_CUDNN_CONVOLUTION_H_
#define TF_INTEROP_CORE_CUDNN_CUDNN_CONVOLUTION_H_

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/cuda_driver.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Everything that one launch runs on.
struct CudnnLaunch {
  cudnnHandle_t handle = nullptr;  // set to `stream`
  CUstream stream = nullptr;
  ConvolutionBuffers buffers;
  void* workspace = nullptr;
};

// One piece of a launch: a fill, a copy, or the execution of a plan. Immutable and thread-safe.
class CudnnStep {
 public:
  virtual ~CudnnStep() = default;
  virtual Status Enqueue(const CudnnLaunch& launch) const = 0;
};

// Immutable and thread-safe; launched with any handle of the device that it was prepared for.
class CudnnConvolution : public PreparedConvolution {
 public:
  CudnnConvolution(const Convolution& convolution, std::string algorithm,
                   std::vector<std::unique_ptr<const CudnnStep>> steps, size_t workspace_bytes);

  size_t workspace_bytes() const override { return workspace_bytes_; }
  const std::string& algorithm() const override { return algorithm_; }

  // Enqueues all steps. The context of the launch's stream must be current. Returns
  // kInvalidArgument, with nothing enqueued, where a pointer is missing or not aligned.
  Status Enqueue(const CudnnLaunch& launch) const;

 private:
  Status CheckPointers(const CudnnLaunch& launch) const;

  int input_count_;
  std::string algorithm_;
  std::vector<std::unique_ptr<const CudnnStep>> steps_;
  size_t workspace_bytes_;
};

struct CudnnPrepareOptions {
  // Whether float convolutions may be computed in TF32.
  bool allow_tf32 = true;
};

// The formulations of `convolution`, in the order in which they are tried.
std::vector<Formulation> FormulationsOf(const Convolution& convolution);

// Prepares `convolution` with `algorithm`, or with cuDNN's own choice where that is empty. The
// workspace of the plan and the copies together are within `workspace_limit_bytes`; a limit of 0
// and no algorithm ask for the least that cuDNN can do with, since nearly every convolution needs
// its filter transposed. The context of `handle` must be current. See Backend::Prepare for errors.
Status PrepareCudnnConvolution(const CudaDriver& driver, const CudnnLibrary& library,
                               cudnnHandle_t handle, const Convolution& convolution,
                               const std::string& algorithm, size_t workspace_limit_bytes,
                               const CudnnPrepareOptions& options,
                               std::shared_ptr<const CudnnConvolution>* prepared);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_CUDNN_CONVOLUTION_H_
