// Who can write into a tensor's memory.
#ifndef TF_INTEROP_TF_OWN_MEMORY_H_
#define TF_INTEROP_TF_OWN_MEMORY_H_

#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {

// Whether only TensorFlow can write into a tensor's memory.
//
// Memory from DLPack has other writers, and so has a NumPy array that a program fed to a Session
// or gave to a raw op. An array that nothing but the tensor refers to has none: TensorFlow copies
// the arrays that a program assigns, and makes tensors of its copies.
bool IsTensorFlowsOwn(const tensorflow::Tensor& tensor);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_OWN_MEMORY_H_
