// The legacy API for convolutions in the stand-in for libcudnn.
#pragma GCC visibility push(default)

#include <cudnn.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "tests/cc/fake_cudnn.h"
#include "tests/cc/fake_cudnn_compute.h"

namespace tf_interop {
namespace {

// Of every algorithm that has one, so that a tensor in the same place would be overwritten.
constexpr size_t kWorkspaceBytes = 2048;

// The names once more, in cuDNN's order, so that a number passed wrongly shows.
const char* NameOf(ConvolutionKind kind, int algorithm) {
  static const char* const names[][8] = {
      {"IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "DIRECT", "FFT", "FFT_TILING", "WINOGRAD",
       "WINOGRAD_NONFUSED"},
      {"ALGO_0", "ALGO_1", "FFT", "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED"},
      {"ALGO_0", "ALGO_1", "FFT", "ALGO_3", "WINOGRAD", "WINOGRAD_NONFUSED", "FFT_TILING"}};
  return names[static_cast<int>(kind)][algorithm];
}

// One call, as the real descriptors tell it.
struct LegacyCall {
  cudnnHandle_t handle;
  cudnnTensorDescriptor_t x_descriptor, y_descriptor;
  cudnnFilterDescriptor_t w_descriptor;
  cudnnConvolutionDescriptor_t convolution;
  ConvolutionKind kind;
  std::string algorithm;
  TensorForm x = {}, w = {}, y = {};
  Spacing spacing = {};

  size_t workspace_bytes() const {
    return algorithm == "IMPLICIT_GEMM" || algorithm == "ALGO_0" ? 0 : kWorkspaceBytes;
  }

  // Reads the descriptors, and checks what cuDNN does of them.
  cudnnStatus_t Check() {
    const cudnnStatus_t current = FakeCudnnCheckHandle(*handle);
    if (current != CUDNN_STATUS_SUCCESS) return current;
    int x_rank = 0, y_rank = 0, w_rank = 0, spatial = 0;
    x = ReadForm(x_descriptor, &x_rank);
    y = ReadForm(y_descriptor, &y_rank);
    cudnnDataType_t type;
    cudnnTensorFormat_t format;
    std::vector<int> w_extents(CUDNN_DIM_MAX);
    TF_INTEROP_REAL(cudnnGetFilterNdDescriptor, w_descriptor, CUDNN_DIM_MAX, &type, &format,
                    &w_rank, w_extents.data());
    w_extents.resize(w_rank);
    w = {DataTypeOf(type), ToFive(w_extents, 1), {}};
    const auto& [k, c, d, r, s] = w.extents;
    w.strides = format == CUDNN_TENSOR_NHWC ? Five{d * r * s * c, 1, r * s * c, s * c, c}
                                            : Five{c * d * r * s, d * r * s, r * s, s, 1};
    std::vector<int> pads(3), strides(3), dilations(3), extents(x_rank);
    cudnnConvolutionMode_t mode;
    cudnnDataType_t sums;
    TF_INTEROP_REAL(cudnnGetConvolutionNdDescriptor, convolution, 3, &spatial, pads.data(),
                    strides.data(), dilations.data(), &mode, &sums);
    for (auto* values : {&pads, &strides, &dilations}) values->resize(spatial);
    spacing = {WithDepth(strides, 1), WithDepth(dilations, 1), WithDepth(pads, 0)};
    // Real, and of the shape alone.
    const cudnnStatus_t shape = TF_INTEROP_REAL(cudnnGetConvolutionNdForwardOutputDim, convolution,
                                                x_descriptor, w_descriptor, x_rank, extents.data());
    if (shape != CUDNN_STATUS_SUCCESS) return shape;
    const bool is_nhwc = x.extents[1] > 1 && x.strides[1] == 1;
    const bool is_double = x.dtype == DataType::kDouble;
    if (ToFive(extents, 1) != y.extents || x_rank != w_rank || mode != CUDNN_CROSS_CORRELATION ||
        x.dtype != w.dtype || x.dtype != y.dtype ||
        (x.extents[1] > 1 && is_nhwc != (format == CUDNN_TENSOR_NHWC)) ||
        sums != (is_double ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT)) {
      return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "tensors that do not fit");
    }
    if (FakeCudnn().unsupported_legacy.count(algorithm) != 0) {
      return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED, algorithm + " switched off");
    }
    if (is_nhwc && algorithm.rfind("FFT", 0) == 0) {
      return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "FFT of NHWC");
    }
    cudnnMathType_t math;
    TF_INTEROP_REAL(cudnnGetConvolutionMathType, convolution, &math);
    FakeCudnnCounts().last_legacy_math_type = math;
    return CUDNN_STATUS_SUCCESS;
  }

  cudnnStatus_t AskWorkspace(size_t* bytes) {
    const UseGuard guard(&handle->in_use);
    if (FakeCudnn().fail_plan_allocation) {
      return FakeCudnnFail(CUDNN_STATUS_ALLOC_FAILED, "no memory for the algorithm");
    }
    *bytes = workspace_bytes();
    return Check();
  }

  cudnnStatus_t Run(const void* x_data, const void* w_data, const void* y_data, void* workspace,
                    size_t bytes, const void* alpha, const void* beta) {
    const UseGuard handle_guard(&handle->in_use);
    const cudnnStatus_t status = Check();
    if (status != CUDNN_STATUS_SUCCESS) return status;
    if (FakeCudnn().fail_execution) {
      return FakeCudnnFail(CUDNN_STATUS_EXECUTION_FAILED, "execution switched off");
    }
    if (!IsUnscaled(x.dtype, alpha, beta) || bytes < workspace_bytes()) {
      return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "scaled convolution, or too little workspace");
    }
    FakeCudaEnqueue(handle->stream, [call = *this, x_data, w_data, y_data, workspace, bytes] {
      if (bytes > 0) std::memset(workspace, 0xA5, bytes);
      TensorValues image = ReadTensor(call.x, x_data), filter = ReadTensor(call.w, w_data),
                   output = ReadTensor(call.y, y_data);
      ComputeConvolution(&image, &filter, &output, call.spacing, call.kind);
      if (bytes > 0) std::memset(workspace, 0x5A, bytes);
    });
    return CUDNN_STATUS_SUCCESS;
  }
};

