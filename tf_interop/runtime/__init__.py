"""Inside a running TensorFlow: the pass, the plugin, its switch and its status."""
