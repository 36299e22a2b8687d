"""Makes a graph ready to be divided, and finds its layers.

Fused operations are taken apart, so that what follows a convolution is divided like it. Batch
normalizations are replaced where they would run whole: where their statistics are of a batch or of
images in parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tensorflow.core.framework import graph_pb2

from tf_interop.graph.properties import GraphProperties, ShapeInference
from tf_interop.graph.view import GraphView
from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.layers.find import LayerGraph, find_layers
from tf_interop.parallel.layers.normalization import (
    expand_normalization,
    find_normalizations,
    is_with_its_pair,
)
from tf_interop.parallel.layers.unfuse import unfuse
from tf_interop.parallel.parted_graph import LayerDivision


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


def expand_layers(
    layers: LayerGraph,
    degrees_of: Mapping[int, Degrees],
    infer: ShapeInference | None = None,
    nodes_to_preserve: Collection[str] = (),
) -> LayerGraph:
    """Replaces batch normalizations that would run whole by elementary operations.

    Args:
        layers: of a graph, which is not changed.
        degrees_of: how layers are divided, by their places.
        infer: shape inference, asked where attributes say too little.
        nodes_to_preserve: names that have to stay.

    Returns:
        The layers of a graph that computes the same, with the same names; `layers` itself where
        there is nothing to replace.
    """
    view = layers.view
    properties = GraphProperties(view, infer)
    whole = {
        node
        for node in find_normalizations(view, properties)
        if layers.layer_of.get(node) in degrees_of
        and layers.parts(node, degrees_of[layers.layer_of[node]]) is None
    }
    nodes = [node for node in whole if is_with_its_pair(view, whole, node)]
    if not nodes:
        return layers
    expanded = GraphView(expand_normalization(view, properties, nodes))
    return find_layers(expanded, GraphProperties(expanded, infer), nodes_to_preserve)


def expand_division(
    layers: LayerGraph,
    division: Mapping[int, LayerDivision],
    infer: ShapeInference | None = None,
    nodes_to_preserve: Collection[str] = (),
) -> tuple[LayerGraph, dict[int, LayerDivision]]:
    """The layers of a graph as they are divided, and their division by the places that they have.

    The arguments are those of `expand_layers`.
    """
    degrees_of = {place: each.degrees for place, each in division.items()}
    expanded = expand_layers(layers, degrees_of, infer, nodes_to_preserve)
    place_of = {layer.name: place for place, layer in enumerate(expanded.layers)}
    return expanded, {place_of[layers.layers[place].name]: each for place, each in division.items()}
