// The two things that the plugin needs of TensorFlow and that are not in its C API: asking whether
// a device type has a graph plugin, and registering one without loading a library again (the C
// API takes one device type for each library). Nothing else of TensorFlow's inside is used.
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

}  // namespace tf_interop

#endif  // TF_INTEROP_PLUGIN_TENSORFLOW_REGISTRY_H_
