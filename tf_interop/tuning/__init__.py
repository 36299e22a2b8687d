"""Finds faster ways to run a graph on this machine, by measuring whole steps."""
