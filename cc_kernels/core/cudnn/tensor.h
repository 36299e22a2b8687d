// The tensors of a convolution as cuDNN wants them: extents and strides, descriptors for calls
// outside its backend API, and copies that reorder elements.
#ifndef TF_INTEROP_CORE_CUDNN_TENSOR_H_
#define TF_INTEROP_CORE_CUDNN_TENSOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Extents and strides in elements, in the order N, C, depth, H, W (K, C, depth, R, S for a filter)
// whatever the layout. Only volumes have a depth.
struct TensorGeometry {
  std::vector<int64_t> extents;
  std::vector<int64_t> strides;
};

// A tensor without gaps. `spatial` is H and W, or depth, H and W.
TensorGeometry PackedTensor(Layout layout, int64_t n, int64_t c,
                            const std::vector<int64_t>& spatial);

// The values of the convolution's spatial dimensions; the depth only for volumes.
std::vector<int64_t> SpatialOf(const Convolution& convolution, int64_t depth, int64_t height,
                               int64_t width);

TensorGeometry ImageGeometry(const Convolution& convolution);
TensorGeometry OutputGeometry(const Convolution& convolution);

// OHWI (KRSC) for images in NHWC, OIHW (KCRS) for NCHW. C is the number of channels per group,
// which tells cuDNN the number of groups.
TensorGeometry FilterGeometry(const Convolution& convolution);

// The bias is broadcast along everything but the channels.
TensorGeometry BiasGeometry(const Convolution& convolution);

cudnnDataType_t CudnnType(DataType dtype);

// The type of sums and activations inside a graph: double for double, else float.
cudnnDataType_t CudnnComputeType(DataType dtype);

// A factor of 0 or 1 as cuDNN's calls read it: a double for tensors of doubles, else a float.
const void* ScalingFactor(DataType dtype, int value);

// Threads may share it: once made, it is only read.
using TensorDescriptor = std::shared_ptr<cudnnTensorStruct>;

// Returns kUnsupported for a tensor that is too large for 32-bit indices. `geometry` has at least
// four dimensions.
Status MakeTensorDescriptor(const CudnnLibrary& library, DataType dtype,
                            const TensorGeometry& geometry, TensorDescriptor* descriptor);

// A copy of `extents` elements between memory with these strides, in elements. There are four
// dimensions and the batch is the first: cuDNN does not document copies of five, so the pixels of
// a volume are one dimension.
struct CopyShape {
  std::vector<int64_t> extents;
  std::vector<int64_t> source_strides;
  std::vector<int64_t> destination_strides;
};

// Whether source and destination have their elements in the same order.
bool IsIdentity(const CopyShape& shape);

// Enqueues a copy on the handle's stream. Source and destination must not overlap. Thread-safe.
using StridedCopy = std::function<Status(cudnnHandle_t, const void* source, void* destination)>;

// Returns kUnsupported for tensors that are too large for 32-bit indices.
Status MakeStridedCopy(const CudnnLibrary& library, DataType dtype, const CopyShape& shape,
                       StridedCopy* copy);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_TENSOR_H_
