"""Timelines of a planned graph: its convolutions one after another, and in the plan's stages.

A plan has the time of a whole stage, and the times of its convolutions alone, but not the end of
each lane. A lane's span is therefore as long as the stage, and has the time that its convolutions
take alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tf_interop.planning.problem import ValueSource
from tf_interop.planning.types import GraphPlan, UnstagedConvolution
from tf_interop.stage import Step

MAIN_ROW = "main stream"
"""TensorFlow's own stream, for everything that is in no stage."""


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Convolutions that take one row of a timeline for some time.

    Attributes:
        start_us: from the beginning of the timeline.
        busy_us: the time that the steps take alone; None if unknown.
        label: the origin of the duration: measured, modelled and so on.
        stage: the number of the stage; None for an unstaged convolution.
    """

    start_us: float
    duration_us: float
    steps: tuple[Step[str], ...]
    busy_us: float | None
    label: str
    row: int = 0
    stage: int | None = None

    @property
    def end_us(self) -> float:
        """Its end, from the beginning of the timeline."""
        return self.start_us + self.duration_us


@dataclasses.dataclass(frozen=True, slots=True)
class Timeline:
    """Spans, in the order of their beginnings, on the streams of a device.

    `note` names the call, the machine and the date of a measured run.
    """

    name: str
    rows: tuple[str, ...]
    spans: tuple[Span, ...]
    note: str = ""

    @property
    def total_us(self) -> float:
        """The end of the last span."""
        return max((span.end_us for span in self.spans), default=0.0)

    @property
    def labels(self) -> list[str]:
        """The origins of the times that make up the total."""
        return sorted({span.label for span in self.spans})


def timelines_of(graph: GraphPlan, label: Callable[[ValueSource], str]) -> tuple[Timeline, ...]:
    """The timelines of a graph: one after another and, if it has stages, in these.

    Empty if no planner made the stages, because their times are unknown then.
    """
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
        prediction, explanation = planned.prediction, planned.explanation
        if prediction is None or explanation is None:
            return ()
        for place, (lane, explained) in enumerate(
            zip(planned.stage.lanes, explanation.lanes, strict=True)
        ):
            took_us, latency_us = explained.fastest_us, prediction.latency_us
            # The algorithm is None if the lane has several steps.
            steps = tuple(Step(name, explained.fastest_algorithm) for name in lane.operations)
            sequence.append(Span(start_us, took_us, steps, took_us, measured, 0, number))
            start_us += took_us
            # The wider convolution of a merged lane was not measured alone.
            busy_us = None if lane.merged else min(explained.alone_us, latency_us)
            source = label(prediction.source)
            in_stages.append(
                Span(stage_start_us, latency_us, lane.steps, busy_us, source, 1 + place, number)
            )
    if not sequence:
        return ()
    one_by_one = Timeline("one after another", (MAIN_ROW,), tuple(sequence))
    if not graph.stages:
        return (one_by_one,)
    lane_count = max(len(each.stage.lanes) for each in graph.stages)
    rows = (MAIN_ROW, *(f"lane {lane}" for lane in range(lane_count)))
    return (one_by_one, Timeline("in stages", rows, tuple(in_stages)))
