// TensorFlow includes this header but does not install it. Nothing in it is needed.
