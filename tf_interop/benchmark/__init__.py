"""Compares programs with and without a plan, by turns, each in a process of its own."""
