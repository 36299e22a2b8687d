"""Which convolutions share a stage, as a search over the states of a graph."""
