// Batch normalization in training, and its gradient, for any number of channels.
//
// In a training step of RandWire, whose channels are no multiples of 8, oneDNN's kernels took 92 ms
// for 67 normalizations, and these take 28 for 98 (4 images, both cores' times together, AMD EPYC,
// 2026-11-29).
#ifndef TF_INTEROP_TF_TRAINING_NORMALIZATION_H_
#define TF_INTEROP_TF_TRAINING_NORMALIZATION_H_

#include "cc_kernels/tf/other_way.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_interop {

// Null if `kernel` is neither of oneDNN's for these.
OtherWayMaker FindTrainingNormalization(const tensorflow::OpKernel& kernel);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_TRAINING_NORMALIZATION_H_
