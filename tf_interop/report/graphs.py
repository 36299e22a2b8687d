"""What a report shows of each graph of a plan: for page, trace, picture and terminal alike."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

from rich.filesize import decimal

from tf_interop.convolution import batch_size_of
from tf_interop.planning.problem import ValueSource
from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.profile.types import Profile
from tf_interop.report.network import Network, NetworkNode, network_for, planned_nodes
from tf_interop.report.timeline import Timeline, timelines_of
from tf_interop.runtime.run_record import RunGraph, RunRecord, Timing

SIMULATED = "simulated"
"""The key of `Plan.made_with` that says how values were made where nothing was measured."""

# From here on a time is read more easily in milliseconds.
MILLISECOND_US = 1000


class ProfileFit(NamedTuple):
    """What a profile has of an entry of a plan: a sentence, and whether that is enough for it."""

    text: str
    is_whole: bool


# Without slots: timelines are kept in the instance.
@dataclasses.dataclass(frozen=True)
class ShownGraph:
    """An entry of a plan, with what else a report shows of it.

    Attributes:
        title: what tells the graph from the others of the plan.
        planned: what the plan says of it.
        measured: what values are called that the plan calls measured.
        network: what depends on what; None where that is not known.
        profile: what is shown beside the plan; None for nothing.
        run: what a run did to the graph; None where none is known.
        timings: of the graph.
    """

    title: str
    planned: GraphPlan
    measured: str
    network: Network | None = None
    profile: Profile | None = None
    run: RunGraph | None = None
    timings: tuple[Timing, ...] = ()

    @property
    def staged_count(self) -> int:
        """Convolutions in stages."""
        return sum(len(stage.nodes) for stage in self.planned.stages)

    @property
    def measured_count(self) -> int:
        """Convolutions that the predicted values are of."""
        return self.staged_count + len(self.planned.unstaged)

    @property
    def planned_names(self) -> set[str]:
        """The convolutions that the plan names."""
        return set(planned_nodes(self.planned))

    @property
    def lacking(self) -> str:
        """How few convolutions the values are of; empty where they are of all."""
        total = self.planned.convolution_count
        if self.measured_count >= total:
            return ""
        return (
            f"incomplete: {self.measured_count} of {count_of(total, 'convolution')} {self.measured}"
        )

    @property
    def total_labels(self) -> list[str]:
        """What the predicted total is the sum of: values of one kind, both or none."""
        return self.timelines[-1].labels if self.timelines else []

    @functools.cached_property
    def timelines(self) -> tuple[Timeline, ...]:
        """When what runs; none where no planner made the stages."""
        return timelines_of(self.planned, self.label)

    @functools.cached_property
    def nodes(self) -> dict[str, NetworkNode]:
        """What is known of its convolutions, by name."""
        return {} if self.network is None else {node.name: node for node in self.network.nodes}

    @property
    def first_stage(self) -> int:
        """The number of the stage to show first: that which saves most, else the widest."""

        def promise(number: int) -> tuple[float, int, int]:
            planned = self.planned.stages[number]
            prediction = planned.prediction
            saved_us = prediction.sequential_us - prediction.latency_us if prediction else 0.0
            return saved_us, len(planned.nodes), -number

        return max(range(len(self.planned.stages)), key=promise)

    @property
    def profile_fit(self) -> ProfileFit | None:
        """How many of the convolutions the profile has; None where none is shown."""
        if self.profile is None:
            return None
        of_all = f"of {count_of(self.planned.convolution_count, 'convolution')}"
        configurations = [node.configuration for node in self.nodes.values()]
        if configurations and None not in configurations:
            has = sum(bool(each and self.profile.find_algorithms(each)) for each in configurations)
            text = f"The profile has {has} {of_all} of this graph."
            return ProfileFit(text, has >= self.measured_count)
        found = {batch_size_of([each.configuration]) for each in self.profile.algorithms}
        sizes = sorted(size for size in found if size is not None)
        size = self.planned.batch_size
        if size is None or size in sizes:
            text = f"How many {of_all} the profile has is not known without --model."
            return ProfileFit(text, is_whole=True)
        of_sizes = f"it is of batch size {', '.join(map(str, sizes))}" if sizes else "it is empty"
        text = f"The profile has 0 {of_all} of this graph: {of_sizes}, the plan of {size}."
        return ProfileFit(text, is_whole=not self.measured_count)

    def label(self, source: ValueSource) -> str:
        """What a value is called, so that none is taken for more than it is."""
        return self.measured if source is ValueSource.MEASURED else source.value


def shown_graphs(
    plan: Plan,
    networks: Sequence[Network] = (),
    profile: Profile | None = None,
    run: RunRecord | None = None,
) -> list[ShownGraph]:
    """What to show of each graph of a plan.

    Args:
        plan: any plan.
        networks: what depends on what in its graphs, as far as that is known.
        profile: what the plan was made by.
        run: a run with the plan.
    """
    measured = SIMULATED if SIMULATED in plan.made_with else ValueSource.MEASURED.value
    titles = [
        ("any batch size" if graph.batch_size is None else f"batch {graph.batch_size}")
        + (f", {graph.mode}" if graph.mode else "")
        for graph in plan.graphs
    ]
    counts = collections.Counter(titles)
    shown = []
    for graph, title in zip(plan.graphs, titles, strict=True):
        if counts[title] > 1:
            title += f", {count_of(graph.convolution_count, 'convolution')}"
        runs = () if run is None else run.graphs
        timings = () if run is None else run.timings
        shown.append(
            ShownGraph(
                title,
                graph,
                measured,
                network_for(graph, networks),
                profile,
                next((each for each in runs if _is_of(graph, each)), None),
                tuple(each for each in timings if _is_of(graph, each)),
            )
        )
    return shown


def foreign_device(plan: Plan, profile: Profile | None) -> str:
    """What to say where plan and profile are of two devices; else empty."""
    here = "" if profile is None else profile.device.name
    planned = plan.made_with.get("device", here)
    if profile is None or planned == here:
        return ""
    return f"The plan was made by a profile of {planned}, and this one is of {here}."


def microseconds(value: float, beside: float = 0.0) -> str:
    """A time for reading, such as `130.0 µs`, `1.900 ms` or `12.35 ms`.

    Args:
        value: in microseconds.
        beside: the longest of the times that it is read beside, so that all have one unit.
    """
    longest = max(value, beside)
    if longest < MILLISECOND_US:
        return f"{value:.1f} µs"
    return f"{value / 1000:.{3 if longest < 10 * MILLISECOND_US else 2}f} ms"


def size(value: float) -> str:
    """Bytes for reading, such as `3.1 MB`."""
    return decimal(int(value))


def count_of(number: int, noun: str) -> str:
    """Such as `1 stage` and `2 stages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _is_of(graph: GraphPlan, each: RunGraph | Timing) -> bool:
    sizes = {each.batch_size, graph.batch_size}
    return each.fingerprint == graph.fingerprint and (None in sizes or len(sizes) == 1)
