// Tensors of a convolution as cuDNN wants them: extents and strides, descriptors for the calls
// outside its backend API, and copies that change the order of elements.
#ifndef TF_INTEROP_CORE_CUDNN_TENSOR_H_
#define TF_INTEROP_CORE_CUDNN_TENSOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// A tensor of four dimensions or, of volumes, five. Extents and strides are in elements and in the
// order N, C, depth, H, W (K, C, depth, R, S for a filter), whatever the layout.
struct TensorGeometry {
  std::vector<int64_t> extents;
  std::vector<int64_t> strides;

  int64_t elements() const;
};

// Without gaps. `spatial` is H and W, or depth, H and W.
TensorGeometry PackedTensor(Layout layout, int64_t n, int64_t c,
                            const std::vector<int64_t>& spatial);

// Of depth, height and width the last as many as the convolution has: what cuDNN calls spatial.
std::vector<int64_t> SpatialOf(const Convolution& convolution, int64_t depth, int64_t height,
                               int64_t width);

TensorGeometry ImageGeometry(const Convolution& convolution);
TensorGeometry OutputGeometry(const Convolution& convolution);

// The filter that goes with the layout of the images: OHWI (KRSC) for NHWC, OIHW (KCRS) for NCHW.
// With groups, C is the number of channels per group, which is how cuDNN knows the groups.
TensorGeometry FilterGeometry(const Convolution& convolution);

// The bias, broadcast along everything but the channels.
TensorGeometry BiasGeometry(const Convolution& convolution);

cudnnDataType_t CudnnType(DataType dtype);

// What sums and activations are computed in, and stay in inside a graph: float, of double double.
cudnnDataType_t CudnnComputeType(DataType dtype);

// A scaling factor as cuDNN's calls read it, which is double beside tensors of double and float
// beside all others. Lives as long as its pointer is used.
class ScalingFactor {
 public:
  ScalingFactor(DataType dtype, double value)
      : is_double_(dtype == DataType::kDouble), float_(static_cast<float>(value)), double_(value) {}
  const void* get() const {
    return is_double_ ? static_cast<const void*>(&double_) : static_cast<const void*>(&float_);
  }

 private:
  bool is_double_;
  float float_;
  double double_;
};

struct DestroyTensorDescriptor {
  const CudnnLibrary* library;
  void operator()(cudnnTensorStruct* descriptor) const {
    // A failure to free is nothing that a caller could act on.
    (void)library->cudnnDestroyTensorDescriptor(descriptor);
  }
};

// Read only once it is made, so that threads may share it.
using TensorDescriptor = std::unique_ptr<cudnnTensorStruct, DestroyTensorDescriptor>;

// Returns kUnsupported for a tensor that is too large for 32-bit indices. `geometry` has at least
// four dimensions.
Status MakeTensorDescriptor(const CudnnLibrary& library, DataType dtype,
                            const TensorGeometry& geometry, TensorDescriptor* descriptor);

// What is copied: `extents` elements, from and to memory with these strides (in elements), of four
// dimensions, the batch first.
struct CopyShape {
  std::vector<int64_t> extents;
  std::vector<int64_t> source_strides;
  std::vector<int64_t> destination_strides;
};

// Whether source and destination hold the elements in the same order.
bool IsIdentity(const CopyShape& shape);

// Immutable and thread-safe. cuDNN's documentation does not say that it copies tensors of five
// dimensions, so volumes are put as four: their pixels stay together.
class StridedCopy {
 public:
  // Returns kUnsupported for tensors that are too large for 32-bit indices.
  static Status Make(const CudnnLibrary& library, DataType dtype, const CopyShape& shape,
                     std::shared_ptr<const StridedCopy>* copy);

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

#endif  // TF_INTEROP_CORE_CUDNN_TENSOR_H_
