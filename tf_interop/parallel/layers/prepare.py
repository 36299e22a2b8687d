"""Makes a graph ready to be divided, and finds its layers."""

from __future__ import annotations

from collections.abc import Collection

from tensorflow.core.framework import graph_pb2

from tf_interop.graph.properties import GraphProperties, ShapeInference
from tf_interop.graph.view import GraphView
from tf_interop.parallel.layers.find import LayerGraph, find_layers
from tf_interop.parallel.layers.unfuse import unfuse


def prepare(
    graph_def: graph_pb2.GraphDef,
    infer: ShapeInference | None = None,
    nodes_to_preserve: Collection[str] = (),
) -> LayerGraph:
    """Takes fused operations apart, and finds layers.

    Args:
        graph_def: the graph that Grappler hands over; it is not changed.
        infer: shape inference, asked where attributes say too little.
        nodes_to_preserve: names that have to stay.

    Returns:
        The layers of a graph that computes the same as `graph_def`.

    Raises:
        GraphError: the graph is not well-formed.
    """
    view = GraphView(graph_def)
    view = GraphView(unfuse(view, GraphProperties(view, infer)))
    return find_layers(view, GraphProperties(view, infer), nodes_to_preserve)
