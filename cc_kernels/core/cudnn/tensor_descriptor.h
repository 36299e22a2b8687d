// Descriptors of tensors, as the calls of cuDNN outside its backend API take them.
#ifndef TF_INTEROP_CORE_CUDNN_TENSOR_DESCRIPTOR_H_
#define TF_INTEROP_CORE_CUDNN_TENSOR_DESCRIPTOR_H_

#include <memory>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"
#include "cc_kernels/core/cudnn/tensor_geometry.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

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

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_TENSOR_DESCRIPTOR_H_
