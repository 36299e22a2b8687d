// What the plugin needs of TensorFlow and its C API does not have: whether a device type has a
// graph plugin, how to register one without loading a library again (the C API takes one device
// type for each library), and an option of a graph. Nothing else of TensorFlow's inside is used.
#ifndef TF_INTEROP_PLUGIN_TENSORFLOW_REGISTRY_H_
#define TF_INTEROP_PLUGIN_TENSORFLOW_REGISTRY_H_

#include <string>

#include "absl/status/status.h"
#include "tensorflow/c/experimental/grappler/grappler.h"

namespace tf_interop {

using InitGraphFunction = void (*)(TP_OptimizerRegistrationParams*, TF_Status*);

bool HasGraphPlugin(const std::string& device_type);

// Ends the process where the device type has a plugin already: ask HasGraphPlugin first.
absl::Status RegisterGraphPlugin(InitGraphFunction init);

// False if TensorFlow will differentiate the graph when it runs, as TensorFlow 1 does with a
// function: then a graph may only hold ops with a gradient.
bool AllowsNonDifferentiableRewrites(const TF_GrapplerItem* item);

}  // namespace tf_interop

#endif  // TF_INTEROP_PLUGIN_TENSORFLOW_REGISTRY_H_
