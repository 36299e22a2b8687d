// The legacy API for convolutions in the stand-in for libcudnn. A stand-in is also built without
// this file, for a cuDNN that lacks that API.
#pragma GCC visibility push(default)

#include <cudnn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "tests/cc/fake_cudnn.h"
#include "tests/cc/fake_cudnn_compute.h"

struct cudnnFilterStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW;
  int extents[4] = {0, 0, 0, 0};
};

struct cudnnConvolutionStruct {
  int pads[2] = {0, 0}, strides[2] = {1, 1}, dilations[2] = {1, 1};
  int group_count = 1;
  cudnnMathType_t math_type = CUDNN_DEFAULT_MATH;
  std::atomic<bool> in_use{false};
};

namespace tf_interop {
namespace {

// Of every algorithm that has one, so that a tensor in the same place would be overwritten.
constexpr size_t kWorkspaceBytes = 2048;

StridedTensor Describe(const cudnnTensorStruct& tensor, void* data) {
  StridedTensor described;
  described.type = tensor.type;
  std::copy_n(tensor.extents.begin(), 4, described.extents.begin());
  std::copy_n(tensor.strides.begin(), 4, described.strides.begin());
  described.data = data;
  return described;
}

StridedTensor Describe(const cudnnFilterStruct& filter, void* data) {
  StridedTensor described;
  described.type = filter.type;
  std::copy_n(filter.extents, 4, described.extents.begin());
  const int64_t c = filter.extents[1], r = filter.extents[2], s = filter.extents[3];
  described.strides = filter.format == CUDNN_TENSOR_NHWC ? Four{r * s * c, 1, s * c, c}
                                                         : Four{c * r * s, r * s, s, 1};
  described.data = data;
  return described;
}

bool IsNhwc(const cudnnTensorStruct& tensor) {
  return tensor.extents[1] > 1 && tensor.strides[1] == 1;
}

// What cuDNN checks of the three tensors, whichever of them is computed.
cudnnStatus_t CheckForm(const cudnnTensorStruct& x, const cudnnFilterStruct& w,
                        const cudnnConvolutionStruct& convolution, const cudnnTensorStruct& y,
                        const std::string& name) {
  if (FakeCudnn().unsupported_legacy.count(name) != 0) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED, name + " switched off");
  }
  if (x.type != w.type || x.type != y.type) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "types differ");
  }
  if (w.format != (IsNhwc(x) ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW) && x.extents[1] > 1) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "filter and image differ in layout");
  }
  if (name.rfind("FFT", 0) == 0 && IsNhwc(x)) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "FFT of NHWC");
  }
  if (x.extents[1] != w.extents[1] * convolution.group_count || y.extents[1] != w.extents[0]) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "channels do not fit");
  }
  for (int i = 0; i < 2; ++i) {
    const int reach = (w.extents[2 + i] - 1) * convolution.dilations[i] + 1;
    const int fitting =
        (x.extents[2 + i] + 2 * convolution.pads[i] - reach) / convolution.strides[i] + 1;
    if (y.extents[2 + i] != fitting) {
      return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "output size does not follow");
    }
  }
  FakeCudnnCounts().last_legacy_math_type = convolution.math_type;
  return CUDNN_STATUS_SUCCESS;
}

size_t WorkspaceOf(const std::string& name) {
  return name == "IMPLICIT_GEMM" || name == "ALGO_0" ? 0 : kWorkspaceBytes;
}

cudnnStatus_t AskWorkspace(cudnnHandle_t handle, const cudnnTensorStruct& x,
                           const cudnnFilterStruct& w, const cudnnConvolutionStruct& convolution,
                           const cudnnTensorStruct& y, const std::string& name, size_t* bytes) {
  UseGuard guard(&handle->in_use, &FakeCudnnCounts().handle_races);
  const cudnnStatus_t current = FakeCudnnCheckHandle(*handle);
  if (current != CUDNN_STATUS_SUCCESS) return current;
  if (FakeCudnn().fail_plan_allocation) {
    return FakeCudnnFail(CUDNN_STATUS_ALLOC_FAILED, "no memory for the algorithm");
  }
  *bytes = WorkspaceOf(name);
  return CheckForm(x, w, convolution, y, name);
}

