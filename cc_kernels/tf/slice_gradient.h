// The gradient of a slice: zeros around a copy.
//
// TensorFlow's kernel takes 10 ms for each of the four of a training step of NASNetMobile, and this
// less than 1 (4 images, AMD EPYC, 2026-11-29).
#ifndef TF_INTEROP_TF_SLICE_GRADIENT_H_
#define TF_INTEROP_TF_SLICE_GRADIENT_H_

#include "cc_kernels/tf/other_way.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_interop {

// Null if `kernel` is not StridedSliceGrad of float32, or makes or removes axes.
OtherWayMaker FindSliceGradient(const tensorflow::OpKernel& kernel);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_SLICE_GRADIENT_H_
