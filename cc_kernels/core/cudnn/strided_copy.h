// Copies of tensors that change the order or the place of elements, by cuDNN itself: transposes of
// filters and images, and the interior of padded images.
#ifndef TF_INTEROP_CORE_CUDNN_STRIDED_COPY_H_
#define TF_INTEROP_CORE_CUDNN_STRIDED_COPY_H_

#include <array>
#include <cstdint>
#include <memory>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"
#include "cc_kernels/core/cudnn/tensor_descriptor.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// What is copied: `extents` elements, from and to memory with these strides (in elements).
struct CopyShape {
  std::array<int64_t, 4> extents = {1, 1, 1, 1};
  std::array<int64_t, 4> source_strides = {1, 1, 1, 1};
  std::array<int64_t, 4> destination_strides = {1, 1, 1, 1};
};

// Whether source and destination hold the elements in the same order without gaps between them
// that differ, so that the copy is not needed.
bool IsIdentity(const CopyShape& shape);

// Immutable and thread-safe: descriptors are read only.
class StridedCopy {
 public:
  // Returns kUnsupported for tensors that are too large for 32-bit indices.
  static Status Make(const CudnnLibrary& library, DataType dtype, const CopyShape& shape,
                     std::unique_ptr<const StridedCopy>* copy);

  // Enqueues the copy on the handle's stream. Source and destination must not overlap.
  Status Enqueue(cudnnHandle_t handle, const void* source, void* destination) const;

 private:
  StridedCopy(const CudnnLibrary& library, TensorDescriptor source, TensorDescriptor destination);

  const CudnnLibrary& library_;
  TensorDescriptor source_;
  TensorDescriptor destination_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_STRIDED_COPY_H_