cudnnStatus_t Run(cudnnHandle_t handle, const cudnnTensorStruct& x, const void* x_data,
                  const cudnnFilterStruct& w, const void* w_data,
                  cudnnConvolutionStruct* convolution, const cudnnTensorStruct& y,
                  const void* y_data, const std::string& name, void* workspace, size_t bytes,
                  const void* alpha, const void* beta, Computed computed) {
  UseGuard handle_guard(&handle->in_use, &FakeCudnnCounts().handle_races);
  UseGuard guard(&convolution->in_use, &FakeCudnnCounts().plan_races);
  const cudnnStatus_t current = FakeCudnnCheckHandle(*handle);
  if (current != CUDNN_STATUS_SUCCESS) return current;
  if (FakeCudnn().fail_execution) {
    return FakeCudnnFail(CUDNN_STATUS_EXECUTION_FAILED, "execution switched off");
  }
  if (*static_cast<const float*>(alpha) != 1.0f || *static_cast<const float*>(beta) != 0.0f) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "scaled convolution");
  }
  const cudnnStatus_t form = CheckForm(x, w, *convolution, y, name);
  if (form != CUDNN_STATUS_SUCCESS) return form;
  if (bytes < WorkspaceOf(name) || (bytes > 0 && workspace == nullptr)) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "workspace too small");
  }
  if (x_data == nullptr || w_data == nullptr || y_data == nullptr) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no tensor");
  }
  Spacing spacing;
  for (int i = 0; i < 2; ++i) {
    spacing.strides[i] = convolution->strides[i];
    spacing.dilations[i] = convolution->dilations[i];
    spacing.pads_before[i] = convolution->pads[i];
  }
  FakeCudaEnqueue(handle->stream, [image = Describe(x, const_cast<void*>(x_data)),
                                   filter = Describe(w, const_cast<void*>(w_data)),
                                   output = Describe(y, const_cast<void*>(y_data)), spacing,
                                   computed, workspace, bytes] {
    if (bytes > 0) std::memset(workspace, 0xA5, bytes);
    ComputeConvolution(image, filter, output, spacing, computed);
    if (bytes > 0) std::memset(workspace, 0x5A, bytes);
  });
  return CUDNN_STATUS_SUCCESS;
}

// The names once more, in cuDNN's order, so that a number passed wrongly shows.
std::string NameOf(cudnnConvolutionFwdAlgo_t algorithm) {
  static const char* const names[] = {
      "IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "DIRECT", "FFT", "FFT_TILING",
      "WINOGRAD",      "WINOGRAD_NONFUSED"};
  return names[algorithm];
}
std::string NameOf(cudnnConvolutionBwdDataAlgo_t algorithm) {
  static const char* const names[] = {"ALGO_0",     "ALGO_1",   "FFT",
                                      "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED"};
  return names[algorithm];
}
std::string NameOf(cudnnConvolutionBwdFilterAlgo_t algorithm) {
  static const char* const names[] = {
      "ALGO_0", "ALGO_1", "FFT", "ALGO_3", "WINOGRAD", "WINOGRAD_NONFUSED", "FFT_TILING"};
  return names[algorithm];
}

}  // namespace
}  // namespace tf_interop

using namespace tf_interop;  // NOLINT: the C interface of the functions above

