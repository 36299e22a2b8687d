#include "cc_kernels/core/cudnn/strided_copy.h"

#include <utility>

namespace tf_interop {

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
  return library_.Check(library_.cudnnTransformTensor(handle, one.get(), source_.get(), source,
                                                      zero.get(), destination_.get(), destination),
                        "cudnnTransformTensor");
}

}  // namespace tf_interop
