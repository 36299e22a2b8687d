"""Plans how the layers of one graph are divided: costs, search, prediction."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from tf_interop.graph.time_limit import collection_pause
from tf_interop.parallel.costs.box_tables import Booleans
from tf_interop.parallel.costs.devices import DeviceGraph
from tf_interop.parallel.costs.local_devices import number_devices
from tf_interop.parallel.costs.part_tables import MeasuredParts
from tf_interop.parallel.costs.step import DivisionCosts, LayerCosts
from tf_interop.parallel.costs.tables import find_costs
from tf_interop.parallel.explain import WHOLE, baselines, explain_layers
from tf_interop.parallel.layers.find import LayerGraph
from tf_interop.parallel.layers.prepare import expand_layers
from tf_interop.parallel.lookup import batch_size_of_layers, keys_of_layers, structure_of_layers
from tf_interop.parallel.parted_graph import part_graph
from tf_interop.parallel.rules.normalization import FORWARD_OPS, GRADIENT_OPS
from tf_interop.parallel.types import (
    Degrees,
    DividedLayer,
    DivisionPrediction,
    GraphDivision,
    SentBytes,
    StrategyStep,
)
from tf_interop.planning.types import GraphMode, ValueSource

_LEAST_GAIN = 0.1
"""A gain below the model's error is none."""


def make_division(
    layers: LayerGraph,
    devices: DeviceGraph,
    *,
    mode: GraphMode | None = None,
    memory_limit: int | None = None,
    measured: MeasuredParts | None = None,
    step_s: float | None = None,
) -> GraphDivision:
    """Divides the layers of a graph for the shortest step in the model.

    Nothing is divided if the whole graph fits on one device and is about as fast there.

    Args:
        layers: the layers of the graph.
        devices: the devices to divide them over.
        mode: training or inference, if known.
        memory_limit: bytes that no device may exceed, in addition to its own limit.
        measured: measured times of convolutions.
        step_s: measured time of a step on the first device. Times of computing are scaled to it,
            because a device reaches its rates only in large operations.

    Raises:
        PlanError: no division fits in memory.
    """
    limits = _memory_limits(devices, memory_limit)
    with collection_pause():
        costs = find_expanded_costs(layers, devices, measured)
        if step_s is not None:
            costs = costs.scaled_to(step_s)
        found = costs.minimize(limits)
    strategies = baselines(layers, len(devices.devices))
    structure = structure_of_layers(layers)
    whole = costs.choice_of(strategies[WHOLE])
    whole_s, best_s = costs.seconds(whole), costs.seconds(found.choice)
    choice, why_whole = found.choice, ""
    if costs.fits(whole, limits) and best_s >= whole_s * (1 - _LEAST_GAIN):
        choice = whole
        why_whole = (
            f"nothing is faster in the model by {_LEAST_GAIN:.0%} than one device "
            f"({whole_s * 1e3:.3g} ms)"
        )
    divided = costs.division(choice)
    # As in the pass, so that the prediction counts the bytes that are really sent.
    expanded = expand_layers(layers, {name: each.degrees for name, each in divided.items()})
    _, device_of_node = number_devices(devices.names, expanded.view)
    parted = part_graph(expanded, divided, device_of_node)
    is_measured = devices.source is ValueSource.MEASURED and all(
        layer.are_measured[its] for layer, its in zip(costs.layers, choice, strict=True)
    )
    prediction = DivisionPrediction(
        step_us=costs.seconds(choice) * 1e6,
        whole_us=whole_s * 1e6,
        source=ValueSource.MEASURED if measured and is_measured else ValueSource.MODELLED,
        sent=tuple(SentBytes(*pair, count) for pair, count in parted.sent_bytes.items()),
        memory_bytes=costs.memory(choice),
        strategies=tuple(
            StrategyStep(name, costs.seconds(costs.choice_of(its)) * 1e6)
            for name, its in strategies.items()
        ),
        layers=explain_layers(costs, [layer.name for layer in layers.layers], choice, strategies),
        search=str(found),
    )
    return GraphDivision(
        structure.fingerprint,
        structure.landmarks,
        tuple(
            DividedLayer(key, layer.name, divided[layer.name].degrees, divided[layer.name].devices)
            for key, layer in zip(keys_of_layers(layers, structure), layers.layers, strict=True)
            if layer.name in divided
        ),
        batch_size=batch_size_of_layers(layers),
        mode=mode,
        prediction=prediction,
        why_whole=why_whole,
    )


def _memory_limits(devices: DeviceGraph, memory_limit: int | None) -> list[float] | None:
    """The bytes that each device may use; None if none is limited."""
    limits = [
        min(float("inf") if each is None else each for each in (device.memory_bytes, memory_limit))
        for device in devices.devices
    ]
    return None if min(limits) == float("inf") else limits


def find_expanded_costs(
    layers: LayerGraph, devices: DeviceGraph, measured: MeasuredParts | None = None
) -> DivisionCosts:
    """The costs of all configurations as the pass makes them.

    A batch normalization that would run whole is divided as elementary operations; any other keeps
    its own costs.
    """
    costs = _costs(layers, devices, measured)
    are_taken_apart = [
        _run_whole(layers, place, its.configurations) for place, its in enumerate(costs.layers)
    ]
    degrees_of = {
        its.name: its.configurations[int(np.argmax(which))]
        for its, which in zip(costs.layers, are_taken_apart, strict=True)
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
    return dataclasses.replace(costs, layers=tuple(of_layers), edges=edges)


def _costs(
    layers: LayerGraph, devices: DeviceGraph, measured: MeasuredParts | None
) -> DivisionCosts:
    _, device_of_node = number_devices(devices.names, layers.view)
    return find_costs(layers, devices, device_of_node, measured)


def _run_whole(layers: LayerGraph, place: int, configurations: Sequence[Degrees]) -> Booleans:
    """The configurations under which a normalization of a layer runs whole."""
    nodes = [
        node
        for node in layers.layers[place].nodes
        if layers.view.ops[node] in FORWARD_OPS | GRADIENT_OPS
    ]
    return np.array(
        [any(layers.parts(node, each) is None for node in nodes) for each in configurations]
    )


def _mixed(first: LayerCosts, second: LayerCosts, takes_second: Booleans) -> LayerCosts:
    """The costs of the first, with those of the second under some configurations."""
    fields = ("compute_s", "inner_s", "parameters_s", "copying_s", "are_measured")
    chosen = {
        name: np.where(takes_second, getattr(second, name), getattr(first, name)) for name in fields
    }
    memory = np.where(takes_second[:, None], second.memory, first.memory)
    return dataclasses.replace(first, memory=memory, **chosen)
