// A convolution made ready for cuDNN: which copies and plans run, in which order, on which memory.
#ifndef TF_INTEROP_CORE_CUDNN_CUDNN_CONVOLUTION_H_
#define TF_INTEROP_CORE_CUDNN_CUDNN_CONVOLUTION_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"
#include "cc_kernels/core/cudnn/executable.h"
#include "cc_kernels/core/cudnn/strided_copy.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Everything that one launch runs on.
struct CudnnLaunch {
  cudnnHandle_t handle = nullptr;  // set to the launch's stream
  const ConvolutionBuffers& buffers;
  void* workspace = nullptr;
};

// One piece of a launch: a copy, or an execution. Immutable and thread-safe.
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
  CudnnConvolution(const Convolution& convolution, CudnnProgram program);

  // With room for the transformed filter, also where launches are given one.
  size_t workspace_bytes() const override { return program_.workspace_bytes; }
  const std::string& algorithm() const override { return program_.algorithm; }
  bool reduces_precision() const override;
  size_t transformed_filter_bytes() const override;

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
  const CudnnProgram program_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_CUDNN_CONVOLUTION_H_
