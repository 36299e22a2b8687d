#include "cc_kernels/core/cudnn/legacy_convolution.h"

#include <algorithm>
#include <utility>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/graph.h"
#include "cc_kernels/core/cudnn/tensor.h"

namespace tf_interop {
namespace {

// LegacyNamesOf lists names at the values of their enumerators.
static_assert(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM == 0);
static_assert(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM == 1);
static_assert(CUDNN_CONVOLUTION_FWD_ALGO_GEMM == 2);
static_assert(CUDNN_CONVOLUTION_FWD_ALGO_DIRECT == 3);
static_assert(CUDNN_CONVOLUTION_FWD_ALGO_FFT == 4);
static_assert(CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING == 5);
static_assert(CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD == 6);
static_assert(CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED == 7);
static_assert(CUDNN_CONVOLUTION_BWD_DATA_ALGO_0 == 0);
static_assert(CUDNN_CONVOLUTION_BWD_DATA_ALGO_1 == 1);
static_assert(CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT == 2);
static_assert(CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING == 3);
static_assert(CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD == 4);
static_assert(CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED == 5);
static_assert(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 == 0);
static_assert(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1 == 1);
static_assert(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT == 2);
static_assert(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3 == 3);
static_assert(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD == 4);
static_assert(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED == 5);
static_assert(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING == 6);

int AlgorithmOf(ConvolutionKind kind, const LegacyTag& tag) {
  const std::vector<std::string>& names = LegacyNamesOf(kind);
  return static_cast<int>(std::find(names.begin(), names.end(), tag.name) - names.begin());
}

cudnnMathType_t MathTypeOf(DataType dtype, bool allow_reduced_precision) {
  switch (dtype) {
    case DataType::kHalf:
    case DataType::kBFloat16:
      // The default uses tensor cores for 16-bit types from Ampere on only.
      return CUDNN_TENSOR_OP_MATH;
    case DataType::kFloat:
      return allow_reduced_precision ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
    case DataType::kDouble:
      break;
  }
  return CUDNN_DEFAULT_MATH;
}

// Sizes that Validate has found to be ints.
std::vector<int> AsInts(const std::vector<int64_t>& values) {
  return std::vector<int>(values.begin(), values.end());
}

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

bool IsDeterministic(ConvolutionKind kind, const LegacyTag& tag) {
  switch (kind) {
    case ConvolutionKind::kForward:
      return true;
    case ConvolutionKind::kBackwardInput:
      return tag.name != "ALGO_0";
    case ConvolutionKind::kBackwardFilter:
      break;
  }
  return tag.name != "ALGO_0" && tag.name != "ALGO_3";
}

LegacyConvolution::LegacyConvolution(const CudnnLibrary& library, const Convolution& convolution,
                                     LegacyTag tag, int algorithm, bool allow_reduced_precision)
    : library_(library),
      kind_(convolution.kind),
      dtype_(convolution.dtype),
      tag_(std::move(tag)),
      algorithm_(algorithm),
      reduces_precision_(convolution.dtype == DataType::kFloat && allow_reduced_precision),
      image_(nullptr, DestroyTensorDescriptor{&library}),
      output_(nullptr, DestroyTensorDescriptor{&library}),
      filter_(nullptr, DestroyFilter{&library}),
      convolution_(nullptr, DestroyConvolution{&library}) {}

Status LegacyConvolution::Make(const CudnnLibrary& library, cudnnHandle_t handle,
                               const Convolution& convolution, const LegacyTag& tag,
                               const ExecutableRequest& request,
                               std::shared_ptr<const Executable>* executable) {
  TF_INTEROP_RETURN_IF_ERROR(library.CheckHasLegacyApi());
  TF_INTEROP_RETURN_IF_ERROR(CheckLegacyKind(tag, convolution));
  TF_INTEROP_RETURN_IF_ERROR(CheckLegacyForm(convolution));
  TF_INTEROP_RETURN_IF_ERROR(
      AsRefusalOfPin(tag, CheckDeterminism(IsDeterministic(convolution.kind, tag), request)));
  std::unique_ptr<LegacyConvolution> made(new LegacyConvolution(library, convolution, tag,
                                                                AlgorithmOf(convolution.kind, tag),
                                                                request.allow_reduced_precision));
  TF_INTEROP_RETURN_IF_ERROR(
      AsRefusalOfPin(tag, made->MakeDescriptors(convolution, request.allow_reduced_precision)));
  TF_INTEROP_RETURN_IF_ERROR(AsRefusalOfPin(tag, made->AskWorkspace(handle)));
  TF_INTEROP_RETURN_IF_ERROR(CheckWorkspace(*made, request));
  *executable = std::move(made);
  return Status::Ok();
}

Status LegacyConvolution::MakeDescriptors(const Convolution& convolution,
                                          bool allow_reduced_precision) {
  TF_INTEROP_RETURN_IF_ERROR(
      MakeTensorDescriptor(library_, convolution.dtype, ImageGeometry(convolution), &image_));
  TF_INTEROP_RETURN_IF_ERROR(
      MakeTensorDescriptor(library_, convolution.dtype, OutputGeometry(convolution), &output_));
  TF_INTEROP_RETURN_IF_ERROR(MakeFilter(convolution));
  return MakeConvolution(convolution, allow_reduced_precision);
}

Status LegacyConvolution::MakeFilter(const Convolution& convolution) {
  cudnnFilterDescriptor_t made = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(library_, cudnnCreateFilterDescriptor, &made));
  filter_.reset(made);
  // K, C per group, and the spatial dimensions.
  const std::vector<int> extents = AsInts(FilterGeometry(convolution).extents);
  return TF_INTEROP_CALL(
      library_, cudnnSetFilterNdDescriptor, made, CudnnType(convolution.dtype),
      convolution.layout == Layout::kNHWC ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW,
      static_cast<int>(extents.size()), extents.data());
}

Status LegacyConvolution::MakeConvolution(const Convolution& c, bool allow_reduced_precision) {
  cudnnConvolutionDescriptor_t made = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(library_, cudnnCreateConvolutionDescriptor, &made));
  convolution_.reset(made);
  const std::vector<int> pads = AsInts(SpatialOf(c, c.pad_front, c.pad_top, c.pad_left));
  const std::vector<int> strides =
      AsInts(SpatialOf(c, c.stride_depth, c.stride_height, c.stride_width));
  const std::vector<int> dilations =
      AsInts(SpatialOf(c, c.dilation_depth, c.dilation_height, c.dilation_width));
  TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(
      library_, cudnnSetConvolutionNdDescriptor, made, c.spatial_rank, pads.data(), strides.data(),
      dilations.data(), CUDNN_CROSS_CORRELATION, CudnnComputeType(c.dtype)));
  TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(library_, cudnnSetConvolutionGroupCount, made,
                                             static_cast<int>(c.group_count)));
  return TF_INTEROP_CALL(library_, cudnnSetConvolutionMathType, made,
                         MathTypeOf(c.dtype, allow_reduced_precision));
}

