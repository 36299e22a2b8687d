// Convolutions by cuDNN's legacy API (cudnnConvolutionForward and its like), whose algorithms have
// names: IMPLICIT_GEMM, FFT_TILING, WINOGRAD_NONFUSED ...
#ifndef TF_INTEROP_CORE_CUDNN_LEGACY_CONVOLUTION_H_
#define TF_INTEROP_CORE_CUDNN_LEGACY_CONVOLUTION_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/execution_plan.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/cudnn/tensor.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// kUnsupported where the API has no form for `convolution`: it pads alike on both sides, and fuses
// nothing that TensorFlow's epilogues need.
Status CheckLegacyForm(const Convolution& convolution);

// kUnsupported where `tag` is the name of an algorithm for another kind of convolution.
Status CheckLegacyKind(const LegacyTag& tag, const Convolution& convolution);

// Whether cuDNN documents that the algorithm gives the same bits every time. Three do not, all of
// them backward ones that add up with atomics (cudnnConvolutionBwdDataAlgo_t and
// cudnnConvolutionBwdFilterAlgo_t in cuDNN's API reference).
bool IsDeterministic(ConvolutionKind kind, const LegacyTag& tag);

// One call of the legacy API. With 16-bit types it may use tensor cores; with float it may use TF32
// where the request allows that.
class LegacyConvolution : public Executable {
 public:
  // Returns kUnsupported where this cuDNN has no legacy API, where the algorithm cannot run the
  // convolution as far as cuDNN tells before it runs, or where it needs more workspace than the
  // request allows.
  static Status Make(const CudnnLibrary& library, cudnnHandle_t handle,
                     const Convolution& convolution, const LegacyTag& tag,
                     const ExecutableRequest& request,
                     std::shared_ptr<const Executable>* executable);

  AlgorithmTag tag() const override { return tag_; }
  size_t workspace_bytes() const override { return workspace_bytes_; }
  bool reduces_precision() const override { return reduces_precision_; }
  bool is_deterministic() const override { return IsDeterministic(kind_, tag_); }
  Status Execute(cudnnHandle_t handle, const TensorBindings& bindings,
                 void* workspace) const override;

 private:
  struct DestroyFilter {
    const CudnnLibrary* library;
    void operator()(cudnnFilterStruct* descriptor) const {
      // A failure to free is nothing that a caller could act on.
      (void)library->cudnnDestroyFilterDescriptor(descriptor);
    }
  };
  struct DestroyConvolution {
    const CudnnLibrary* library;
    void operator()(cudnnConvolutionStruct* descriptor) const {
      (void)library->cudnnDestroyConvolutionDescriptor(descriptor);
    }
  };

  LegacyConvolution(const CudnnLibrary& library, const Convolution& convolution, LegacyTag tag,
                    int algorithm, bool allow_reduced_precision);

  Status MakeDescriptors(const Convolution& convolution, bool allow_reduced_precision);
  Status MakeFilter(const Convolution& convolution);
  Status MakeConvolution(const Convolution& convolution, bool allow_reduced_precision);
  Status AskWorkspace(cudnnHandle_t handle);
  cudnnStatus_t Call(cudnnHandle_t handle, const TensorBindings& bindings, void* workspace) const;

  const CudnnLibrary& library_;
  const ConvolutionKind kind_;
  const DataType dtype_;
  const LegacyTag tag_;
  const int algorithm_;  // cudnnConvolutionFwdAlgo_t, ...BwdDataAlgo_t or ...BwdFilterAlgo_t
  const bool reduces_precision_;
  TensorDescriptor image_;
  TensorDescriptor output_;
  std::unique_ptr<cudnnFilterStruct, DestroyFilter> filter_;
  std::unique_ptr<cudnnConvolutionStruct, DestroyConvolution> convolution_;
  size_t workspace_bytes_ = 0;
  // Nothing promises that two calls may share one convolution descriptor at the same time.
  mutable std::mutex execute_mutex_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_LEGACY_CONVOLUTION_H_
