#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/execution_plan.h"
#include "cc_kernels/core/cudnn/tensor.h"

namespace tf_interop {
namespace {

// Validate has checked that the sizes are ints.
std::vector<int> AsInts(const std::vector<int64_t>& values) {
  return std::vector<int>(values.begin(), values.end());
}

// Whether cuDNN promises the same bits every time. Three algorithms use atomic additions instead
// (cudnnConvolutionBwdDataAlgo_t and cudnnConvolutionBwdFilterAlgo_t in cuDNN's API reference).
bool IsDeterministic(ConvolutionKind kind, const LegacyTag& tag) {
  if (kind == ConvolutionKind::kForward) return true;
  return tag.name != "ALGO_0" && (kind == ConvolutionKind::kBackwardInput || tag.name != "ALGO_3");
}

// One of the tensors of a call.
template <typename Descriptor>
struct Operand {
  TensorId id;
  std::shared_ptr<Descriptor> descriptor;
};

class LegacyConvolution : public Executable {
 public:
  LegacyConvolution(const CudnnLibrary& library, const Convolution& convolution,
                    const LegacyTag& tag, bool allow_tf32)
      : library_(library), c_(convolution), allow_tf32_(allow_tf32) {
    tag_ = tag;
    reduces_precision_ = c_.dtype == DataType::kFloat && allow_tf32;
  }

  // `algorithm` is the index of the tag's name and cuDNN's enumerator.
  Status Create(cudnnHandle_t handle, int algorithm) {
    Operand<cudnnTensorStruct> image = {kImageTensor, nullptr}, output = {kOutputTensor, nullptr};
    Operand<cudnnFilterStruct> filter = {kFilterTensor, nullptr};
    TF_INTEROP_RETURN_IF_ERROR(
        MakeTensorDescriptor(library_, c_.dtype, ImageGeometry(c_), &image.descriptor));
    TF_INTEROP_RETURN_IF_ERROR(
        MakeTensorDescriptor(library_, c_.dtype, OutputGeometry(c_), &output.descriptor));
    TF_INTEROP_RETURN_IF_ERROR(MakeFilter(&filter.descriptor));
    TF_INTEROP_RETURN_IF_ERROR(MakeConvolution());
    switch (c_.kind) {
      case ConvolutionKind::kForward:
        return MakeCall(static_cast<cudnnConvolutionFwdAlgo_t>(algorithm), handle,
                        library_.cudnnGetConvolutionForwardWorkspaceSize,
                        library_.cudnnConvolutionForward, image, filter, output);
      case ConvolutionKind::kBackwardInput:
        return MakeCall(static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm), handle,
                        library_.cudnnGetConvolutionBackwardDataWorkspaceSize,
                        library_.cudnnConvolutionBackwardData, filter, output, image);
      case ConvolutionKind::kBackwardFilter:
        break;
    }
    return MakeCall(static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm), handle,
                    library_.cudnnGetConvolutionBackwardFilterWorkspaceSize,
                    library_.cudnnConvolutionBackwardFilter, image, output, filter);
  }

  Status Execute(cudnnHandle_t handle, const TensorBindings& bindings,
                 void* workspace) const override {
    std::lock_guard<std::mutex> lock(execute_mutex_);
    return Check(call_(handle, bindings, workspace), "cudnnConvolution");
  }

 private:
  Status MakeFilter(std::shared_ptr<cudnnFilterStruct>* filter) {
    cudnnFilterDescriptor_t made = nullptr;
    TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(library_, cudnnCreateFilterDescriptor, &made));
    filter->reset(made, library_.cudnnDestroyFilterDescriptor);
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
    // The default uses tensor cores for 16-bit types only from Ampere on.
    const cudnnMathType_t math_type = SizeOf(c_.dtype) == 2 ? CUDNN_TENSOR_OP_MATH
                                      : allow_tf32_         ? CUDNN_DEFAULT_MATH
                                                            : CUDNN_FMA_MATH;
    return TF_INTEROP_CALL(library_, cudnnSetConvolutionMathType, made, math_type);
  }

  // Sets the call and reads its workspace. The three kinds' functions differ in operand order.
  template <typename Algorithm, typename GetWorkspaceSize, typename Convolve, typename First,
            typename Second, typename Result>
  Status MakeCall(Algorithm algorithm, cudnnHandle_t handle, GetWorkspaceSize get_workspace_size,
                  Convolve convolve, const First& first, const Second& second,
                  const Result& result) {
    call_ = [=](cudnnHandle_t on, const TensorBindings& bindings, void* workspace) {
      return convolve(on, ScalingFactor(c_.dtype, 1), first.descriptor.get(), bindings[first.id],
                      second.descriptor.get(), bindings[second.id], convolution_.get(), algorithm,
                      workspace, workspace_bytes_, ScalingFactor(c_.dtype, 0),
                      result.descriptor.get(), bindings[result.id]);
    };
    return Check(get_workspace_size(handle, first.descriptor.get(), second.descriptor.get(),
                                    convolution_.get(), result.descriptor.get(), algorithm,
                                    &workspace_bytes_),
                 "cudnnGetConvolutionWorkspaceSize");
  }

  Status Check(cudnnStatus_t status, const char* call) const {
    if (status == CUDNN_STATUS_SUCCESS) return Status::Ok();
    return library_.Check(status, std::string(call) + " of kind " + ToString(c_.kind) + " with '" +
                                      ToString(tag_) + "'");
  }

  const CudnnLibrary& library_;
  const Convolution c_;
  const bool allow_tf32_;
  std::shared_ptr<cudnnConvolutionStruct> convolution_;
  std::function<cudnnStatus_t(cudnnHandle_t, const TensorBindings&, void* workspace)> call_;
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

Status MakeLegacyConvolution(const CudnnLibrary& library, cudnnHandle_t handle,
                             const Convolution& convolution, const LegacyTag& tag,
                             const PrepareOptions& options,
                             std::shared_ptr<const Executable>* executable) {
  const std::vector<std::string>& names = LegacyNamesOf(convolution.kind);
  const auto name = std::find(names.begin(), names.end(), tag.name);
  if (name == names.end()) {
    std::string accepted;
    for (const std::string& each : names) accepted += (accepted.empty() ? "" : ", ") + each;
    return Unsupported(std::string("Expected a legacy algorithm of a ") +
                       ToString(convolution.kind) + " convolution (" + accepted + "), got '" +
                       tag.name + "', which is for another kind.");
  }
  TF_INTEROP_RETURN_IF_ERROR(CheckLegacyForm(convolution));
  TF_INTEROP_RETURN_IF_ERROR(
      AsRefusalOfPin(tag, CheckDeterminism(IsDeterministic(convolution.kind, tag), options)));
  auto made = std::make_unique<LegacyConvolution>(library, convolution, tag, options.allow_tf32);
  TF_INTEROP_RETURN_IF_ERROR(
      AsRefusalOfPin(tag, made->Create(handle, static_cast<int>(name - names.begin()))));
  TF_INTEROP_RETURN_IF_ERROR(CheckWorkspace(*made, options));
  *executable = std::move(made);
  return Status::Ok();
}

}  // namespace tf_interop
