#include "cc_kernels/tf/fused_ops.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "tensorflow/core/framework/node_def_util.h"

namespace tf_interop {

std::optional<FusedOps> ReadFusedOps(const tensorflow::NodeDef& node) {
  FusedOps fused;
  std::vector<std::string> ops;
  if (!tensorflow::TryGetNodeAttr(node, "fused_ops", &ops)) return fused;
  size_t i = 0;
  const auto skip = [&](absl::string_view op) {
    const bool is_next = i < ops.size() && ops[i] == op;
    i += is_next;
    return is_next;
  };
  fused.has_bias = skip("BiasAdd");
  fused.has_summand = skip("Add");
  for (const auto& [op, activation] : {std::pair("Relu", FusedActivation::kRelu),
                                       {"LeakyRelu", FusedActivation::kRelu},
                                       {"Relu6", FusedActivation::kRelu6},
                                       {"Elu", FusedActivation::kElu},
                                       {"_MklSwish", FusedActivation::kSwish},
                                       {"_FusedHardSwish", FusedActivation::kHardSwish}}) {
    if (!skip(op)) continue;
    fused.activation = activation;
    if (std::string(op) == "LeakyRelu") {
      tensorflow::TryGetNodeAttr(node, "leakyrelu_alpha", &fused.slope);
    }
    break;
  }
  if (!fused.has_bias || i != ops.size()) return std::nullopt;
  return fused;
}

}  // namespace tf_interop
