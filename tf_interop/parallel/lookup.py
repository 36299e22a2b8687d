"""Finds a graph's division in a parallel plan, whatever its trace named the nodes."""

from __future__ import annotations

import collections
import hashlib
import json

from tf_interop.convolution import canonical_names
from tf_interop.errors import PlanError
from tf_interop.graph.ops import CONVOLUTION_KINDS
from tf_interop.parallel.layers.find import LayerGraph
from tf_interop.parallel.layers.heads import HEAD_OPS
from tf_interop.parallel.parted_graph import LayerDivision
from tf_interop.parallel.types import Axis, GraphDivision, ParallelPlan


def names_of_layers(graph: LayerGraph) -> list[str]:
    """The canonical name of each layer."""
    names = canonical_names(layer.name for layer in graph.layers)
    return [names[layer.name] for layer in graph.layers]


def batch_size_of_layers(graph: LayerGraph) -> int | None:
    """The batch size of most convolutions, or else of most layers; None if there is no layer.

    A matrix product may have several rows for each sample, such as one for each token.
    """
    convolutions = [layer for layer in graph.layers if layer.op in CONVOLUTION_KINDS]
    layers = convolutions or graph.layers
    sizes = collections.Counter(layer.extents[Axis.SAMPLE] for layer in layers)
    return sizes.most_common(1)[0][0] if sizes else None


def fingerprint_layers(graph: LayerGraph) -> str:
    """Identifies the layers of a graph, whatever its batch size, by 16 hexadecimal digits.

    The digits depend on the canonical names of the convolutions and matrix products that layers
    begin with, and on the sizes of their axes, but not on losses, metrics or optimizers.
    """
    rows = sorted(
        (name, [layer.extents[axis] for axis in Axis if axis is not Axis.SAMPLE])
        for name, layer in zip(names_of_layers(graph), graph.layers, strict=True)
        if layer.op in HEAD_OPS
    )
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


def find_division(plan: ParallelPlan, graph: LayerGraph) -> GraphDivision:
    """Finds a plan's entry for a graph.

    Raises:
        PlanError: the plan has no entry for this graph, or none for its batch size.
    """
    fingerprint, batch_size = fingerprint_layers(graph), batch_size_of_layers(graph)
    entries = [each for each in plan.graphs if each.fingerprint == fingerprint]
    for entry in entries:
        if entry.batch_size in (None, batch_size):
            return entry
    if entries:
        known = ", ".join(str(each.batch_size) for each in entries)
        raise PlanError(
            f"The parallel plan is for batch size {known}, but the graph has {batch_size}. Make a "
            "plan for the program's batch size with tf-interop parallelize."
        )
    count = sum(layer.op in HEAD_OPS for layer in graph.layers)
    model = plan.made_with.get("model")
    made_for = f"'{model}'" if model else "another graph"
    raise PlanError(
        f"The parallel plan is for {made_for}, not for this graph with {count} convolutions and "
        "matrix products in layers. Make a plan with tf-interop parallelize, with the same mode "
        "and image size."
    )


def divided_layers(division: GraphDivision, graph: LayerGraph) -> dict[str, LayerDivision]:
    """The divided layers of a graph, by name.

    Raises:
        PlanError: the graph lacks a layer of the plan, or an axis has fewer values than parts.
    """
    by_name = dict(zip(names_of_layers(graph), graph.layers, strict=True))
    found: dict[str, LayerDivision] = {}
    for layer in division.layers:
        its = by_name.get(layer.name)
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
