// A convolution made ready for cuDNN: which copies and plans run, in which order, on which memory.
#ifndef TF_INTEROP_CORE_CUDNN_CONVOLUTION_H_
#define TF_INTEROP_CORE_CUDNN_CONVOLUTION_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/execution_plan.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/cudnn/tensor.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Everything that one launch runs on.
struct CudnnLaunch {
  cudnnHandle_t handle = nullptr;  // set to the launch's stream
  const ConvolutionBuffers& buffers;
  void* workspace = nullptr;
};

// Enqueues one piece of a launch: a copy, or an execution. Thread-safe.
using CudnnStep = std::function<Status(const CudnnLaunch&)>;

// What a launch consists of.
struct CudnnProgram {
  std::string algorithm;
  bool reduces_precision = false;
  // From the caller's filter to what is read; null if the filter is read as the caller has it,
  // or is the result.
  std::shared_ptr<const StridedCopy> filter_copy;
  std::vector<CudnnStep> steps;  // in order
  size_t workspace_bytes = 0;
};

// Immutable and thread-safe; launched with any handle of the device that it was prepared for.
class CudnnConvolution : public PreparedConvolution {
 public:
  CudnnConvolution(const Convolution& convolution, CudnnProgram program);

  // With room for the transformed filter, also where launches are given one.
  size_t workspace_bytes() const override { return program_.workspace_bytes; }
  const std::string& algorithm() const override { return program_.algorithm; }
  bool reduces_precision() const override { return program_.reduces_precision; }
  size_t transformed_filter_bytes() const override;

  // Enqueues all steps. The context of the launch's stream must be current. Returns
  // kInvalidArgument, with nothing enqueued, where a pointer is missing or not aligned.
  Status Enqueue(const CudnnLaunch& launch) const;

  // See Backend::TransformFilter; on the handle's stream.
  Status EnqueueFilterTransform(cudnnHandle_t handle, const void* filter, void* transformed) const;

 private:
  Status CheckPointers(const CudnnLaunch& launch) const;

  const Convolution convolution_;
  const CudnnProgram program_;
};

// Prepares `convolution` with `algorithm`, or with cuDNN's own choice where that is empty, in the
// first formulation (algorithm.h) that cuDNN has a plan for. A limit of 0 and no algorithm ask for
// the least workspace that cuDNN can do with. The context of `handle` must be current. See
// Backend::Prepare for errors.
Status PrepareCudnnConvolution(const CudnnLibrary& library, cudnnHandle_t handle,
                               const Convolution& convolution, const std::string& algorithm,
                               const PrepareOptions& options,
                               std::shared_ptr<const CudnnConvolution>* prepared);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_CONVOLUTION_H_
