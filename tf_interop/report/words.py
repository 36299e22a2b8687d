"""How reports call a value, so that none is taken for more than it is, and short names."""

from __future__ import annotations

import collections
from collections.abc import Iterable

from rich.filesize import decimal

from tf_interop.planning.problem import ValueSource
from tf_interop.planning.types import GraphPlan, Plan

SIMULATED = "simulated"
"""The key of `Plan.made_with` that says how values were made where nothing was measured."""

HOST = "host"
"""The backend that computes on a CPU, as in profiles and in `Plan.made_with`."""

# From here on a time is read more easily in milliseconds.
_MILLISECOND_US = 1000

# What TensorFlow puts before the names of a function that it inlined.
_CALLS = ("StatefulPartitionedCall", "PartitionedCall")
_GRADIENTS = {"BackpropFilter": " ∂w", "BackpropInput": " ∂x"}


def is_simulated(plan: Plan) -> bool:
    """Whether what the plan calls measured was not."""
    return SIMULATED in plan.made_with


def is_of_host(plan: Plan) -> bool:
    """Whether the plan was made by times of the host backend, which computes on a CPU."""
    return plan.made_with.get("backend") == HOST


def value_label(source: ValueSource, *, simulated: bool) -> str:
    """`measured`, `modelled` or, for what would be measured in a plan that is simulated, that."""
    return SIMULATED if simulated and source is ValueSource.MEASURED else source.value


def total_labels(graph: GraphPlan, *, simulated: bool) -> list[str]:
    """What the predicted total of a graph is the sum of: values of one kind, both or none."""
    sources = {each.prediction.source for each in graph.stages if each.prediction is not None}
    sources |= {ValueSource.MEASURED} if graph.unstaged else set()
    return sorted(value_label(each, simulated=simulated) for each in sources)


def staged_count(graph: GraphPlan) -> int:
    """Convolutions in stages."""
    return sum(len(stage.nodes) for stage in graph.stages)


def measured_count(graph: GraphPlan) -> int:
    """Convolutions that the predicted values of a graph are of."""
    return staged_count(graph) + len(graph.unstaged)


def what_is_lacking(graph: GraphPlan, *, simulated: bool) -> str:
    """How few convolutions the values of a graph are of; empty where they are of all."""
    total = graph.convolution_count
    if measured_count(graph) >= total:
        return ""
    label = value_label(ValueSource.MEASURED, simulated=simulated)
    return f"incomplete: {measured_count(graph)} of {count_of(total, 'convolution')} {label}"


def graph_titles(plan: Plan) -> list[str]:
    """What to call each graph: its batch size and mode, and what else tells it from the others."""
    titles = [
        ("any batch size" if graph.batch_size is None else f"batch {graph.batch_size}")
        + (f", {graph.mode}" if graph.mode else "")
        for graph in plan.graphs
    ]
    counts = collections.Counter(titles)
    return [
        title
        if counts[title] == 1
        else f"{title}, {count_of(graph.convolution_count, 'convolution')}"
        for title, graph in zip(titles, plan.graphs, strict=True)
    ]


def microseconds(value: float, beside: float = 0.0) -> str:
    """A time for reading, such as `130.0 µs`, `1.900 ms` or `12.35 ms`.

    Args:
        value: in microseconds.
        beside: the longest of the times that it is read beside, so that all have one unit.
    """
    longest = max(value, beside)
    if longest < _MILLISECOND_US:
        return f"{value:.1f} µs"
    return f"{value / 1000:.{3 if longest < 10 * _MILLISECOND_US else 2}f} ms"


def unit_of(longest_us: float) -> tuple[str, float]:
    """The unit that `microseconds` says such times in, and how many microseconds it is."""
    return ("µs", 1.0) if longest_us < _MILLISECOND_US else ("ms", 1000.0)


def size(value: float) -> str:
    """Bytes for reading, such as `3.1 MB`."""
    return decimal(int(value))


def count_of(number: int, noun: str) -> str:
    """Such as `1 stage` and `2 stages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """The part of each name that no other has, which is that of its layer.

    Gradients share it with what they are the gradient of, and say so: `stem`, `stem ∂w`.

    Returns:
        By name; the whole name where it has no such part.
    """
    gradient_of = {
        name: next((sign for op, sign in _GRADIENTS.items() if op in name.split("/")[-1]), "")
        for name in names
    }
    counts = collections.Counter(
        (gradient, part) for name, gradient in gradient_of.items() for part in set(name.split("/"))
    )
    short = {}
    for name, gradient in gradient_of.items():
        own = [part for part in name.split("/") if counts[gradient, part] == 1]
        # An op's name comes after its layer's.
        short[name] = own[0] + gradient if own else name
    return short


def has_scopes_of_functions(names: Iterable[str]) -> bool:
    """Whether one of the names begins with what TensorFlow puts before an inlined function's."""
    return any(name.startswith(_CALLS) for name in names)