Status LegacyConvolution::AskWorkspace(cudnnHandle_t handle) {
  switch (kind_) {
    case ConvolutionKind::kForward:
      return TF_INTEROP_CALL(library_, cudnnGetConvolutionForwardWorkspaceSize, handle,
                             image_.get(), filter_.get(), convolution_.get(), output_.get(),
                             static_cast<cudnnConvolutionFwdAlgo_t>(algorithm_), &workspace_bytes_);
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

Status LegacyConvolution::Execute(cudnnHandle_t handle, const TensorBindings& bindings,
                                  void* workspace) const {
  const cudnnStatus_t called = Call(handle, bindings, workspace);
  if (called == CUDNN_STATUS_SUCCESS) return Status::Ok();
  return library_.Check(called, std::string("cudnnConvolution of kind ") + ToString(kind_) +
                                    " with '" + tag_.name + "'");
}

cudnnStatus_t LegacyConvolution::Call(cudnnHandle_t handle, const TensorBindings& bindings,
                                      void* workspace) const {
  void* const image = bindings.Find(kImageTensor);
  void* const filter = bindings.Find(kFilterTensor);
  void* const output = bindings.Find(kOutputTensor);
  const ScalingFactor one(dtype_, 1);
  const ScalingFactor zero(dtype_, 0);
  std::lock_guard<std::mutex> lock(execute_mutex_);
  switch (kind_) {
    case ConvolutionKind::kForward:
      return library_.cudnnConvolutionForward(
          handle, one.get(), image_.get(), image, filter_.get(), filter, convolution_.get(),
          static_cast<cudnnConvolutionFwdAlgo_t>(algorithm_), workspace, workspace_bytes_,
          zero.get(), output_.get(), output);
    case ConvolutionKind::kBackwardInput:
      return library_.cudnnConvolutionBackwardData(
          handle, one.get(), filter_.get(), filter, output_.get(), output, convolution_.get(),
          static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm_), workspace, workspace_bytes_,
          zero.get(), image_.get(), image);
    case ConvolutionKind::kBackwardFilter:
      break;
  }
  return library_.cudnnConvolutionBackwardFilter(
      handle, one.get(), image_.get(), image, output_.get(), output, convolution_.get(),
      static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm_), workspace, workspace_bytes_,
      zero.get(), filter_.get(), filter);
}

}  // namespace tf_interop
