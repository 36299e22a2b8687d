"""Finds a graph's division in a parallel plan, whatever its trace named the nodes."""

from __future__ import annotations

import collections

from tf_interop.errors import PlanError
from tf_interop.graph.landmarks import find_reads
from tf_interop.graph.ops import CONVOLUTION_KINDS, attribute_of
from tf_interop.parallel.layers.find import Layer, LayerGraph
from tf_interop.parallel.layers.heads import HEAD_OPS
from tf_interop.parallel.parted_graph import LayerDivision
from tf_interop.parallel.types import Axis, GraphDivision, ParallelPlan
from tf_interop.structure import (
    Part,
    Structure,
    describe_difference,
    likeness,
    origins_of,
    structure_of,
)


def batch_size_of_layers(graph: LayerGraph) -> int | None:
    """The batch size of most convolutions, or else of most layers; None if there is no layer.

    A matrix product may have several rows for each sample, such as one for each token.
    """
    convolutions = [layer for layer in graph.layers if layer.op in CONVOLUTION_KINDS]
    layers = convolutions or graph.layers
    sizes = collections.Counter(layer.extents[Axis.SAMPLE] for layer in layers)
    return sizes.most_common(1)[0][0] if sizes else None


def structure_of_layers(graph: LayerGraph) -> Structure:
    """The structure of a graph, by the layers that begin with a convolution or a matrix product.

    It does not depend on the batch size, losses, metrics or optimizers.
    """
    heads = [layer for layer in graph.layers if layer.op in HEAD_OPS]
    firsts = [graph.view.index_of[layer.name] for layer in heads]
    reads = find_reads(graph.view, {index: number for number, index in enumerate(firsts)}, firsts)
    return structure_of(
        [
            Part(layer.name, _form(graph, layer), tuple(its))
            for layer, its in zip(heads, reads, strict=True)
        ]
    )


def keys_of_layers(graph: LayerGraph, structure: Structure) -> list[str]:
    """For each layer a key that it has in every graph of the same network.

    A landmark has its place. Another layer is known by its operation, its sizes and the layers that
    it computes from.
    """
    place_of = {name: place for place, name in enumerate(structure.names)}
    firsts = [graph.view.index_of[layer.name] for layer in graph.layers]
    reads = find_reads(graph.view, graph.layer_of, firsts)
    parts = [
        Part(layer.name, str(place_of[layer.name]), ())
        if layer.name in place_of
        else Part(layer.name, _form(graph, layer), tuple(its))
        for layer, its in zip(graph.layers, reads, strict=True)
    ]
    seen: collections.Counter[str] = collections.Counter()
    keys = []
    for part, origin in zip(parts, origins_of(parts), strict=True):
        key = part.form if part.name in place_of else origin
        seen[key] += 1
        keys.append(key if seen[key] == 1 else f"{key} {seen[key]}")
    return keys


def _form(graph: LayerGraph, layer: Layer) -> str:
    """The operation, attributes and sizes of a layer's first node."""
    node = graph.view.nodes[graph.view.index_of[layer.name]]
    words = [layer.op]
    words += [f"{axis.value} {layer.extents[axis]}" for axis in Axis if axis is not Axis.SAMPLE]
    if layer.op in CONVOLUTION_KINDS:
        filter_shape = graph.operations[graph.view.index_of[layer.name]].input_shapes[1]
        words.append(f"filter {'x'.join(map(str, filter_shape))}")
    for name in ("strides", "dilations", "ksize"):
        if sizes := attribute_of(node, name).list.i:
            words.append(f"{name} {'x'.join(map(str, sizes))}")
    words += [
        text for name in ("padding", "data_format") if (text := attribute_of(node, name).s.decode())
    ]
    return " ".join(words)


def find_division(plan: ParallelPlan, graph: LayerGraph, structure: Structure) -> GraphDivision:
    """Finds a plan's entry for a graph.

    Raises:
        PlanError: the plan has no entry for this graph, or none for its batch size.
    """
    batch_size = batch_size_of_layers(graph)
    entries = [each for each in plan.graphs if each.fingerprint == structure.fingerprint]
    for entry in entries:
        if entry.batch_size in (None, batch_size):
            return entry
    if entries:
        known = ", ".join(str(each.batch_size) for each in entries)
        raise PlanError(
            f"The parallel plan is for batch size {known}, but the graph has {batch_size}. Unless "
            "that is a smaller last batch, make a plan for it with tf-interop parallelize."
        )
    model = plan.made_with.get("model")
    made_for = f" for '{model}'" if model else ""
    if not plan.graphs:
        raise PlanError(f"The parallel plan{made_for} contains no graph. Make it again.")
    closest = max(plan.graphs, key=lambda each: likeness(each.landmarks, structure.landmarks))
    difference = describe_difference(closest.landmarks, structure.landmarks, "layers")
    raise PlanError(
        f"The parallel plan{made_for} is for another network: {difference}. Make a plan with "
        "tf-interop parallelize, with the same mode and image size."
    )


def divided_layers(
    division: GraphDivision, graph: LayerGraph, structure: Structure
) -> dict[str, LayerDivision]:
    """The divided layers of a graph, by name.

    Raises:
        PlanError: the graph lacks a layer of the plan, or an axis has fewer values than parts.
    """
    by_key = dict(zip(keys_of_layers(graph, structure), graph.layers, strict=True))
    found: dict[str, LayerDivision] = {}
    for layer in division.layers:
        its = by_key.get(layer.key)
        if its is None:
            raise PlanError(
                f"The graph has no layer '{layer.name}', which the parallel plan divides. Make the "
                "plan again with tf-interop parallelize."
            )
        too_many = [
            f"{count} parts of a {axis.value} of {its.extents[axis]}"
            for axis, count in layer.degrees.by_axis.items()
            if count > its.extents[axis]
        ]
        if too_many:
            raise PlanError(
                f"The layer '{layer.name}' has fewer values than parts: {', '.join(too_many)}. "
                "Make the plan again with tf-interop parallelize."
            )
        found[its.name] = LayerDivision(layer.degrees, layer.devices)
    return found
