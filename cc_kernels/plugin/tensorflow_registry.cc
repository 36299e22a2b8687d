#include "cc_kernels/plugin/tensorflow_registry.h"

#include "tensorflow/core/grappler/grappler_item.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer_registry.h"

namespace tensorflow::grappler {
// Defined in tensorflow/c/experimental/grappler/grappler.cc and exported. TensorFlow does not
// install its header.
absl::Status InitGraphPlugin(void (*init)(TP_OptimizerRegistrationParams*, TF_Status*));
}  // namespace tensorflow::grappler

namespace tf_interop {

bool HasGraphPlugin(const std::string& device_type) {
  return !tensorflow::grappler::PluginGraphOptimizerRegistry::CreateOptimizers({device_type})
              .empty();
}

absl::Status RegisterGraphPlugin(InitGraphFunction init) {
  return tensorflow::grappler::InitGraphPlugin(init);
}

namespace {

const tensorflow::grappler::GrapplerItem& ItemOf(const TF_GrapplerItem* item) {
  // tensorflow/c/experimental/grappler/grappler.cc casts items like this too.
  return *reinterpret_cast<const tensorflow::grappler::GrapplerItem*>(item);
}

}  // namespace

bool AllowsNonDifferentiableRewrites(const TF_GrapplerItem* item) {
  return ItemOf(item).optimization_options().allow_non_differentiable_rewrites;
}

std::string FunctionOf(const TF_GrapplerItem* item) { return ItemOf(item).id; }

}  // namespace tf_interop
