"""When each convolution of a planned graph runs: one after another, and in the stages of the plan.

A plan knows how long a stage takes as a whole, and what its convolutions take alone. When a lane
ends inside of a stage is not known: its span lasts as long as the stage, and says how much of that
its convolutions would take alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from tf_interop.planning.order import Planned, in_order, stage_of
from tf_interop.planning.problem import ValueSource
from tf_interop.planning.types import GraphPlan, PlannedStage, UnstagedConvolution
from tf_interop.report.words import total_labels, value_label
from tf_interop.stage import Step

MAIN_ROW = "main stream"
"""The stream that TensorFlow runs everything on that is in no stage."""

# Values of a stage that are sums of those of its lanes agree up to how floats round.
_SUM_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Convolutions that take one row of a timeline for some time.

    Attributes:
        start_us: from the beginning of the timeline.
        duration_us: how long.
        steps: what runs, in order.
        busy_us: how much of the duration they take alone; None where that is not known.
        source: whether `duration_us` was measured.
        row: which row.
        stage: the number of the stage; None for an unstaged convolution.
        lane: the number of the lane; None where the span is no lane of a stage.
    """

    start_us: float
    duration_us: float
    steps: tuple[Step[str], ...]
    busy_us: float | None
    source: ValueSource = ValueSource.MEASURED
    row: int = 0
    stage: int | None = None
    lane: int | None = None

    @property
    def end_us(self) -> float:
        """When it is over."""
        return self.start_us + self.duration_us


@dataclasses.dataclass(frozen=True, slots=True)
class Timeline:
    """What runs when.

    Attributes:
        name: what it shows.
        rows: the names of the rows, streams of the device.
        spans: in the order in which they begin.
        labels: what the total is the sum of: measured values, modelled ones.
    """

    name: str
    rows: tuple[str, ...]
    spans: tuple[Span, ...]
    labels: tuple[str, ...]

    @property
    def total_us(self) -> float:
        """When the last span is over."""
        return max((span.end_us for span in self.spans), default=0.0)


def timelines_of(graph: GraphPlan, *, simulated: bool) -> tuple[Timeline, ...]:
    """What a graph runs when: one after another and, where it has stages, in these.

    Args:
        graph: an entry of a plan.
        simulated: whether what is called measured was not.

    Returns:
        Nothing where no planner made the stages, so that times of them are not known.
    """
    planned = list(in_order(graph))
    if not planned or any(stage.prediction is None for stage in graph.stages):
        return ()
    measured = value_label(ValueSource.MEASURED, simulated=simulated)
    now_us = 0.0
    one_by_one: list[Span] = []
    for number, each in planned:
        for span in _spans_in_sequence(number, each, now_us):
            one_by_one.append(span)
            now_us = span.end_us
    sequence = Timeline("one after another", (MAIN_ROW,), tuple(one_by_one), (measured,))
    if not graph.stages:
        return (sequence,)
    in_stages: list[Span] = []
    for number, each in planned:
        in_stages += _spans_of_lanes(number, each, in_stages[-1].end_us if in_stages else 0.0)
    lane_count = max(len(each.stage.lanes) for each in graph.stages)
    rows = (MAIN_ROW, *(f"lane {lane}" for lane in range(lane_count)))
    labels = tuple(total_labels(graph, simulated=simulated))
    return (sequence, Timeline("in stages", rows, tuple(in_stages), labels))


def _spans_in_sequence(number: int, planned: Planned, start_us: float) -> Iterator[Span]:
    """Each convolution with the algorithm that is fastest alone, as far as that is known."""
    if isinstance(planned, UnstagedConvolution):
        yield _unstaged_span(planned, start_us)
        return
    assert planned.prediction is not None
    sequential_us = planned.prediction.sequential_us
    explained = () if planned.explanation is None else planned.explanation.lanes
    each_us = [lane.fastest_us for lane in explained]
    if not explained or not math.isclose(math.fsum(each_us), sequential_us, rel_tol=_SUM_TOLERANCE):
        # What each lane takes of it is not known.
        steps = tuple(Step(name) for name in planned.nodes)
        yield Span(start_us, sequential_us, steps, sequential_us, stage=number)
        return
    for lane, (its, of_lane) in enumerate(zip(planned.stage.lanes, explained, strict=True)):
        # None where the lane has several steps.
        steps = tuple(Step(name, of_lane.fastest_algorithm) for name in its.operations)
        duration_us = of_lane.fastest_us
        yield Span(start_us, duration_us, steps, duration_us, stage=number, lane=lane)
        start_us += duration_us


def _spans_of_lanes(number: int, planned: Planned, start_us: float) -> Iterator[Span]:
    if isinstance(planned, UnstagedConvolution):
        yield _unstaged_span(planned, start_us)
        return
    assert planned.prediction is not None
    latency_us = planned.prediction.latency_us
    for lane, its in enumerate(planned.stage.lanes):
        yield Span(
            start_us,
            latency_us,
            its.steps,
            _busy_us(planned, lane, latency_us),
            planned.prediction.source,
            row=1 + lane,
            stage=number,
            lane=lane,
        )


def _busy_us(planned: PlannedStage, lane: int, latency_us: float) -> float | None:
    # What the wider convolution of a merged lane takes alone is not known.
    if planned.explanation is None or planned.stage.lanes[lane].merged:
        return None
    return min(planned.explanation.lanes[lane].alone_us, latency_us)


def _unstaged_span(unstaged: UnstagedConvolution, start_us: float) -> Span:
    latency_us = unstaged.latency_us
    return Span(start_us, latency_us, stage_of(unstaged).steps, latency_us)
