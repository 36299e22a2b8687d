"""Timelines as a picture, drawn by matplotlib (the extra `report`)."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tf_interop.errors import PlanError
from tf_interop.plan.problem import FigureSource
from tf_interop.plan.types import GraphPlan, Plan
from tf_interop.report.timeline import (
    Timeline,
    has_times,
    planned_timeline,
    sequential_timeline,
)
from tf_interop.report.words import (
    SIMULATED,
    figure_label,
    is_of_host,
    is_simulated,
    microseconds,
    total_labels,
    unit_of,
    what_is_lacking,
)
from tf_interop.versioned_file import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Those of report.css.
_STAGE_COLORS = (
    *("#7aa9f7", "#f2a75c", "#6cc79b", "#dc8fd3"),
    *("#e2c64c", "#62c4d6", "#f38e85", "#ab9ff2"),
)
_ALONE_COLOR = "#a3abb8"
_ROW_HEIGHT = 0.8
_DOTS_PER_INCH = 160


def save_timeline_picture(plan: Plan, titles: Sequence[str], path: str | os.PathLike[str]) -> None:
    """Draws, for each graph, one after another above the stages of the plan, if it has any.

    Args:
        plan: any plan; graphs without times are left out.
        titles: what to call each graph.
        path: of a PNG file.

    Raises:
        PlanError: no graph has times, matplotlib is not installed, or the file cannot be written.
    """
    try:
        # Not pyplot: no window, no state of the process.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlanError(
            "Expected matplotlib to draw a picture with, found none. Install it: "
            "pip install 'tf-interop[report]'"
        ) from error
    drawn = [
        (graph, title) for graph, title in zip(plan.graphs, titles, strict=True) if has_times(graph)
    ]
    if not drawn:
        raise PlanError(
            "Expected a plan with predicted times, got one without. Make it with tf-interop plan."
        )
    simulated = is_simulated(plan)
    described = [_described_timelines(graph, simulated=simulated) for graph, _ in drawn]
    heights = [len(timeline.rows) + 1.6 for its in described for _, timeline in its]
    figure = Figure(figsize=(11, 0.6 + 0.3 * sum(heights)), layout="constrained")
    axes = iter(figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])
    for (graph, title), its in zip(drawn, described, strict=True):
        longest_us = max(timeline.total_us for _, timeline in its)
        unit, unit_us = unit_of(longest_us)
        for label, timeline in its:
            ax = next(axes)
            total = microseconds(timeline.total_us, longest_us)
            _draw(ax, timeline, f"{title}, {label}: {total}", unit_us)
            ax.set_xlim(0, 1.01 * longest_us / unit_us)
        of_lanes = "; of a stage the full colour is what a lane takes alone"
        ax.set_xlabel(unit + (of_lanes if graph.stages else ""))
    figure.suptitle("\n".join(_notices(plan)), fontsize=9, wrap=True)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=_DOTS_PER_INCH, format="png")
    try:
        write_atomically(picture.getvalue(), path)
    except OSError as error:
        raise PlanError(
            f"Expected to write '{os.fspath(path)}', got: {error.strerror}. Check the path."
        ) from error


def _notices(plan: Plan) -> Iterator[str]:
    if is_simulated(plan):
        yield f"Simulated: {plan.made_with[SIMULATED]}"
    if is_of_host(plan):
        yield "Times of tf_interop's own algorithms on a CPU; they say nothing of any GPU."


def _described_timelines(graph: GraphPlan, *, simulated: bool) -> list[tuple[str, Timeline]]:
    """What a graph runs when, each with what its total is; without a stage both are one."""
    measured = figure_label(FigureSource.MEASURED, simulated=simulated)
    in_stages = " and ".join(total_labels(graph, simulated=simulated))
    lacking = what_is_lacking(graph, simulated=simulated)
    behind = f" ({lacking})" if lacking else ""
    described = [(f"one after another, sum of {measured}{behind}", sequential_timeline(graph))]
    if graph.stages:
        described.append((f"in stages, sum of {in_stages}{behind}", planned_timeline(graph)))
    return described


def _draw(ax: Axes, timeline: Timeline, title: str, unit_us: float) -> None:
    for span in timeline.spans:
        color = (
            _ALONE_COLOR if span.stage is None else _STAGE_COLORS[span.stage % len(_STAGE_COLORS)]
        )
        place = (span.row - _ROW_HEIGHT / 2, _ROW_HEIGHT)
        start, duration = span.start_us / unit_us, span.duration_us / unit_us
        busy = duration if span.busy_us is None else span.busy_us / unit_us
        ax.broken_barh([(start, duration)], place, facecolors=color, alpha=0.4)
        ax.broken_barh([(start, busy)], place, facecolors=color, edgecolors="white", linewidth=0.4)
    ax.set_title(title, loc="left", fontsize=9)
    ax.set_yticks(range(len(timeline.rows)), timeline.rows, fontsize=8)
    ax.set_ylim(len(timeline.rows) - 0.4, -0.6)
    ax.tick_params(axis="x", labelsize=8)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
