// A convolution made ready for cuDNN: which copies and plans run, in which order, on which memory.
//
// TensorFlow's filters are HWIO; cuDNN wants OHWI beside NHWC images and OIHW beside NCHW ones. A
// filter that is read is therefore transposed into the workspace first, one that is computed is
// transposed out of it last, except where the order of bytes is the same.
//
// A convolution is tried in one formulation after the other (formulation.h), and the first that
// cuDNN has a plan for is taken.
#ifndef TF_INTEROP_CORE_CUDNN_CUDNN_CONVOLUTION_H_
#define TF_INTEROP_CORE_CUDNN_CUDNN_CONVOLUTION_H_

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/cuda_driver.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"
#include "cc_kernels/core/cudnn/executable.h"
#include "cc_kernels/core/cudnn/strided_copy.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Everything that one launch runs on.
struct CudnnLaunch {
  cudnnHandle_t handle = nullptr;  // set to `stream`
  CUstream stream = nullptr;
  ConvolutionBuffers buffers;
  void* workspace = nullptr;
};

// One piece of a launch: a fill, a copy, or an execution. Immutable and thread-safe.
class CudnnStep {
 public:
  virtual ~CudnnStep() = default;
  virtual Status Enqueue(const CudnnLaunch& launch) const = 0;
};

// What a launch consists of.
struct CudnnProgram {
  std::string algorithm;
  // From the caller's filter to what is read; null where the filter is read as the caller has it,
  // or is the result.
  std::unique_ptr<const StridedCopy> filter_copy;
  // The convolution and, where that is split off, its epilogue.
  std::vector<std::unique_ptr<const Executable>> executables;
  // In order; they refer to the two above.
  std::vector<std::unique_ptr<const CudnnStep>> steps;
  size_t workspace_bytes = 0;
};

// Immutable and thread-safe; launched with any handle of the device that it was prepared for.
class CudnnConvolution : public PreparedConvolution {
 public:
  CudnnConvolution(const Convolution& convolution, size_t cudnn_version, CudnnProgram program);

  // With room for the transformed filter, also where launches are given one.
  size_t workspace_bytes() const override { return program_.workspace_bytes; }
  const std::string& algorithm() const override { return program_.algorithm; }
  bool reduces_precision() const override;
  size_t transformed_filter_bytes() const override;
  Status Serialize(std::string* serialized) const override;

  // Enqueues all steps. The context of the launch's stream must be current. Returns
  // kInvalidArgument, with nothing enqueued, where a pointer is missing or not aligned.
  Status Enqueue(const CudnnLaunch& launch) const;

  // See Backend::TransformFilter; on the handle's stream.
  Status EnqueueFilterTransform(cudnnHandle_t handle, const void* filter, void* transformed) const;

 private:
  Status CheckPointers(const CudnnLaunch& launch) const;
  // Whether this launch reads a filter that was transformed before.
  bool TakesTransformedFilter(const CudnnLaunch& launch) const;

  const Convolution convolution_;
  const size_t cudnn_version_;
  const CudnnProgram program_;
};

struct CudnnPrepareOptions {
  // Whether float convolutions may be computed in TF32.
  bool allow_tf32 = true;
  // Whether only algorithms that give the same bits every time are taken.
  bool deterministic = false;
};

// Prepares `convolution` with `algorithm`, or with cuDNN's own choice where that is empty. The
// workspace of the plan and the copies together are within `workspace_limit_bytes`; a limit of 0
// and no algorithm ask for the least that cuDNN can do with, since nearly every convolution needs
// its filter transposed. The context of `handle` must be current. See Backend::Prepare for errors.
Status PrepareCudnnConvolution(const CudaDriver& driver, const CudnnLibrary& library,
                               cudnnHandle_t handle, const Convolution& convolution,
                               const std::string& algorithm, size_t workspace_limit_bytes,
                               const CudnnPrepareOptions& options,
                               std::shared_ptr<const CudnnConvolution>* prepared);

// Makes what CudnnConvolution::Serialize wrote. See Backend::Restore for errors. The context of
// `handle` must be current.
Status RestoreCudnnConvolution(const CudaDriver& driver, const CudnnLibrary& library,
                               cudnnHandle_t handle, const Convolution& convolution,
                               const std::string& serialized, const CudnnPrepareOptions& options,
                               std::shared_ptr<const CudnnConvolution>* prepared);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_CUDNN_CONVOLUTION_H_
