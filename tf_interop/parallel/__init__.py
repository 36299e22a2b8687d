"""Divides layers over several devices: the planner, and the parts of its graph pass."""
