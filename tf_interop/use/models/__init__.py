"""Models as users name them, and the graphs that TensorFlow makes of them."""
