"""Which stages a graph gets that TensorFlow hands over."""
