// Batch normalization in training, and its gradient, for any number of channels.
//
// oneDNN's kernels are slow if it is no multiple of 8 or 16.
#ifndef TF_INTEROP_TF_TRAINING_NORMALIZATION_H_
#define TF_INTEROP_TF_TRAINING_NORMALIZATION_H_

#include "cc_kernels/tf/other_way.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_interop {

// Null if `kernel` is neither of oneDNN's for these.
OtherWayMaker FindTrainingNormalization(const tensorflow::OpKernel& kernel);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_TRAINING_NORMALIZATION_H_
