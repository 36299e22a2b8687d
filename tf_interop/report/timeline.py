"""When each convolution of a planned graph runs: one after another, and in the stages of the plan.

A plan knows how long a stage takes as a whole, and what its convolutions take alone. When a lane
ends inside of a stage is not known: its span lasts as long as the stage, and says how much of that
its convolutions would take alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from tf_interop.plan.problem import FigureSource
from tf_interop.plan.types import (
    AloneConvolution,
    GraphPlan,
    PinnedConvolution,
    PlannedStage,
    is_merged,
)

MAIN_ROW = "main stream"
"""The stream that TensorFlow runs everything on that is in no stage."""

# Figures of a stage that are sums of those of its lanes agree up to how floats round.
_SUM_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Convolutions that take one row of a timeline for some time.

    Attributes:
        row: which row.
        start_us: from the beginning of the timeline.
        duration_us: how long.
        busy_us: how much of that the convolutions take alone; None where that is not known.
        convolutions: what runs, in order.
        stage: the number of the stage; None for a convolution in none.
        lane: the number of the lane; None where the span is no lane of a stage.
        source: whether `duration_us` was measured.
    """

    row: int
    start_us: float
    duration_us: float
    busy_us: float | None
    convolutions: tuple[PinnedConvolution, ...]
    stage: int | None
    lane: int | None
    source: FigureSource

    @property
    def end_us(self) -> float:
        """When it is over."""
        return self.start_us + self.duration_us


@dataclasses.dataclass(frozen=True, slots=True)
class Timeline:
    """What runs when.

    Attributes:
        rows: the names of the rows, streams of the device.
        spans: in the order in which they begin.
    """

    rows: tuple[str, ...]
    spans: tuple[Span, ...]

    @property
    def total_us(self) -> float:
        """When the last span is over."""
        return max((span.end_us for span in self.spans), default=0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class NumberedStage:
    """A stage with its place in the plan.

    Attributes:
        number: from 0.
        stage: the stage.
    """

    number: int
    stage: PlannedStage


Step = NumberedStage | AloneConvolution


def steps_of(graph: GraphPlan) -> Iterator[Step]:
    """Stages and the convolutions in none, in the order in which they are expected to run."""
    for number, stage in enumerate(graph.stages):
        yield from (each for each in graph.alone if each.before_stage == number)
        yield NumberedStage(number, stage)
    yield from (each for each in graph.alone if each.before_stage == len(graph.stages))


def has_times(graph: GraphPlan) -> bool:
    """Whether a planner made all stages of the graph, so that times of them are known."""
    return all(stage.prediction is not None for stage in graph.stages) and bool(
        graph.stages or graph.alone
    )


def sequential_timeline(graph: GraphPlan) -> Timeline:
    """All convolutions one after another, each with the algorithm that is fastest alone.

    Args:
        graph: one that `has_times`.
    """
    spans: list[Span] = []
    now_us = 0.0
    for step in steps_of(graph):
        for span in _sequential_spans(step, now_us):
            spans.append(span)
            now_us = span.end_us
    return Timeline((MAIN_ROW,), tuple(spans))


def planned_timeline(graph: GraphPlan) -> Timeline:
    """The stages of the plan, a row for each lane, and between them the convolutions in none.

    Args:
        graph: one that `has_times`.
    """
    lane_count = max((len(stage.lanes) for stage in graph.stages), default=0)
    rows = (MAIN_ROW, *(f"lane {lane}" for lane in range(lane_count)))
    spans: list[Span] = []
    now_us = 0.0
    for step in steps_of(graph):
        if isinstance(step, AloneConvolution):
            spans.append(_alone_span(step, now_us))
        else:
            spans += _lane_spans(step, now_us)
        now_us = spans[-1].end_us
    return Timeline(rows, tuple(spans))


def _sequential_spans(step: Step, start_us: float) -> Iterator[Span]:
    if isinstance(step, AloneConvolution):
        yield _alone_span(step, start_us)
        return
    stage, explanation = step.stage, step.stage.explanation
    assert stage.prediction is not None
    sequential_us = stage.prediction.sequential_us
    each_us = [] if explanation is None else [lane.fastest_us for lane in explanation.lanes]
    if explanation is None or not math.isclose(
        math.fsum(each_us), sequential_us, rel_tol=_SUM_TOLERANCE
    ):
        # What each lane takes of it is not known.
        unpinned = tuple(PinnedConvolution(each.node) for each in stage.convolutions)
        yield _sequential_span(start_us, sequential_us, unpinned, step.number, None)
        return
    for number, (lane, explained) in enumerate(zip(stage.lanes, explanation.lanes, strict=True)):
        fastest = tuple(
            PinnedConvolution(each.node, explained.fastest_algorithm if len(lane) == 1 else None)
            for each in lane
        )
        yield _sequential_span(start_us, explained.fastest_us, fastest, step.number, number)
        start_us += explained.fastest_us


def _sequential_span(
    start_us: float,
    duration_us: float,
    convolutions: tuple[PinnedConvolution, ...],
    stage: int,
    lane: int | None,
) -> Span:
    return Span(
        row=0,
        start_us=start_us,
        duration_us=duration_us,
        busy_us=duration_us,
        convolutions=convolutions,
        stage=stage,
        lane=lane,
        source=FigureSource.MEASURED,
    )


def _alone_span(step: AloneConvolution, start_us: float) -> Span:
    return Span(
        row=0,
        start_us=start_us,
        duration_us=step.latency_us,
        busy_us=step.latency_us,
        convolutions=(PinnedConvolution(step.node, step.algorithm),),
        stage=None,
        lane=None,
        source=FigureSource.MEASURED,
    )


def _lane_spans(step: NumberedStage, start_us: float) -> list[Span]:
    stage, prediction = step.stage, step.stage.prediction
    assert prediction is not None
    explained = () if stage.explanation is None else stage.explanation.lanes
    return [
        Span(
            row=1 + number,
            start_us=start_us,
            duration_us=prediction.latency_us,
            # What the wider convolution of a merged lane takes alone is not known.
            busy_us=(
                min(explained[number].alone_us, prediction.latency_us)
                if explained and not is_merged(stage, number)
                else None
            ),
            convolutions=lane,
            stage=step.number,
            lane=number,
            source=prediction.source,
        )
        for number, lane in enumerate(stage.lanes)
    ]
