"""The layers of a graph."""
