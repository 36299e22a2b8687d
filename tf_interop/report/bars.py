"""The bars of a stage: time, memory, and what its lanes take of an SM, against the limits."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

from rich.filesize import decimal

from tf_interop.plan.explain import SHARED_RESOURCES, sum_of_uses
from tf_interop.plan.types import (
    GraphPrediction,
    LaneExplanation,
    PlannedStage,
    StagePrediction,
    is_merged,
)
from tf_interop.report.words import microseconds
from tf_interop.tables import percent

# A budget further away than this would press what is taken into a line.
_MOST_OF_LIMIT = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar.

    Attributes:
        start: where it begins, as share of the drawing's width.
        width: likewise.
        lane: the lane that it stands for; None for none.
        title: what it says.
    """

    start: float
    width: float
    lane: int | None
    title: str


@dataclasses.dataclass(frozen=True, slots=True)
class Bar:
    """One row of a drawing.

    Attributes:
        label: what the row is.
        segments: from left to right.
        text: the figure.
        spread: from where to where the figure may be off, as shares of the width; None where that
            is not known.
        is_over: whether the figure is over the limit of the drawing.
    """

    label: str
    segments: tuple[Segment, ...]
    text: str
    spread: tuple[float, float] | None = None
    is_over: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Bars:
    """Bars on one scale.

    Attributes:
        rows: the bars.
        limit: where the limit is, as share of the width; None where there is none, or it is far.
        limit_text: what the limit is.
    """

    rows: tuple[Bar, ...]
    limit: float | None = None
    limit_text: str = ""


def time_bars(stage: PlannedStage) -> Bars | None:
    """One after another beside together, then each lane alone, a merged one without merging.

    Returns:
        None where no planner made the stage.
    """
    prediction = stage.prediction
    if prediction is None:
        return None
    lanes = () if stage.explanation is None else stage.explanation.lanes
    fastest = [lane.fastest_us for lane in lanes]
    say_time = functools.partial(microseconds, beside=prediction.sequential_us)
    scale = 1.08 * max(
        prediction.sequential_us,
        prediction.latency_us + prediction.spread_us,
        math.fsum(fastest),
        *(lane.alone_us for lane in lanes),
    )
    one_by_one = _stacked(fastest or [prediction.sequential_us], scale, say_time)
    if not lanes:
        one_by_one = tuple(dataclasses.replace(each, lane=None) for each in one_by_one)
    low, high = (
        max(0.0, prediction.latency_us + sign * prediction.spread_us) / scale for sign in (-1, 1)
    )
    rows = [
        Bar("one after another", one_by_one, say_time(prediction.sequential_us)),
        Bar(
            "together",
            (_segment(prediction.latency_us, scale, None, say_time),),
            say_time(prediction.latency_us),
            spread=(low, high) if prediction.spread_us else None,
        ),
    ]
    rows += [
        Bar(
            f"lane {number} unmerged" if is_merged(stage, number) else f"lane {number} alone",
            (_segment(lane.alone_us, scale, number, say_time),),
            say_time(lane.alone_us),
        )
        for number, lane in enumerate(lanes)
    ]
    return Bars(tuple(rows))


def memory_bars(stage: PlannedStage, graph: GraphPrediction | None) -> Bars | None:
    """Workspaces by lane, and with outputs and what is alive across the stage, against the budget.

    Returns:
        None where no planner made the stage.
    """
    prediction = stage.prediction
    if prediction is None:
        return None
    budget = None if graph is None else graph.memory_budget_bytes
    is_near = budget is not None and budget <= _MOST_OF_LIMIT * prediction.peak_bytes
    largest = max(prediction.peak_bytes, prediction.workspace_bytes, 1)
    scale = 1.08 * (max(largest, budget) if is_near and budget is not None else largest)
    workspaces = _stacked(_workspaces(stage, prediction), scale, size)
    rest = prediction.peak_bytes - prediction.workspace_bytes
    alive = Segment(
        prediction.workspace_bytes / scale,
        max(0, rest) / scale,
        None,
        f"outputs and what is alive: {size(max(0, rest))}",
    )
    rows = (
        Bar("workspaces", workspaces, size(prediction.workspace_bytes)),
        Bar(
            "with outputs",
            (*workspaces, alive),
            size(prediction.peak_bytes),
            is_over=budget is not None and prediction.peak_bytes > budget,
        ),
    )
    if budget is None:
        return Bars(rows, limit_text="no budget")
    text = f"budget {size(budget)}"
    if not is_near:
        return Bars(rows, limit_text=f"{text}, {budget / largest:.0f} times as much")
    return Bars(rows, limit=budget / scale, limit_text=text)


def sm_bars(lanes: Sequence[LaneExplanation]) -> Bars | None:
    """What lanes take of one SM, added up; above 100 % they take turns.

    Returns:
        None where it is not known of all lanes.
    """
    uses = [lane.sm_use for lane in lanes]
    sums = sum_of_uses(uses)
    if not lanes or not sums:
        return None
    scale = 1.08 * max(1.0, *sums.values())
    rows = tuple(
        Bar(
            SHARED_RESOURCES[field],
            _stacked([getattr(use, field) for use in uses], scale, percent),
            percent(total),
            is_over=total > 1,
        )
        for field, total in sums.items()
    )
    return Bars(rows, limit=1 / scale, limit_text="all of one SM")


def size(value: float) -> str:
    """Bytes for reading, such as `3.1 MB`."""
    return decimal(int(value))


def _workspaces(stage: PlannedStage, prediction: StagePrediction) -> list[float]:
    lanes = [] if stage.explanation is None else [*stage.explanation.lanes]
    each = [float(lane.workspace_bytes) for lane in lanes]
    # What was measured of the stage may be another figure than the sum of its lanes'.
    if sum(each) != prediction.workspace_bytes:
        return [float(prediction.workspace_bytes)]
    return each


def _stacked(
    values: Sequence[float], scale: float, say: Callable[[float], str]
) -> tuple[Segment, ...]:
    segments = []
    start = 0.0
    for lane, value in enumerate(values):
        segment = _segment(value, scale, lane if len(values) > 1 else None, say)
        segments.append(dataclasses.replace(segment, start=start))
        start += value / scale
    return tuple(segments)


def _segment(value: float, scale: float, lane: int | None, say: Callable[[float], str]) -> Segment:
    said = say(value)
    return Segment(0.0, value / scale, lane, said if lane is None else f"lane {lane}: {said}")
