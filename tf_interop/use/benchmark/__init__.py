"""The command `benchmark`: stock TensorFlow, XLA and a plan by turns."""
