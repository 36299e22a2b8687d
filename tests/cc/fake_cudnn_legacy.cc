// The legacy API for convolutions in the stand-in for libcudnn. A stand-in is also built without
// this file, for a cuDNN that lacks that API.
#pragma GCC visibility push(default)

#include <cudnn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/cc/fake_cudnn.h"
#include "tests/cc/fake_cudnn_compute.h"

using tf_interop::Five;
using tf_interop::Spacing;

struct cudnnFilterStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW;
  int rank = 0;
  Five extents = {};
};

struct cudnnConvolutionStruct {
  int spatial_rank = 0;
  Spacing spacing;
  cudnnDataType_t compute_type = CUDNN_DATA_FLOAT;
  int group_count = 1;
  cudnnMathType_t math_type = CUDNN_DEFAULT_MATH;
  std::atomic<bool> in_use{false};
};

namespace tf_interop {
namespace {

// Of every algorithm that has one, so that a tensor in the same place would be overwritten.
constexpr size_t kWorkspaceBytes = 2048;

StridedTensor Describe(const cudnnTensorStruct& tensor, void* data) {
  return {tensor.type, tensor.extents, tensor.strides, data};
}

StridedTensor Describe(const cudnnFilterStruct& filter, void* data) {
  const auto& [k, c, d, r, s] = filter.extents;
  const Five strides = filter.format == CUDNN_TENSOR_NHWC
                           ? Five{d * r * s * c, 1, r * s * c, s * c, c}
                           : Five{c * d * r * s, d * r * s, r * s, s, 1};
  return {filter.type, filter.extents, strides, data};
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
  if (convolution.compute_type != ComputeTypeOf(x.type)) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "type of sums");
  }
  for (const int rank : {x.rank, w.rank, y.rank}) {
    if (rank != convolution.spatial_rank + 2) {
      return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "rank differs from the spatial dimensions");
    }
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
  const Spacing& spacing = convolution.spacing;
  for (int i = 0; i < 3; ++i) {
    const int64_t reach = (w.extents[2 + i] - 1) * spacing.dilations[i] + 1;
    const int64_t fitting =
        (x.extents[2 + i] + 2 * spacing.pads_before[i] - reach) / spacing.strides[i] + 1;
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
  if (ReadScaling(x.type, alpha) != 1 || ReadScaling(x.type, beta) != 0) {
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
  FakeCudaEnqueue(handle->stream, [image = Describe(x, const_cast<void*>(x_data)),
                                   filter = Describe(w, const_cast<void*>(w_data)),
                                   output = Describe(y, const_cast<void*>(y_data)),
                                   spacing = convolution->spacing, computed, workspace, bytes] {
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

cudnnStatus_t CUDNNWINAPI cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t descriptor,
                                                     cudnnDataType_t type,
                                                     cudnnTensorFormat_t format, int rank,
                                                     const int* extents) {
  if (rank != 4 && rank != 5) return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED, "rank of a filter");
  *descriptor = {type, format, rank, WithDepth(std::vector<int>(extents, extents + rank), 1)};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t descriptor) {
  delete descriptor;
  FakeCudnnCountDestroyed();
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI
cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* descriptor) {
  *descriptor = new cudnnConvolutionStruct();
  ++FakeCudnnCounts().live_descriptors;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t descriptor,
                                                          int spatial_rank, const int* pads,
                                                          const int* strides, const int* dilations,
                                                          cudnnConvolutionMode_t mode,
                                                          cudnnDataType_t compute_type) {
  if (mode != CUDNN_CROSS_CORRELATION || (spatial_rank != 2 && spatial_rank != 3)) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "mode or number of spatial dimensions");
  }
  const auto with_depth = [spatial_rank](const int* values, int64_t depth) {
    return WithSpatialDepth(std::vector<int>(values, values + spatial_rank), depth);
  };
  descriptor->spatial_rank = spatial_rank;
  descriptor->spacing = {with_depth(strides, 1), with_depth(dilations, 1), with_depth(pads, 0)};
  descriptor->compute_type = compute_type;
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
  FakeCudnnCountDestroyed();
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
