#include "cc_kernels/core/cudnn/strided_copy.h"

#include <cstddef>
#include <optional>
#include <utility>

namespace tf_interop {
namespace {

constexpr size_t kDescriptorRank = 4;

void EraseDimension(size_t dimension, CopyShape* shape) {
  for (auto* values : {&shape->extents, &shape->source_strides, &shape->destination_strides}) {
    values->erase(values->begin() + static_cast<std::ptrdiff_t>(dimension));
  }
}

// A dimension that the copy can do without: one of extent 1, or one whose steps go on where those
// of another end, in source and destination alike, and which becomes part of that one.
std::optional<size_t> MergeOneDimension(CopyShape* shape) {
  for (size_t i = 0; i < shape->extents.size(); ++i) {
    if (shape->extents[i] == 1) return i;
    for (size_t j = 0; j < shape->extents.size(); ++j) {
      if (i == j || shape->source_strides[i] != shape->source_strides[j] * shape->extents[j] ||
          shape->destination_strides[i] != shape->destination_strides[j] * shape->extents[j]) {
        continue;
      }
      shape->extents[j] *= shape->extents[i];
      return i;
    }
  }
  return std::nullopt;
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

Status StridedCopy::Make(const CudnnLibrary& library, DataType dtype, const CopyShape& shape,
                         std::unique_ptr<const StridedCopy>* copy) {
  CopyShape merged = shape;
  while (merged.extents.size() > kDescriptorRank) {
    const std::optional<size_t> needless = MergeOneDimension(&merged);
    if (!needless) break;
    EraseDimension(*needless, &merged);
  }
  Repetition repetition;
  if (merged.extents.size() > kDescriptorRank) {
    const auto step = [dtype](int64_t stride) {
      return stride * static_cast<int64_t>(SizeOf(dtype));
    };
    repetition = {merged.extents[0], step(merged.source_strides[0]),
                  step(merged.destination_strides[0])};
    EraseDimension(0, &merged);
  }
  TensorDescriptor source(nullptr, DestroyTensorDescriptor{&library});
  TensorDescriptor destination(nullptr, DestroyTensorDescriptor{&library});
  TF_INTEROP_RETURN_IF_ERROR(
      MakeTensorDescriptor(library, dtype, {merged.extents, merged.source_strides}, &source));
  TF_INTEROP_RETURN_IF_ERROR(MakeTensorDescriptor(
      library, dtype, {merged.extents, merged.destination_strides}, &destination));
  copy->reset(
      new StridedCopy(library, dtype, repetition, std::move(source), std::move(destination)));
  return Status::Ok();
}

StridedCopy::StridedCopy(const CudnnLibrary& library, DataType dtype, Repetition repetition,
                         TensorDescriptor source, TensorDescriptor destination)
    : library_(library),
      dtype_(dtype),
      repetition_(repetition),
      source_(std::move(source)),
      destination_(std::move(destination)) {}

Status StridedCopy::Enqueue(cudnnHandle_t handle, const void* source, void* destination) const {
  const ScalingFactor one(dtype_, 1);
  const ScalingFactor zero(dtype_, 0);
  for (int64_t i = 0; i < repetition_.count; ++i) {
    TF_INTEROP_RETURN_IF_ERROR(
        library_.Check(library_.cudnnTransformTensor(
                           handle, one.get(), source_.get(),
                           static_cast<const char*>(source) + i * repetition_.source_bytes,
                           zero.get(), destination_.get(),
                           static_cast<char*>(destination) + i * repetition_.destination_bytes),
                       "cudnnTransformTensor"));
  }
  return Status::Ok();
}

}  // namespace tf_interop
