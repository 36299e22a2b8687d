// What TensorFlow's fused convolutions and matrix products do after the product.
#ifndef TF_INTEROP_TF_FUSED_OPS_H_
#define TF_INTEROP_TF_FUSED_OPS_H_

#include <optional>

#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_interop {

enum class FusedActivation { kNone, kRelu, kRelu6, kElu, kSwish, kHardSwish };

struct FusedOps {
  bool has_bias = false;
  bool has_summand = false;  // the last input, added after the bias
  FusedActivation activation = FusedActivation::kNone;
  float slope = 0;  // of kRelu for negative values
};

// Those of a node, none for one that is not fused; empty if others than the above are among them.
std::optional<FusedOps> ReadFusedOps(const tensorflow::NodeDef& node);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_FUSED_OPS_H_
