// Copies of tensors that change the order or the place of elements, by cuDNN itself: transposes of
// filters and images.
#ifndef TF_INTEROP_CORE_CUDNN_STRIDED_COPY_H_
#define TF_INTEROP_CORE_CUDNN_STRIDED_COPY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"
#include "cc_kernels/core/cudnn/tensor_descriptor.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// What is copied: `extents` elements, from and to memory with these strides (in elements), of four
// dimensions, the batch first.
struct CopyShape {
  std::vector<int64_t> extents;
  std::vector<int64_t> source_strides;
  std::vector<int64_t> destination_strides;
};

// Whether source and destination hold the elements in the same order without gaps between them
// that differ, so that the copy is not needed.
bool IsIdentity(const CopyShape& shape);

// Immutable and thread-safe: descriptors are read only.
//
// cuDNN's documentation does not say that it copies tensors of five dimensions. Volumes are put as
// four: their pixels stay together.
class StridedCopy {
 public:
  // Returns kUnsupported for tensors that are too large for 32-bit indices.
  static Status Make(const CudnnLibrary& library, DataType dtype, const CopyShape& shape,
                     std::unique_ptr<const StridedCopy>* copy);

  // Enqueues the copy on the handle's stream. Source and destination must not overlap.
  Status Enqueue(cudnnHandle_t handle, const void* source, void* destination) const;

 private:
  StridedCopy(const CudnnLibrary& library, DataType dtype, TensorDescriptor source,
              TensorDescriptor destination);

  const CudnnLibrary& library_;
  const DataType dtype_;
  TensorDescriptor source_;
  TensorDescriptor destination_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_STRIDED_COPY_H_
