#include "cc_kernels/core/cudnn/legacy_convolution.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/graph.h"
#include "cc_kernels/core/cudnn/tensor.h"

namespace tf_interop {
namespace {

// Validate has checked that the sizes are ints.
std::vector<int> AsInts(const std::vector<int64_t>& values) {
  return std::vector<int>(values.begin(), values.end());
}

// Whether cuDNN promises the same bits every time. Three algorithms add up with atomics instead
// (cudnnConvolutionBwdDataAlgo_t and cudnnConvolutionBwdFilterAlgo_t in cuDNN's API reference).
bool IsDeterministic(ConvolutionKind kind, const LegacyTag& tag) {
  if (kind == ConvolutionKind::kForward) return true;
  return tag.name != "ALGO_0" && (kind == ConvolutionKind::kBackwardInput || tag.name != "ALGO_3");
}

class LegacyConvolution : public Executable {
 public:
  LegacyConvolution(const CudnnLibrary& library, const Convolution& convolution, LegacyTag tag,
                    bool allow_tf32)
      : library_(library), c_(convolution), tag_(std::move(tag)), allow_tf32_(allow_tf32) {
    const std::vector<std::string>& names = LegacyNamesOf(c_.kind);
    algorithm_ = static_cast<int>(std::find(names.begin(), names.end(), tag_.name) - names.begin());
  }

  Status Create(cudnnHandle_t handle) {
    TF_INTEROP_RETURN_IF_ERROR(
        MakeTensorDescriptor(library_, c_.dtype, ImageGeometry(c_), &image_));
    TF_INTEROP_RETURN_IF_ERROR(
        MakeTensorDescriptor(library_, c_.dtype, OutputGeometry(c_), &output_));
    TF_INTEROP_RETURN_IF_ERROR(MakeFilter());
    TF_INTEROP_RETURN_IF_ERROR(MakeConvolution());
    return AskWorkspace(handle);
  }

  AlgorithmTag tag() const override { return tag_; }
  size_t workspace_bytes() const override { return workspace_bytes_; }
  bool reduces_precision() const override { return c_.dtype == DataType::kFloat && allow_tf32_; }

  Status Execute(cudnnHandle_t handle, const TensorBindings& bindings,
                 void* workspace) const override {
    const cudnnStatus_t called = Call(handle, bindings, workspace);
    if (called == CUDNN_STATUS_SUCCESS) return Status::Ok();
    return library_.Check(called, std::string("cudnnConvolution of kind ") + ToString(c_.kind) +
                                      " with '" + tag_.name + "'");
  }

 private:
  Status MakeFilter() {
    cudnnFilterDescriptor_t made = nullptr;
    TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(library_, cudnnCreateFilterDescriptor, &made));
    filter_.reset(made, library_.cudnnDestroyFilterDescriptor);
    const std::vector<int> extents = AsInts(FilterGeometry(c_).extents);
    return TF_INTEROP_CALL(library_, cudnnSetFilterNdDescriptor, made, CudnnType(c_.dtype),
                           c_.layout == Layout::kNHWC ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW,
                           static_cast<int>(extents.size()), extents.data());
  }

