#include "cc_kernels/core/cudnn/tensor_descriptor.h"

#include <limits>
#include <string>
#include <vector>

namespace tf_interop {
namespace {

// The furthest element that a descriptor reaches must have a 32-bit index.
bool FitsDescriptor(const TensorGeometry& geometry) {
  int64_t last = 0;
  for (size_t i = 0; i < geometry.extents.size(); ++i) {
    if (geometry.strides[i] > std::numeric_limits<int>::max()) return false;
    last += (geometry.extents[i] - 1) * geometry.strides[i];
  }
  return last < std::numeric_limits<int>::max();
}

}  // namespace

cudnnDataType_t CudnnType(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat:
      return CUDNN_DATA_FLOAT;
    case DataType::kHalf:
      return CUDNN_DATA_HALF;
    case DataType::kBFloat16:
      return CUDNN_DATA_BFLOAT16;
    case DataType::kDouble:
      break;
  }
  return CUDNN_DATA_DOUBLE;
}

cudnnDataType_t CudnnComputeType(DataType dtype) {
  return dtype == DataType::kDouble ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
}

Status MakeTensorDescriptor(const CudnnLibrary& library, DataType dtype,
                            const TensorGeometry& geometry, TensorDescriptor* descriptor) {
  if (!FitsDescriptor(geometry)) {
    std::string sizes;
    for (const int64_t extent : geometry.extents) {
      sizes += (sizes.empty() ? "" : "x") + std::to_string(extent);
    }
    return Unsupported("Expected a tensor of less than 2^31 elements, got " + sizes + ".");
  }
  const std::vector<int> extents(geometry.extents.begin(), geometry.extents.end());
  const std::vector<int> strides(geometry.strides.begin(), geometry.strides.end());
  cudnnTensorDescriptor_t made = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(
      library.Check(library.cudnnCreateTensorDescriptor(&made), "cudnnCreateTensorDescriptor"));
  *descriptor = TensorDescriptor(made, DestroyTensorDescriptor{&library});
  return library.Check(
      library.cudnnSetTensorNdDescriptor(made, CudnnType(dtype), static_cast<int>(extents.size()),
                                         extents.data(), strides.data()),
      "cudnnSetTensorNdDescriptor");
}

}  // namespace tf_interop
