#include "cc_kernels/core/cudnn/tensor_descriptor.h"

#include <limits>
#include <string>

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
      break;
  }
  return CUDNN_DATA_BFLOAT16;
}

Status MakeTensorDescriptor(const CudnnLibrary& library, DataType dtype,
                            const TensorGeometry& geometry, TensorDescriptor* descriptor) {
  const auto& extents = geometry.extents;
  const auto& strides = geometry.strides;
  if (!FitsDescriptor(geometry)) {
    return Unsupported("Expected a tensor of less than 2^31 elements, got " +
                       std::to_string(extents[0]) + "x" + std::to_string(extents[1]) + "x" +
                       std::to_string(extents[2]) + "x" + std::to_string(extents[3]) + ".");
  }
  cudnnTensorDescriptor_t made = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(
      library.Check(library.cudnnCreateTensorDescriptor(&made), "cudnnCreateTensorDescriptor"));
  *descriptor = TensorDescriptor(made, DestroyTensorDescriptor{&library});
  const auto extent = [&extents](int i) { return static_cast<int>(extents[i]); };
  const auto stride = [&strides](int i) { return static_cast<int>(strides[i]); };
  return library.Check(
      library.cudnnSetTensor4dDescriptorEx(made, CudnnType(dtype), extent(0), extent(1), extent(2),
                                           extent(3), stride(0), stride(1), stride(2), stride(3)),
      "cudnnSetTensor4dDescriptorEx");
}

}  // namespace tf_interop