extern "C" {

cudnnStatus_t CUDNNWINAPI cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* descriptor) {
  *descriptor = new cudnnFilterStruct();
  ++FakeCudnnCounts().live_descriptors;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t descriptor,
                                                     cudnnDataType_t type,
                                                     cudnnTensorFormat_t format, int k, int c,
                                                     int h, int w) {
  *descriptor = {type, format, {k, c, h, w}};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t descriptor) {
  delete descriptor;
  --FakeCudnnCounts().live_descriptors;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI
cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* descriptor) {
  *descriptor = new cudnnConvolutionStruct();
  ++FakeCudnnCounts().live_descriptors;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t descriptor,
                                                          int pad_h, int pad_w, int u, int v,
                                                          int dilation_h, int dilation_w,
                                                          cudnnConvolutionMode_t mode,
                                                          cudnnDataType_t compute_type) {
  if (mode != CUDNN_CROSS_CORRELATION || compute_type != CUDNN_DATA_FLOAT) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "mode or type of sums");
  }
  const int values[3][2] = {{pad_h, pad_w}, {u, v}, {dilation_h, dilation_w}};
  std::copy_n(values[0], 2, descriptor->pads);
  std::copy_n(values[1], 2, descriptor->strides);
  std::copy_n(values[2], 2, descriptor->dilations);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t descriptor,
                                                        int group_count) {
  descriptor->group_count = group_count;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t descriptor,
                                                      cudnnMathType_t math_type) {
  descriptor->math_type = math_type;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI
cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t descriptor) {
  delete descriptor;
  --FakeCudnnCounts().live_descriptors;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t convolution, const cudnnTensorDescriptor_t y,
    cudnnConvolutionFwdAlgo_t algorithm, size_t* bytes) {
  return AskWorkspace(handle, *x, *w, *convolution, *y, NameOf(algorithm), bytes);
}

cudnnStatus_t CUDNNWINAPI cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t convolution, const cudnnTensorDescriptor_t dx,
    cudnnConvolutionBwdDataAlgo_t algorithm, size_t* bytes) {
  return AskWorkspace(handle, *dx, *w, *convolution, *dy, NameOf(algorithm), bytes);
}

cudnnStatus_t CUDNNWINAPI cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t convolution, const cudnnFilterDescriptor_t dw,
    cudnnConvolutionBwdFilterAlgo_t algorithm, size_t* bytes) {
  return AskWorkspace(handle, *x, *dw, *convolution, *dy, NameOf(algorithm), bytes);
}

cudnnStatus_t CUDNNWINAPI
cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t x,
                        const void* x_data, const cudnnFilterDescriptor_t w, const void* w_data,
                        const cudnnConvolutionDescriptor_t convolution,
                        cudnnConvolutionFwdAlgo_t algorithm, void* workspace, size_t bytes,
                        const void* beta, const cudnnTensorDescriptor_t y, void* y_data) {
  return Run(handle, *x, x_data, *w, w_data, convolution, *y, y_data, NameOf(algorithm), workspace,
             bytes, alpha, beta, Computed::kOutput);
}

cudnnStatus_t CUDNNWINAPI cudnnConvolutionBackwardData(
    cudnnHandle_t handle, const void* alpha, const cudnnFilterDescriptor_t w, const void* w_data,
    const cudnnTensorDescriptor_t dy, const void* dy_data,
    const cudnnConvolutionDescriptor_t convolution, cudnnConvolutionBwdDataAlgo_t algorithm,
    void* workspace, size_t bytes, const void* beta, const cudnnTensorDescriptor_t dx,
    void* dx_data) {
  return Run(handle, *dx, dx_data, *w, w_data, convolution, *dy, dy_data, NameOf(algorithm),
             workspace, bytes, alpha, beta, Computed::kImage);
}

cudnnStatus_t CUDNNWINAPI cudnnConvolutionBackwardFilter(
    cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t x, const void* x_data,
    const cudnnTensorDescriptor_t dy, const void* dy_data,
    const cudnnConvolutionDescriptor_t convolution, cudnnConvolutionBwdFilterAlgo_t algorithm,
    void* workspace, size_t bytes, const void* beta, const cudnnFilterDescriptor_t dw,
    void* dw_data) {
  return Run(handle, *x, x_data, *dw, dw_data, convolution, *dy, dy_data, NameOf(algorithm),
             workspace, bytes, alpha, beta, Computed::kFilter);
}

}  // extern "C"

#pragma GCC visibility pop
