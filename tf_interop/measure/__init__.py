"""Measuring: the compiled core, the device, and what of a list is measured when."""
