#include "cc_kernels/core/cudnn/tensor.h"

#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

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

int64_t TensorGeometry::elements() const {
  return std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
}

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
  TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(library, cudnnCreateTensorDescriptor, &made));
  *descriptor = TensorDescriptor(made, DestroyTensorDescriptor{&library});
  return TF_INTEROP_CALL(library, cudnnSetTensorNdDescriptor, made, CudnnType(dtype),
                         static_cast<int>(extents.size()), extents.data(), strides.data());
}

bool IsIdentity(const CopyShape& shape) {
  for (size_t i = 0; i < shape.extents.size(); ++i) {
    // No step is ever taken along an extent of one.
    if (shape.extents[i] > 1 && shape.source_strides[i] != shape.destination_strides[i]) {
      return false;
    }
  }
  return true;
}

Status StridedCopy::Make(const CudnnLibrary& library, DataType dtype, const CopyShape& shape,
                         std::shared_ptr<const StridedCopy>* copy) {
  TensorDescriptor source(nullptr, DestroyTensorDescriptor{&library});
  TensorDescriptor destination(nullptr, DestroyTensorDescriptor{&library});
  TF_INTEROP_RETURN_IF_ERROR(
      MakeTensorDescriptor(library, dtype, {shape.extents, shape.source_strides}, &source));
  TF_INTEROP_RETURN_IF_ERROR(MakeTensorDescriptor(
      library, dtype, {shape.extents, shape.destination_strides}, &destination));
  copy->reset(new StridedCopy(library, dtype, std::move(source), std::move(destination)));
  return Status::Ok();
}

StridedCopy::StridedCopy(const CudnnLibrary& library, DataType dtype, TensorDescriptor source,
                         TensorDescriptor destination)
    : library_(library),
      dtype_(dtype),
      source_(std::move(source)),
      destination_(std::move(destination)) {}

Status StridedCopy::Enqueue(cudnnHandle_t handle, const void* source, void* destination) const {
  const ScalingFactor one(dtype_, 1);
  const ScalingFactor zero(dtype_, 0);
  return TF_INTEROP_CALL(library_, cudnnTransformTensor, handle, one.get(), source_.get(), source,
                         zero.get(), destination_.get(), destination);
}

}  // namespace tf_interop
