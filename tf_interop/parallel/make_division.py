"""Plans how the layers of one graph are divided: costs, search, and what to expect."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tf_interop.graph.time_limit import collection_pause
from tf_interop.parallel.baselines import WHOLE, baselines
from tf_interop.parallel.costs.devices import DeviceGraph
from tf_interop.parallel.costs.expanded import find_expanded_costs
from tf_interop.parallel.costs.measured_parts import MeasuredParts
from tf_interop.parallel.device_names import number_devices
from tf_interop.parallel.explain import LayerExplanation, explain_layers
from tf_interop.parallel.layers.find import LayerGraph
from tf_interop.parallel.layers.prepare import expand_division
from tf_interop.parallel.lookup import batch_size_of_layers, fingerprint_layers, names_of_layers
from tf_interop.parallel.parted_graph import part_graph
from tf_interop.parallel.search.minimize import minimize
from tf_interop.parallel.types import (
    DividedLayer,
    DivisionPrediction,
    GraphDivision,
    SentBytes,
)
from tf_interop.planning.problem import ValueSource
from tf_interop.planning.types import GraphMode

PLAN = "plan"
_LEAST_GAIN = 1e-6


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedDivision:
    """A division of a graph, and what it was chosen by.

    Attributes:
        division: the entry of the plan.
        step_us: a step by the plan and under each strategy, by name.
        layers: why each layer is divided as it is.
        search: how far the search got, for reading.
    """

    division: GraphDivision
    step_us: Mapping[str, float]
    layers: tuple[LayerExplanation, ...]
    search: str


def make_division(
    layers: LayerGraph,
    devices: DeviceGraph,
    *,
    mode: GraphMode | None = None,
    memory_limit: int | None = None,
    measured: MeasuredParts | None = None,
) -> PlannedDivision:
    """Divides the layers of a graph so that a step is the shortest in the model.

    Where nothing is shorter than the whole graph on its device, and that fits, nothing is divided.

    Args:
        layers: of the graph.
        devices: what to divide over.
        mode: what the graph computes of its model.
        memory_limit: bytes that no device may exceed, beside what the devices have.
        measured: what was measured of convolutions.

    Raises:
        PlanError: no division fits into the memory.
    """
    limits = _memory_limits(devices, memory_limit)
    with collection_pause:
        costs = find_expanded_costs(layers, devices, measured)
        found = minimize(costs.problem(limits))
    strategies = baselines(layers, len(devices.devices))
    names = names_of_layers(layers)
    whole = costs.choice_of(strategies[WHOLE])
    whole_s, best_s = costs.seconds(whole), costs.seconds(found.choice)
    choice, why_whole = found.choice, ""
    fits = limits is None or all(
        need <= limit for need, limit in zip(costs.memory(whole), limits, strict=True)
    )
    if fits and best_s >= whole_s * (1 - _LEAST_GAIN):
        choice = whole
        why_whole = f"nothing is faster in the model than one device ({whole_s * 1e3:.3g} ms)"
    divided = costs.division(choice)
    # As the pass does, so that the bytes are those that are sent.
    expanded, division = expand_division(layers, divided)
    _, device_of_node = number_devices(devices.names, expanded.view)
    parted = part_graph(expanded, division, device_of_node)
    is_measured = devices.source is ValueSource.MEASURED and all(
        layer.are_measured[its] for layer, its in zip(costs.layers, choice, strict=True)
    )
    prediction = DivisionPrediction(
        step_us=costs.seconds(choice) * 1e6,
        whole_us=whole_s * 1e6,
        source=ValueSource.MEASURED if measured and is_measured else ValueSource.MODELLED,
        sent=tuple(SentBytes(*pair, count) for pair, count in parted.sent_bytes.items()),
        memory_bytes=costs.memory(choice),
    )
    entry = GraphDivision(
        fingerprint_layers(layers),
        tuple(
            DividedLayer(names[place], its.degrees, its.devices) for place, its in divided.items()
        ),
        batch_size=batch_size_of_layers(layers),
        mode=mode,
        prediction=prediction,
        why_whole=why_whole,
    )
    choices = {PLAN: choice} | {name: costs.choice_of(its) for name, its in strategies.items()}
    return PlannedDivision(
        entry,
        {name: costs.seconds(its) * 1e6 for name, its in choices.items()},
        explain_layers(costs, names, choice, strategies),
        str(found),
    )


def _memory_limits(devices: DeviceGraph, memory_limit: int | None) -> list[float] | None:
    """The bytes that each device may use; None where none is limited."""
    limits = [
        min(
            float("inf") if device.memory_bytes is None else device.memory_bytes,
            float("inf") if memory_limit is None else memory_limit,
        )
        for device in devices.devices
    ]
    return None if min(limits) == float("inf") else limits
