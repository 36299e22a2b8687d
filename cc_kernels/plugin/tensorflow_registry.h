// The parts of TensorFlow's internals that the plugin needs because the C API lacks them. The C API
// registers only one device type for each library that it loads.
#ifndef TF_INTEROP_PLUGIN_TENSORFLOW_REGISTRY_H_
#define TF_INTEROP_PLUGIN_TENSORFLOW_REGISTRY_H_

#include <string>

#include "absl/status/status.h"
#include "tensorflow/c/experimental/grappler/grappler.h"

namespace tf_interop {

using InitGraphFunction = void (*)(TP_OptimizerRegistrationParams*, TF_Status*);

bool HasGraphPlugin(const std::string& device_type);

// Ends the process if the device type already has a plugin: call HasGraphPlugin first.
absl::Status RegisterGraphPlugin(InitGraphFunction init);

// False if TensorFlow will differentiate the graph when it runs, as TensorFlow 1 does with a
// function. Such a graph may contain only ops that have gradients.
bool AllowsNonDifferentiableRewrites(const TF_GrapplerItem* item);

// The name of the function whose graph it is; in a Session, any other text.
std::string FunctionOf(const TF_GrapplerItem* item);

}  // namespace tf_interop

#endif  // TF_INTEROP_PLUGIN_TENSORFLOW_REGISTRY_H_
