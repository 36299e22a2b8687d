// A convolution prepared for cuDNN: the copies and plans that run, their order and their memory.
// Also the algorithms that cuDNN has for it.
#ifndef TF_INTEROP_CORE_CUDNN_CONVOLUTION_H_
#define TF_INTEROP_CORE_CUDNN_CONVOLUTION_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/cudnn/tensor.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

struct CudnnLaunch {
  cudnnHandle_t handle = nullptr;  // set to the launch's stream
  const ConvolutionBuffers& buffers;
  void* workspace = nullptr;
};

// Enqueues one piece of a launch: a copy or an execution. Thread-safe.
using CudnnStep = std::function<Status(const CudnnLaunch&)>;

struct CudnnProgram {
  std::string algorithm;
  bool reduces_precision = false;
  // Copies the caller's filter to the form that is read. Empty if that is the caller's form, or if
  // the filter is the result.
  StridedCopy filter_copy;
  std::vector<CudnnStep> steps;  // in order
  size_t workspace_bytes = 0;
};

// Immutable and thread-safe. Accepts any handle of its device.
class CudnnConvolution : public PreparedConvolution {
 public:
  CudnnConvolution(const Convolution& convolution, CudnnProgram program)
      : convolution_(convolution), program_(std::move(program)) {}

  // Includes room for the transformed filter even if launches supply one.
  size_t workspace_bytes() const override { return program_.workspace_bytes; }
  const std::string& algorithm() const override { return program_.algorithm; }
  bool reduces_precision() const override { return program_.reduces_precision; }
  size_t transformed_filter_bytes() const override;

  // Enqueues all steps. The context of the launch's stream must be current. Returns
  // kInvalidArgument, with nothing enqueued, if a pointer is missing or not aligned.
  Status Enqueue(const CudnnLaunch& launch) const;

  // Does the work of Backend::TransformFilter on the handle's stream.
  Status EnqueueFilterTransform(cudnnHandle_t handle, const void* filter, void* transformed) const;

 private:
  const Convolution convolution_;
  const CudnnProgram program_;
};

// Prepares `convolution` with `algorithm`, or with cuDNN's own choice if that is empty, in the
// first formulation (algorithm.h) that cuDNN has a plan for. A limit of 0 without an algorithm
// means the least workspace possible. The context of `handle` must be current. Backend::Prepare
// lists the errors.
Status PrepareCudnnConvolution(const CudnnLibrary& library, cudnnHandle_t handle,
                               const Convolution& convolution, const std::string& algorithm,
                               PrepareOptions options,
                               std::shared_ptr<const CudnnConvolution>* prepared);

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

#endif  // TF_INTEROP_CORE_CUDNN_CONVOLUTION_H_
