"""When each convolution of a planned graph runs: one after another, and in the stages of the plan.

A plan knows how long a stage takes as a whole, and what its convolutions take alone. When a lane
ends inside of a stage is not known: its span lasts as long as the stage, and says how much of that
its convolutions would take alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

from tf_interop.planning.problem import ValueSource
from tf_interop.planning.types import GraphPlan, PlannedStage, UnstagedConvolution
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
        label: what the duration is called: measured, modelled and so on.
        row: which row.
        stage: the number of the stage; None for an unstaged convolution.
        lane: the number of the lane; None where the span is no lane of a stage.
    """

    start_us: float
    duration_us: float
    steps: tuple[Step[str], ...]
    busy_us: float | None
    label: str
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
    """

    name: str
    rows: tuple[str, ...]
    spans: tuple[Span, ...]

    @property
    def total_us(self) -> float:
        """When the last span is over."""
        return max((span.end_us for span in self.spans), default=0.0)

    @property
    def labels(self) -> list[str]:
        """What the total is the sum of."""
        return sorted({span.label for span in self.spans})


def timelines_of(graph: GraphPlan, label: Callable[[ValueSource], str]) -> tuple[Timeline, ...]:
    """What a graph runs when: one after another and, where it has stages, in these.

    Args:
        graph: an entry of a plan.
        label: what values are called.

    Returns:
        Nothing where no planner made the stages, so that times of them are not known.
    """
    if any(stage.prediction is None for stage in graph.stages):
        return ()
    measured = label(ValueSource.MEASURED)
    sequence: list[Span] = []
    in_stages: list[Span] = []
    for number, planned in graph.in_order:
        start_us, stage_start_us = (
            spans[-1].end_us if spans else 0.0 for spans in (sequence, in_stages)
        )
        if isinstance(planned, UnstagedConvolution):
            took_us, step = planned.latency_us, Step(planned.node, planned.algorithm)
            sequence.append(Span(start_us, took_us, (step,), took_us, measured))
            in_stages.append(Span(stage_start_us, took_us, (step,), took_us, measured))
            continue
        for lane, steps, took_us in _alone(planned):
            sequence.append(
                Span(start_us, took_us, steps, took_us, measured, stage=number, lane=lane)
            )
            start_us += took_us
        assert planned.prediction is not None
        latency_us, source = planned.prediction.latency_us, label(planned.prediction.source)
        in_stages += (
            Span(stage_start_us, latency_us, its.steps, busy_us, source, 1 + lane, number, lane)
            for lane, its in enumerate(planned.stage.lanes)
            for busy_us in [_busy_us(planned, lane, latency_us)]
        )
    if not sequence:
        return ()
    one_by_one = Timeline("one after another", (MAIN_ROW,), tuple(sequence))
    if not graph.stages:
        return (one_by_one,)
    lane_count = max(len(each.stage.lanes) for each in graph.stages)
    rows = (MAIN_ROW, *(f"lane {lane}" for lane in range(lane_count)))
    return (one_by_one, Timeline("in stages", rows, tuple(in_stages)))


def _alone(planned: PlannedStage) -> Iterator[tuple[int | None, tuple[Step[str], ...], float]]:
    """Each lane with what is fastest alone, and its time; all as one where those are not known."""
    assert planned.prediction is not None
    sequential_us = planned.prediction.sequential_us
    explained = () if planned.explanation is None else planned.explanation.lanes
    known_us = math.fsum(lane.fastest_us for lane in explained)
    if not math.isclose(known_us, sequential_us, rel_tol=_SUM_TOLERANCE):
        yield None, tuple(Step(name) for name in planned.nodes), sequential_us
        return
    for lane, (its, of_lane) in enumerate(zip(planned.stage.lanes, explained, strict=True)):
        # The algorithm is None where the lane has several steps.
        steps = tuple(Step(name, of_lane.fastest_algorithm) for name in its.operations)
        yield lane, steps, of_lane.fastest_us


def _busy_us(planned: PlannedStage, lane: int, latency_us: float) -> float | None:
    # What the wider convolution of a merged lane takes alone is not known.
    if planned.explanation is None or planned.stage.lanes[lane].merged:
        return None
    return min(planned.explanation.lanes[lane].alone_us, latency_us)
