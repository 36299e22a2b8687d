// Copies between tensors of other strides in the stand-in for libcudnn.
#include <cudnn.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/cc/fake_cuda.h"
#include "tests/cc/fake_cudnn.h"
#include "tests/cc/fake_cudnn_compute.h"

using namespace tf_interop;  // NOLINT: what the C interface is made of

#pragma GCC visibility push(default)
extern "C" {

cudnnStatus_t CUDNNWINAPI cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* descriptor) {
  *descriptor = new cudnnTensorStruct();
  ++FakeCudnnCounts().live_descriptors;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t descriptor) {
  delete descriptor;
  FakeCudnnCountDestroyed();
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t descriptor,
                                                     cudnnDataType_t type, int rank,
                                                     const int* extents, const int* strides) {
  if (rank != 4 && rank != 5) return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED, "rank of a tensor");
  if (*std::min_element(extents, extents + rank) <= 0 ||
      *std::min_element(strides, strides + rank) <= 0) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "extent or stride that is not positive");
  }
  const std::vector<int> sizes(extents, extents + rank), steps(strides, strides + rank);
  *descriptor = {type, rank, WithDepth(sizes, 1), WithDepth(steps, 1)};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnTransformTensor(cudnnHandle_t handle, const void* alpha,
                                               const cudnnTensorDescriptor_t x_descriptor,
                                               const void* x, const void* beta,
                                               const cudnnTensorDescriptor_t y_descriptor,
                                               void* y) {
  UseGuard guard(&handle->in_use, &FakeCudnnCounts().handle_races);
  const cudnnStatus_t status = FakeCudnnCheckHandle(*handle);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  if (x_descriptor->type != y_descriptor->type || x_descriptor->extents != y_descriptor->extents) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED, "tensors differ in type or shape");
  }
  if (x_descriptor->rank != 4 || y_descriptor->rank != 4) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_SUPPORTED, "copies are documented for four dimensions");
  }
  if (ReadScaling(x_descriptor->type, alpha) != 1 || ReadScaling(x_descriptor->type, beta) != 0) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "scaled copy");
  }
  ++FakeCudnnCounts().copies;
  if (FakeCudnnComputesNothing()) return CUDNN_STATUS_SUCCESS;
  FakeCudaEnqueue(handle->stream, [from = *x_descriptor, to = *y_descriptor, x, y] {
    const auto size = static_cast<int64_t>(SizeOfType(from.type));
    ForEachPlace(from.extents, [&](const Five& place) {
      std::memcpy(static_cast<char*>(y) + size * At(to.strides, place),
                  static_cast<const char*>(x) + size * At(from.strides, place), size);
    });
  });
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"

#pragma GCC visibility pop
