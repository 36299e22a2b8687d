// The gradient of a depthwise convolution's filter, with sums that stay in registers.
//
// oneDNN's kernel for it takes a third of a training step of NASNetMobile.
#ifndef TF_INTEROP_TF_DEPTHWISE_FILTER_GRADIENT_H_
#define TF_INTEROP_TF_DEPTHWISE_FILTER_GRADIENT_H_

#include "cc_kernels/tf/other_way.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_interop {

// Null if `kernel` is not oneDNN's for this gradient.
OtherWayMaker FindDepthwiseFilterGradient(const tensorflow::OpKernel& kernel);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_DEPTHWISE_FILTER_GRADIENT_H_
