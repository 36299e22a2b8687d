"""The configurations of all layers that cost least together."""
