"""The layers of a graph, and what is done to the graph before they are found."""