  Status MakeConvolution() {
    cudnnConvolutionDescriptor_t made = nullptr;
    TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(library_, cudnnCreateConvolutionDescriptor, &made));
    convolution_.reset(made, library_.cudnnDestroyConvolutionDescriptor);
    const std::vector<int> pads = AsInts(SpatialOf(c_, c_.pad_front, c_.pad_top, c_.pad_left));
    const std::vector<int> strides =
        AsInts(SpatialOf(c_, c_.stride_depth, c_.stride_height, c_.stride_width));
    const std::vector<int> dilations =
        AsInts(SpatialOf(c_, c_.dilation_depth, c_.dilation_height, c_.dilation_width));
    TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(
        library_, cudnnSetConvolutionNdDescriptor, made, c_.spatial_rank, pads.data(),
        strides.data(), dilations.data(), CUDNN_CROSS_CORRELATION, CudnnComputeType(c_.dtype)));
    TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(library_, cudnnSetConvolutionGroupCount, made,
                                               static_cast<int>(c_.group_count)));
    // The default uses tensor cores for 16-bit types from Ampere on only.
    const cudnnMathType_t math_type = SizeOf(c_.dtype) == 2 ? CUDNN_TENSOR_OP_MATH
                                      : allow_tf32_         ? CUDNN_DEFAULT_MATH
                                                            : CUDNN_FMA_MATH;
    return TF_INTEROP_CALL(library_, cudnnSetConvolutionMathType, made, math_type);
  }

  Status AskWorkspace(cudnnHandle_t handle) {
    switch (c_.kind) {
      case ConvolutionKind::kForward:
        return TF_INTEROP_CALL(library_, cudnnGetConvolutionForwardWorkspaceSize, handle,
                               image_.get(), filter_.get(), convolution_.get(), output_.get(),
                               static_cast<cudnnConvolutionFwdAlgo_t>(algorithm_),
                               &workspace_bytes_);
      case ConvolutionKind::kBackwardInput:
        return TF_INTEROP_CALL(library_, cudnnGetConvolutionBackwardDataWorkspaceSize, handle,
                               filter_.get(), output_.get(), convolution_.get(), image_.get(),
                               static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm_),
                               &workspace_bytes_);
      case ConvolutionKind::kBackwardFilter:
        break;
    }
    return TF_INTEROP_CALL(library_, cudnnGetConvolutionBackwardFilterWorkspaceSize, handle,
                           image_.get(), output_.get(), convolution_.get(), filter_.get(),
                           static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm_),
                           &workspace_bytes_);
  }

  cudnnStatus_t Call(cudnnHandle_t handle, const TensorBindings& bindings, void* workspace) const {
    void* const image = bindings[kImageTensor];
    void* const filter = bindings[kFilterTensor];
    void* const output = bindings[kOutputTensor];
    const void* const one = ScalingFactor(c_.dtype, 1);
    const void* const zero = ScalingFactor(c_.dtype, 0);
    std::lock_guard<std::mutex> lock(execute_mutex_);
    switch (c_.kind) {
      case ConvolutionKind::kForward:
        return library_.cudnnConvolutionForward(
            handle, one, image_.get(), image, filter_.get(), filter, convolution_.get(),
            static_cast<cudnnConvolutionFwdAlgo_t>(algorithm_), workspace, workspace_bytes_, zero,
            output_.get(), output);
      case ConvolutionKind::kBackwardInput:
        return library_.cudnnConvolutionBackwardData(
            handle, one, filter_.get(), filter, output_.get(), output, convolution_.get(),
            static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm_), workspace, workspace_bytes_,
            zero, image_.get(), image);
      case ConvolutionKind::kBackwardFilter:
        break;
    }
    return library_.cudnnConvolutionBackwardFilter(
        handle, one, image_.get(), image, output_.get(), output, convolution_.get(),
        static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm_), workspace, workspace_bytes_, zero,
        filter_.get(), filter);
  }

  const CudnnLibrary& library_;
  const Convolution c_;
  const LegacyTag tag_;
  const bool allow_tf32_;
  int algorithm_;  // cudnnConvolutionFwdAlgo_t, ...BwdDataAlgo_t or ...BwdFilterAlgo_t
  TensorDescriptor image_, output_;
  std::shared_ptr<cudnnFilterStruct> filter_;
  std::shared_ptr<cudnnConvolutionStruct> convolution_;
  size_t workspace_bytes_ = 0;
  // cuDNN does not promise that two concurrent calls may share a convolution descriptor.
  mutable std::mutex execute_mutex_;
};

}  // namespace

Status CheckLegacyForm(const Convolution& convolution) {
  if (HasAsymmetricPadding(convolution)) {
    return Unsupported(
        "Expected equal paddings on both sides for an algorithm of cuDNN's legacy API, got " +
        ToString(convolution) + ". Pin an engine of cuDNN's graph API.");
  }
  if (HasEpilogue(convolution)) {
    return Unsupported(
        "Expected no bias and no activation for an algorithm of cuDNN's legacy API, got " +
        ToString(convolution) + ". Pin it with 'split+' in front.");
  }
  return Status::Ok();
}

Status CheckLegacyKind(const LegacyTag& tag, const Convolution& convolution) {
  const std::vector<std::string>& names = LegacyNamesOf(convolution.kind);
  if (std::find(names.begin(), names.end(), tag.name) != names.end()) return Status::Ok();
  std::string accepted;
  for (const std::string& name : names) accepted += (accepted.empty() ? "" : ", ") + name;
  return Unsupported(std::string("Expected a legacy algorithm of a ") + ToString(convolution.kind) +
                     " convolution (" + accepted + "), got '" + tag.name +
                     "', which is for another kind.");
}

Status MakeLegacyConvolution(const CudnnLibrary& library, cudnnHandle_t handle,
                             const Convolution& convolution, const LegacyTag& tag,
                             const PrepareOptions& options,
                             std::shared_ptr<const Executable>* executable) {
  TF_INTEROP_RETURN_IF_ERROR(CheckLegacyForm(convolution));
  TF_INTEROP_RETURN_IF_ERROR(
      AsRefusalOfPin(tag, CheckDeterminism(IsDeterministic(convolution.kind, tag), options)));
  auto made = std::make_unique<LegacyConvolution>(library, convolution, tag, options.allow_tf32);
  TF_INTEROP_RETURN_IF_ERROR(AsRefusalOfPin(tag, made->Create(handle)));
  TF_INTEROP_RETURN_IF_ERROR(CheckWorkspace(*made, options));
  *executable = std::move(made);
  return Status::Ok();
}

}  // namespace tf_interop
