"""Layer by layer over several devices: a planner beside the one of stages, and its graph pass."""
