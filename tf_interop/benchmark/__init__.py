"""Compares programs with and without a plan, in turns, each in a process of its own."""
