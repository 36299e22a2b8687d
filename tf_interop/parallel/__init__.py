"""Layers over several devices: a planner of its own, and the parts of its graph pass."""
