#include "cc_kernels/core/cudnn/strided_copy.h"

#include <limits>
#include <string>
#include <utility>

namespace tf_interop {
namespace {

// The furthest element that a descriptor reaches must have a 32-bit index.
bool FitsDescriptor(const std::array<int64_t, 4>& extents, const std::array<int64_t, 4>& strides) {
  int64_t last = 0;
  for (size_t i = 0; i < extents.size(); ++i) {
    if (strides[i] > std::numeric_limits<int>::max()) return false;
    last += (extents[i] - 1) * strides[i];
  }
  return last < std::numeric_limits<int>::max();
}

}  // namespace

bool IsIdentity(const CopyShape& shape) {
  for (size_t i = 0; i < shape.extents.size(); ++i) {
    // No step is ever taken along an extent of one.
    if (shape.extents[i] > 1 && shape.source_strides[i] != shape.destination_strides[i]) {
      return false;
    }
  }
  return true;
}

Status StridedCopy::MakeDescriptor(const CudnnLibrary& library, DataType dtype,
                                   const std::array<int64_t, 4>& extents,
                                   const std::array<int64_t, 4>& strides, Descriptor* descriptor) {
  if (!FitsDescriptor(extents, strides)) {
    return Unsupported("Expected a tensor that cuDNN can copy, of less than 2^31 elements, got " +
                       std::to_string(extents[0]) + "x" + std::to_string(extents[1]) + "x" +
                       std::to_string(extents[2]) + "x" + std::to_string(extents[3]) + ".");
  }
  cudnnTensorDescriptor_t made = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(
      library.Check(library.cudnnCreateTensorDescriptor(&made), "cudnnCreateTensorDescriptor"));
  *descriptor = Descriptor(made, Destroy{&library});
  const auto extent = [&extents](int i) { return static_cast<int>(extents[i]); };
  const auto stride = [&strides](int i) { return static_cast<int>(strides[i]); };
  return library.Check(
      library.cudnnSetTensor4dDescriptorEx(
          made, dtype == DataType::kFloat ? CUDNN_DATA_FLOAT : CUDNN_DATA_HALF, extent(0),
          extent(1), extent(2), extent(3), stride(0), stride(1), stride(2), stride(3)),
      "cudnnSetTensor4dDescriptorEx");
}

Status StridedCopy::Make(const CudnnLibrary& library, DataType dtype, const CopyShape& shape,
                         std::unique_ptr<const StridedCopy>* copy) {
  Descriptor source(nullptr, Destroy{&library});
  Descriptor destination(nullptr, Destroy{&library});
  TF_INTEROP_RETURN_IF_ERROR(
      MakeDescriptor(library, dtype, shape.extents, shape.source_strides, &source));
  TF_INTEROP_RETURN_IF_ERROR(
      MakeDescriptor(library, dtype, shape.extents, shape.destination_strides, &destination));
  copy->reset(new StridedCopy(library, std::move(source), std::move(destination)));
  return Status::Ok();
}

StridedCopy::StridedCopy(const CudnnLibrary& library, Descriptor source, Descriptor destination)
    : library_(library), source_(std::move(source)), destination_(std::move(destination)) {}

Status StridedCopy::Enqueue(cudnnHandle_t handle, const void* source, void* destination) const {
  // Scaling factors are float for half tensors too.
  const float one = 1.0f;
  const float zero = 0.0f;
  return library_.Check(library_.cudnnTransformTensor(handle, &one, source_.get(), source, &zero,
                                                      destination_.get(), destination),
                        "cudnnTransformTensor");
}

}  // namespace tf_interop
