"""Measuring: the compiled core, the device, and the order of measurements."""
