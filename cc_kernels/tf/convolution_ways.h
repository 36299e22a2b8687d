// Other ways for convolutions whose filters change from call to call, and for the gradients of
// their inputs and filters: Winograd's, and one matrix product for filters of one pixel.
#ifndef TF_INTEROP_TF_CONVOLUTION_WAYS_H_
#define TF_INTEROP_TF_CONVOLUTION_WAYS_H_

#include "cc_kernels/tf/other_way.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_interop {

// Null if `kernel` is none of oneDNN's for these.
OtherWayMaker FindConvolutionWays(const tensorflow::OpKernel& kernel);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_CONVOLUTION_WAYS_H_