LegacyCall CallOf(cudnnHandle_t handle, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                  cudnnTensorDescriptor_t y, cudnnConvolutionDescriptor_t convolution,
                  ConvolutionKind kind, int algorithm) {
  return {handle, x, y, w, convolution, kind, NameOf(kind, algorithm)};
}

constexpr auto kForward = ConvolutionKind::kForward;
constexpr auto kInput = ConvolutionKind::kBackwardInput;
constexpr auto kFilter = ConvolutionKind::kBackwardFilter;

}  // namespace
}  // namespace tf_interop

using namespace tf_interop;  // NOLINT: the C interface of the functions above

extern "C" {

TF_INTEROP_FORWARD(cudnnCreateFilterDescriptor, (cudnnFilterDescriptor_t * made), made)
TF_INTEROP_FORWARD(cudnnSetFilterNdDescriptor,
                   (cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                    cudnnTensorFormat_t format, int rank, const int* extents),
                   filter, type, format, rank, extents)
TF_INTEROP_FORWARD(cudnnDestroyFilterDescriptor, (cudnnFilterDescriptor_t filter), filter)
TF_INTEROP_FORWARD(cudnnCreateConvolutionDescriptor, (cudnnConvolutionDescriptor_t * made), made)
TF_INTEROP_FORWARD(cudnnSetConvolutionNdDescriptor,
                   (cudnnConvolutionDescriptor_t convolution, int rank, const int* pads,
                    const int* strides, const int* dilations, cudnnConvolutionMode_t mode,
                    cudnnDataType_t sums),
                   convolution, rank, pads, strides, dilations, mode, sums)
TF_INTEROP_FORWARD(cudnnSetConvolutionGroupCount,
                   (cudnnConvolutionDescriptor_t convolution, int count), convolution, count)
TF_INTEROP_FORWARD(cudnnSetConvolutionMathType,
                   (cudnnConvolutionDescriptor_t convolution, cudnnMathType_t math), convolution,
                   math)
TF_INTEROP_FORWARD(cudnnDestroyConvolutionDescriptor, (cudnnConvolutionDescriptor_t convolution),
                   convolution)

cudnnStatus_t CUDNNWINAPI cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t convolution, const cudnnTensorDescriptor_t y,
    cudnnConvolutionFwdAlgo_t algorithm, size_t* bytes) {
  return CallOf(handle, x, w, y, convolution, kForward, algorithm).AskWorkspace(bytes);
}

cudnnStatus_t CUDNNWINAPI cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t convolution, const cudnnTensorDescriptor_t dx,
    cudnnConvolutionBwdDataAlgo_t algorithm, size_t* bytes) {
  return CallOf(handle, dx, w, dy, convolution, kInput, algorithm).AskWorkspace(bytes);
}

cudnnStatus_t CUDNNWINAPI cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t convolution, const cudnnFilterDescriptor_t dw,
    cudnnConvolutionBwdFilterAlgo_t algorithm, size_t* bytes) {
  return CallOf(handle, x, dw, dy, convolution, kFilter, algorithm).AskWorkspace(bytes);
}

cudnnStatus_t CUDNNWINAPI
cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t x,
                        const void* x_data, const cudnnFilterDescriptor_t w, const void* w_data,
                        const cudnnConvolutionDescriptor_t convolution,
                        cudnnConvolutionFwdAlgo_t algorithm, void* workspace, size_t bytes,
                        const void* beta, const cudnnTensorDescriptor_t y, void* y_data) {
  return CallOf(handle, x, w, y, convolution, kForward, algorithm)
      .Run(x_data, w_data, y_data, workspace, bytes, alpha, beta);
}

cudnnStatus_t CUDNNWINAPI cudnnConvolutionBackwardData(
    cudnnHandle_t handle, const void* alpha, const cudnnFilterDescriptor_t w, const void* w_data,
    const cudnnTensorDescriptor_t dy, const void* dy_data,
    const cudnnConvolutionDescriptor_t convolution, cudnnConvolutionBwdDataAlgo_t algorithm,
    void* workspace, size_t bytes, const void* beta, const cudnnTensorDescriptor_t dx,
    void* dx_data) {
  return CallOf(handle, dx, w, dy, convolution, kInput, algorithm)
      .Run(dx_data, w_data, dy_data, workspace, bytes, alpha, beta);
}

cudnnStatus_t CUDNNWINAPI cudnnConvolutionBackwardFilter(
    cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t x, const void* x_data,
    const cudnnTensorDescriptor_t dy, const void* dy_data,
    const cudnnConvolutionDescriptor_t convolution, cudnnConvolutionBwdFilterAlgo_t algorithm,
    void* workspace, size_t bytes, const void* beta, const cudnnFilterDescriptor_t dw,
    void* dw_data) {
  return CallOf(handle, x, dw, dy, convolution, kFilter, algorithm)
      .Run(x_data, dw_data, dy_data, workspace, bytes, alpha, beta);
}

}  // extern "C"

#pragma GCC visibility pop
