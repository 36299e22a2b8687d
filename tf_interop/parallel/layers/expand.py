"""Has batch normalizations divided whose statistics are of a batch or of images in parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tf_interop.graph.properties import GraphProperties, ShapeInference
from tf_interop.graph.view import GraphView
from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.layers.find import LayerGraph, find_layers
from tf_interop.parallel.layers.normalization import (
    FORWARD_OPS,
    GRADIENT_OPS,
    expand_normalization,
    find_normalizations,
)
from tf_interop.parallel.parted_graph import LayerDivision


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
    found = {view.index_of[name] for name in find_normalizations(view, properties)}
    whole = {
        node
        for node in found
        if layers.layer_of.get(node) in degrees_of
        and layers.parts(node, degrees_of[layers.layer_of[node]]) is None
    }
    names = [view.names[node] for node in sorted(whole) if _is_with_its_pair(view, whole, node)]
    if not names:
        return layers
    expanded = GraphView(expand_normalization(view, properties, names))
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


def _is_with_its_pair(view: GraphView, found: Collection[int], node: int) -> bool:
    """Whether a normalization and its gradient are both found, if it has one."""
    if view.ops[node] in FORWARD_OPS:
        readers = (each for each in view.fanouts[node] if view.ops[each] in GRADIENT_OPS)
        return all(reader in found for reader in readers)
    source, _ = view.fanins[node][3]
    return view.ops[source] not in FORWARD_OPS or source in found
