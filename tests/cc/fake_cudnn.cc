// Entry points of both stand-ins are to be found by name, whatever the build's default is.
#pragma GCC visibility push(default)

#include "tests/cc/fake_cudnn.h"

#include <cudnn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/cc/fake_cuda.h"
#include "tests/cc/fake_cudnn_compute.h"

namespace tf_interop {
namespace {

thread_local std::string last_error;

}  // namespace

FakeCudnnSwitches& FakeCudnn() {
  static auto* switches = new FakeCudnnSwitches();
  return *switches;
}

FakeCudnnCounters& FakeCudnnCounts() {
  static auto* counters = new FakeCudnnCounters();
  return *counters;
}

cudnnStatus_t FakeCudnnFail(cudnnStatus_t status, const std::string& why) {
  last_error = why;
  return status;
}

cudnnStatus_t FakeCudnnCheckHandle(const cudnnContext& handle) {
  if (FakeCudaCurrentContext() != handle.context) {
    return FakeCudnnFail(CUDNN_STATUS_BAD_PARAM, "another context is current");
  }
  return CUDNN_STATUS_SUCCESS;
}

void FakeCudnnCountDestroyed() {
  --FakeCudnnCounts().live_descriptors;
  if (FakeCudaCurrentContext() == nullptr) ++FakeCudnnCounts().destroyed_outside_contexts;
}

bool FakeCudnnComputesNothing() {
  static const bool computes_nothing = std::getenv("TF_INTEROP_FAKE_CUDNN_NO_WORK") != nullptr;
  return computes_nothing;
}

}  // namespace tf_interop

using namespace tf_interop;  // NOLINT: the C interface of the functions above

extern "C" {

// TF_INTEROP_FAKE_CUDNN_VERSION stands for the version of another cuDNN.
size_t CUDNNWINAPI cudnnGetVersion(void) {
  const char* version = std::getenv("TF_INTEROP_FAKE_CUDNN_VERSION");
  return version == nullptr ? CUDNN_VERSION : std::strtoul(version, nullptr, 10);
}

const char* CUDNNWINAPI cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_NOT_SUPPORTED_PADDING:
      return "CUDNN_STATUS_NOT_SUPPORTED_PADDING";
    case CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED:
      return "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED";
    case CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED:
      return "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED";
    case CUDNN_STATUS_EXECUTION_FAILED:
      return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
      return "CUDNN_STATUS_OTHER";
  }
}

void CUDNNWINAPI cudnnGetLastErrorString(char* message, size_t max_size) {
  std::snprintf(message, max_size, "%s", last_error.c_str());
}

cudnnStatus_t CUDNNWINAPI cudnnCreate(cudnnHandle_t* handle) {
  if (FakeCudaCurrentContext() == nullptr || FakeCudnn().fail_handle) {
    return FakeCudnnFail(CUDNN_STATUS_NOT_INITIALIZED, "no context");
  }
  *handle = new cudnnContext();
  (*handle)->context = FakeCudaCurrentContext();
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t CUDNNWINAPI cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  UseGuard guard(&handle->in_use, &FakeCudnnCounts().handle_races);
  handle->stream = stream;
  return FakeCudnnCheckHandle(*handle);
}

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
