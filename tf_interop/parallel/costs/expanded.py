"""Costs of a graph in which batch normalizations are taken apart where that divides them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from tf_interop.parallel.costs.box_tables import Booleans
from tf_interop.parallel.costs.devices import DeviceGraph
from tf_interop.parallel.costs.measured_parts import MeasuredParts
from tf_interop.parallel.costs.tables import DivisionCosts, LayerCosts, find_costs
from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.device_names import number_devices
from tf_interop.parallel.layers.find import LayerGraph
from tf_interop.parallel.layers.normalization import FORWARD_OPS, GRADIENT_OPS
from tf_interop.parallel.layers.prepare import expand_layers


def find_expanded_costs(
    layers: LayerGraph, devices: DeviceGraph, measured: MeasuredParts | None = None
) -> DivisionCosts:
    """What all configurations of all layers cost, as the pass makes them.

    Where a normalization would run whole, it is divided as elementary operations; else it is as
    fast as it was.

    Args:
        layers: of the graph.
        devices: what they are divided over.
        measured: what was measured of parts of convolutions.
    """
    costs = _costs(layers, devices, measured)
    are_taken_apart = [
        _run_whole(layers, place, its.configurations) for place, its in enumerate(costs.layers)
    ]
    degrees_of = {
        place: costs.layers[place].configurations[int(np.argmax(which))]
        for place, which in enumerate(are_taken_apart)
        if which.any()
    }
    expanded = expand_layers(layers, degrees_of)
    if expanded is layers:
        return costs
    place_of = {layer.name: place for place, layer in enumerate(layers.layers)}
    other = _costs(expanded, devices, measured)
    numbers = [place_of[layer.name] for layer in expanded.layers]
    of_layers = list(costs.layers)
    for its, number in zip(other.layers, numbers, strict=True):
        of_layers[number] = _mixed(of_layers[number], its, are_taken_apart[number])
    edges = {}
    for (first, second), seconds in other.edges.items():
        pair = numbers[first], numbers[second]
        edges[min(pair), max(pair)] = seconds if pair[0] < pair[1] else seconds.T
    return DivisionCosts(tuple(of_layers), edges, costs.device_count)


def _costs(
    layers: LayerGraph, devices: DeviceGraph, measured: MeasuredParts | None
) -> DivisionCosts:
    _, device_of_node = number_devices(devices.names, layers.view)
    return find_costs(layers, devices, device_of_node, measured)


def _run_whole(layers: LayerGraph, place: int, configurations: Sequence[Degrees]) -> Booleans:
    """Under which configurations a normalization of a layer runs whole."""
    nodes = [
        node
        for node in layers.layers[place].nodes
        if layers.view.ops[node] in FORWARD_OPS | GRADIENT_OPS
    ]
    return np.array(
        [any(layers.parts(node, each) is None for node in nodes) for each in configurations]
    )


def _mixed(first: LayerCosts, second: LayerCosts, takes_second: Booleans) -> LayerCosts:
    """The costs of the first; of some configurations those of the second."""
    fields = ("compute_s", "inner_s", "parameters_s", "are_measured")
    chosen = {
        name: np.where(takes_second, getattr(second, name), getattr(first, name)) for name in fields
    }
    memory = np.where(takes_second[:, None], second.memory, first.memory)
    return dataclasses.replace(first, memory=memory, **chosen)
