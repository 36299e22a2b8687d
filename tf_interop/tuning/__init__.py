"""Finds what is faster than stock TensorFlow on the machine at hand, by measuring whole steps."""
