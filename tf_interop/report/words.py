"""How reports call a figure, so that none is taken for more than it is."""

from __future__ import annotations

from tf_interop.plan.problem import FigureSource
from tf_interop.plan.types import GraphPlan, Plan

SIMULATED = "simulated"
"""The key of `Plan.made_with` that says how figures were made where nothing was measured."""

HOST = "host"
"""The backend that computes on a CPU, as in profiles and in `Plan.made_with`."""

COUNTED = "counted"
"""What memory is called: it follows from shapes and workspaces, and no device was asked."""

# From here on a time is read more easily in milliseconds.
_MILLISECOND_US = 1000


def is_simulated(plan: Plan) -> bool:
    """Whether what the plan calls measured was not."""
    return SIMULATED in plan.made_with


def figure_label(source: FigureSource, *, simulated: bool) -> str:
    """`measured`, `modelled` or, for what would be measured in a plan that is simulated, that."""
    if source is FigureSource.MEASURED and simulated:
        return SIMULATED
    return source.value


def total_labels(graph: GraphPlan, *, simulated: bool) -> tuple[str, ...]:
    """What the predicted total of a graph is the sum of: figures of one kind, both or none."""
    labels = {figure_label(FigureSource.MEASURED, simulated=simulated)} if graph.alone else set()
    labels |= {
        figure_label(stage.prediction.source, simulated=simulated)
        for stage in graph.stages
        if stage.prediction is not None
    }
    return tuple(sorted(labels))


def staged_count(graph: GraphPlan) -> int:
    """Convolutions in stages."""
    return sum(len(stage.convolutions) for stage in graph.stages)


def measured_count(graph: GraphPlan) -> int:
    """Convolutions that the predicted figures of a graph are of."""
    return staged_count(graph) + len(graph.alone)


def what_is_lacking(graph: GraphPlan, *, simulated: bool) -> str:
    """How few convolutions the figures of a graph are of; empty where they are of all."""
    known, total = measured_count(graph), graph.convolution_count
    if known >= total:
        return ""
    label = figure_label(FigureSource.MEASURED, simulated=simulated)
    return f"incomplete: {known} of {count_of(total, 'convolution')} {label}"


def is_of_host(plan: Plan) -> bool:
    """Whether the plan was made by times of the host backend, which computes on a CPU."""
    return plan.made_with.get("backend") == HOST


def microseconds(value: float, beside: float | None = None) -> str:
    """A time for reading, such as `130.0 µs`, `1.900 ms` or `12.35 ms`.

    Args:
        value: in microseconds.
        beside: the longest of the times that it is read beside, so that all have one unit.
    """
    longest = value if beside is None else max(value, beside)
    if longest < _MILLISECOND_US:
        return f"{value:.1f} µs"
    return f"{value / 1000:.{3 if longest < 10 * _MILLISECOND_US else 2}f} ms"


def unit_of(longest_us: float) -> tuple[str, float]:
    """The unit that `microseconds` says such times in, and how many microseconds it is."""
    return ("µs", 1.0) if longest_us < _MILLISECOND_US else ("ms", 1000.0)


def count_of(number: int, noun: str) -> str:
    """Such as `1 stage` and `2 stages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
