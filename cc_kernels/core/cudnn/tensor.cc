#include "cc_kernels/core/cudnn/tensor.h"

#include <limits>
#include <string>

namespace tf_interop {

TensorGeometry PackedTensor(Layout layout, int64_t n, int64_t c,
                            const std::vector<int64_t>& spatial) {
  TensorGeometry tensor;
  tensor.extents = {n, c};
  tensor.extents.insert(tensor.extents.end(), spatial.begin(), spatial.end());
  tensor.strides.assign(tensor.extents.size(), 1);
  int64_t stride = layout == Layout::kNHWC ? c : 1;
  for (size_t i = tensor.extents.size(); i-- > 2;) {
    tensor.strides[i] = stride;
    stride *= tensor.extents[i];
  }
  if (layout == Layout::kNCHW) {
    tensor.strides[1] = stride;
    stride *= c;
  }
  tensor.strides[0] = stride;
  return tensor;
}

std::vector<int64_t> SpatialOf(const Convolution& c, int64_t depth, int64_t height, int64_t width) {
  if (c.spatial_rank == 3) return {depth, height, width};
  return {height, width};
}

TensorGeometry ImageGeometry(const Convolution& c) {
  return PackedTensor(c.layout, c.batch, c.image_channels,
                      SpatialOf(c, c.image_depth, c.image_height, c.image_width));
}

TensorGeometry OutputGeometry(const Convolution& c) {
  return PackedTensor(c.layout, c.batch, c.output_channels,
                      SpatialOf(c, c.output_depth, c.output_height, c.output_width));
}

TensorGeometry FilterGeometry(const Convolution& c) {
  return PackedTensor(c.layout, c.output_channels, c.image_channels / c.group_count,
                      SpatialOf(c, c.filter_depth, c.filter_height, c.filter_width));
}

TensorGeometry BiasGeometry(const Convolution& c) {
  return PackedTensor(c.layout, 1, c.output_channels, SpatialOf(c, 1, 1, 1));
}

cudnnDataType_t CudnnType(DataType dtype) {
  // In the order of DataType.
  constexpr cudnnDataType_t kTypes[] = {CUDNN_DATA_FLOAT, CUDNN_DATA_HALF, CUDNN_DATA_BFLOAT16,
                                        CUDNN_DATA_DOUBLE};
  return kTypes[static_cast<int>(dtype)];
}

cudnnDataType_t CudnnComputeType(DataType dtype) {
  return dtype == DataType::kDouble ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
}

const void* ScalingFactor(DataType dtype, int value) {
  static constexpr double kDoubles[] = {0, 1};
  static constexpr float kFloats[] = {0, 1};
  if (dtype == DataType::kDouble) return &kDoubles[value];
  return &kFloats[value];
}

Status MakeTensorDescriptor(const CudnnLibrary& library, DataType dtype,
                            const TensorGeometry& geometry, TensorDescriptor* descriptor) {
  constexpr int64_t kLargestIndex = std::numeric_limits<int>::max() - 1;
  int64_t last = 0;  // the index of the last element
  bool fits = true;
  std::string sizes;
  for (size_t i = 0; i < geometry.extents.size(); ++i) {
    last += (geometry.extents[i] - 1) * geometry.strides[i];
    fits = fits && geometry.strides[i] <= kLargestIndex + 1;
    sizes += (sizes.empty() ? "" : "x") + std::to_string(geometry.extents[i]);
  }
  if (!fits || last > kLargestIndex) {
    return Unsupported("Expected a tensor of fewer than 2^31 elements, got " + sizes + ".");
  }
  const std::vector<int> extents(geometry.extents.begin(), geometry.extents.end());
  const std::vector<int> strides(geometry.strides.begin(), geometry.strides.end());
  cudnnTensorDescriptor_t made = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(library, cudnnCreateTensorDescriptor, &made));
  *descriptor = TensorDescriptor(made, library.cudnnDestroyTensorDescriptor);
  return TF_INTEROP_CALL(library, cudnnSetTensorNdDescriptor, made, CudnnType(dtype),
                         static_cast<int>(extents.size()), extents.data(), strides.data());
}

bool IsIdentity(const CopyShape& shape) {
  for (size_t i = 0; i < shape.extents.size(); ++i) {
    // The stride of an extent of one is never used.
    if (shape.extents[i] > 1 && shape.source_strides[i] != shape.destination_strides[i]) {
      return false;
    }
  }
  return true;
}

Status MakeStridedCopy(const CudnnLibrary& library, DataType dtype, const CopyShape& shape,
                       StridedCopy* copy) {
  TensorDescriptor from, to;
  TF_INTEROP_RETURN_IF_ERROR(
      MakeTensorDescriptor(library, dtype, {shape.extents, shape.source_strides}, &from));
  TF_INTEROP_RETURN_IF_ERROR(
      MakeTensorDescriptor(library, dtype, {shape.extents, shape.destination_strides}, &to));
  *copy = [&library, dtype, from, to](cudnnHandle_t handle, const void* source, void* destination) {
    return TF_INTEROP_CALL(library, cudnnTransformTensor, handle, ScalingFactor(dtype, 1),
                           from.get(), source, ScalingFactor(dtype, 0), to.get(), destination);
  };
  return Status::Ok();
}

}  // namespace tf_interop
