"""A graph of TensorFlow: reading it, finding its convolutions, rewriting it, checking it."""
