"""What a report shows of each graph of a plan: for page, trace and terminal alike."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Sequence

from rich.filesize import decimal

from tf_interop.planning.problem import ValueSource
from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.report.network import Network, NetworkNode
from tf_interop.report.timeline import Timeline, timelines_of

SIMULATED = "simulated"
"""The key of `Plan.made_with` that says how values were made where nothing was measured."""

# From here on a time is read more easily in milliseconds.
_MILLISECOND_US = 1000


# Without slots: timelines are kept in the instance.
@dataclasses.dataclass(frozen=True)
class ShownGraph:
    """An entry of a plan, with what else a report shows of it.

    Attributes:
        title: what tells the graph from the others of the plan.
        planned: what the plan says of it.
        measured: what values are called that the plan calls measured.
        network: what depends on what; None where that is not known.
    """

    title: str
    planned: GraphPlan
    measured: str
    network: Network | None = None

    @property
    def convolutions(self) -> str:
        """How many there are."""
        return count_of(self.planned.convolution_count, "convolution")

    @property
    def staged_count(self) -> int:
        """Convolutions in stages."""
        return sum(len(stage.nodes) for stage in self.planned.stages)

    @property
    def measured_count(self) -> int:
        """Convolutions that the predicted values are of."""
        return self.staged_count + len(self.planned.unstaged)

    @property
    def lacking(self) -> str:
        """How few convolutions the values are of; empty where they are of all."""
        if self.measured_count >= self.planned.convolution_count:
            return ""
        return f"incomplete: {self.measured_count} of {self.convolutions} {self.measured}"

    @functools.cached_property
    def timelines(self) -> tuple[Timeline, ...]:
        """When what runs; none where no planner made the stages."""
        return timelines_of(self.planned, self.label)

    @functools.cached_property
    def nodes(self) -> dict[str, NetworkNode]:
        """What is known of its convolutions or units, by name."""
        return {} if self.network is None else {node.name: node for node in self.network.nodes}

    @property
    def stage_numbers(self) -> dict[str, int]:
        """The stage of each convolution that is in one."""
        stages = enumerate(self.planned.stages)
        return {name: number for number, each in stages for name in each.nodes}

    @property
    def first_stage(self) -> int:
        """The number of the stage to show first: that which saves most, else the widest."""

        def promise(number: int) -> tuple[float, int, int]:
            planned = self.planned.stages[number]
            prediction = planned.prediction
            saved_us = prediction.sequential_us - prediction.latency_us if prediction else 0.0
            return saved_us, len(planned.nodes), -number

        return max(range(len(self.planned.stages)), key=promise, default=0)

    def label(self, source: ValueSource) -> str:
        """What a value is called, so that none is taken for more than it is."""
        return self.measured if source is ValueSource.MEASURED else source.value


def shown_graphs(plan: Plan, networks: Sequence[Network | None] = ()) -> list[ShownGraph]:
    """What to show of each graph of a plan.

    Args:
        plan: any plan.
        networks: what depends on what, for each graph, as far as that is known.
    """
    measured = SIMULATED if SIMULATED in plan.made_with else ValueSource.MEASURED.value
    titles = [
        ("any batch size" if graph.batch_size is None else f"batch {graph.batch_size}")
        + (f", {graph.mode}" if graph.mode else "")
        for graph in plan.graphs
    ]
    counts = collections.Counter(titles)
    shown = []
    for number, (graph, title) in enumerate(zip(plan.graphs, titles, strict=True)):
        if counts[title] > 1:
            title += f", {count_of(graph.convolution_count, 'convolution')}"
        shown.append(ShownGraph(title, graph, measured, networks[number] if networks else None))
    return shown


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


def size(value: float) -> str:
    """Bytes for reading, such as `3.1 MB`."""
    return decimal(int(value))


def count_of(number: int, noun: str) -> str:
    """Such as `1 stage` and `2 stages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
