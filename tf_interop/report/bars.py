"""The bars of a stage: time, memory, and what its lanes take of an SM, against the limits."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tf_interop.planning.explain import SHARED_RESOURCES, sum_of_uses
from tf_interop.planning.types import GraphPrediction, LaneExplanation, PlannedStage
from tf_interop.report.words import microseconds, size
from tf_interop.tables import percent

# A budget further away than this would press what is taken into a line.
_MOST_OF_LIMIT = 20


class Part(NamedTuple):
    """A part of a bar: how much, of which lane (None for none), and what it says."""

    value: float
    lane: int | None
    title: str


class Bar(NamedTuple):
    """A bar: what it is, its parts, the value in words, how far it may be off, and a warning."""

    label: str
    parts: tuple[Part, ...]
    text: str
    spread: float = 0.0
    is_over: bool = False


class Bars(NamedTuple):
    """Bars on one scale.

    Attributes:
        rows: the bars.
        end: what the whole width stands for.
        limit: where the limit is; None where there is none, or it is far.
        limit_text: what the limit is.
    """

    rows: tuple[Bar, ...]
    end: float
    limit: float | None = None
    limit_text: str = ""


def time_bars(planned: PlannedStage) -> Bars | None:
    """One after another beside together, then each lane alone, a merged one without merging.

    Returns:
        None where no planner made the stage.
    """
    prediction = planned.prediction
    if prediction is None:
        return None
    lanes = () if planned.explanation is None else planned.explanation.lanes
    say = functools.partial(microseconds, beside=prediction.sequential_us)
    one_by_one = _parts([lane.fastest_us for lane in lanes] or [prediction.sequential_us], say)
    together = Bar(
        "together",
        _parts([prediction.latency_us], say),
        say(prediction.latency_us),
        prediction.spread_us,
    )
    rows = [Bar("one after another", one_by_one, say(prediction.sequential_us)), together]
    for number, lane in enumerate(lanes):
        alone = "unmerged" if planned.stage.lanes[number].merged else "alone"
        part = Part(lane.alone_us, number, f"lane {number}: {say(lane.alone_us)}")
        rows.append(Bar(f"lane {number} {alone}", (part,), say(lane.alone_us)))
    return Bars(tuple(rows), _end_of(rows))


def memory_bars(planned: PlannedStage, graph: GraphPrediction | None) -> Bars | None:
    """Workspaces by lane, and with outputs and what is alive across the stage, against the budget.

    Returns:
        None where no planner made the stage.
    """
    prediction = planned.prediction
    if prediction is None:
        return None
    lanes = () if planned.explanation is None else planned.explanation.lanes
    each = [float(lane.workspace_bytes) for lane in lanes]
    # What was measured of the stage may be another value than the sum of its lanes'.
    if sum(each) != prediction.workspace_bytes:
        each = [float(prediction.workspace_bytes)]
    rest = max(0, prediction.peak_bytes - prediction.workspace_bytes)
    workspaces = _parts(each, size)
    alive = Part(rest, None, f"outputs and what is alive: {size(rest)}")
    budget = None if graph is None else graph.memory_budget_bytes
    is_over = budget is not None and prediction.peak_bytes > budget
    rows = (
        Bar("workspaces", workspaces, size(prediction.workspace_bytes)),
        Bar("with outputs", (*workspaces, alive), size(prediction.peak_bytes), is_over=is_over),
    )
    if budget is None:
        return Bars(rows, _end_of(rows), limit_text="no budget")
    text = f"budget {size(budget)}"
    times = budget / max(prediction.peak_bytes, 1)
    if times > _MOST_OF_LIMIT:
        return Bars(rows, _end_of(rows), limit_text=f"{text}, {times:.0f} times as much")
    return Bars(rows, _end_of(rows, budget), budget, text)


def sm_bars(lanes: Sequence[LaneExplanation]) -> Bars | None:
    """What lanes take of one SM, added up; above 100 % they take turns.

    Returns:
        None where it is not known of all lanes.
    """
    uses = [lane.sm_use for lane in lanes]
    rows = [
        Bar(
            SHARED_RESOURCES[field],
            _parts([getattr(use, field) for use in uses], percent),
            percent(total),
            is_over=total > 1,
        )
        for field, total in (sum_of_uses(uses) if lanes else {}).items()
    ]
    return Bars(tuple(rows), _end_of(rows, 1.0), 1.0, "all of one SM") if rows else None


def _parts(values: Sequence[float], say: Callable[[float], str]) -> tuple[Part, ...]:
    """One for each lane; a single value is of no lane."""
    if len(values) == 1:
        return (Part(values[0], None, say(values[0])),)
    return tuple(
        Part(value, lane, f"lane {lane}: {say(value)}") for lane, value in enumerate(values)
    )


def _end_of(rows: Sequence[Bar], limit: float = 0.0) -> float:
    longest = max(math.fsum(part.value for part in row.parts) + row.spread for row in rows)
    return 1.08 * (max(longest, limit) or 1.0)
