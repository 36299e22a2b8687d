"""What is installed here: the compiled libraries, TensorFlow, Keras and the device."""
