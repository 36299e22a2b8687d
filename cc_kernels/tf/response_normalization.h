// TensorFlow's LRN in less time.
//
// TensorFlow multiplies the squares of all channels with a matrix that has a band of ones, and
// calls a power for each value. Here a window of squares is added up, and the usual powers are
// square roots. The results differ in the last bits, because the sums have another order.
#ifndef TF_INTEROP_TF_RESPONSE_NORMALIZATION_H_
#define TF_INTEROP_TF_RESPONSE_NORMALIZATION_H_

#include <vector>

#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_interop {

// Gives float32 steps of the op LRN, if their `beta` is 0.5, 0.75 or 1, the op of this library.
void ReplaceResponseNormalizations(std::vector<tensorflow::NodeDef>* steps);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_RESPONSE_NORMALIZATION_H_
