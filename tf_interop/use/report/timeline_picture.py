"""Timelines as a picture, drawn by matplotlib (the extra `report`)."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tf_interop.errors import PlanError
from tf_interop.know.plans.plan import GraphPlan, Plan
from tf_interop.know.plans.planning_problem import FigureSource
from tf_interop.know.versioned_file import write_atomically
from tf_interop.use.report.figures import (
    SIMULATED,
    figure_label,
    is_simulated,
    microseconds,
    total_labels,
    unit_of,
)
from tf_interop.use.report.timeline import (
    Timeline,
    has_times,
    planned_timeline,
    sequential_timeline,
)

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
    """Draws, for each graph, one after another above the stages of the plan.

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
    pairs = [(sequential_timeline(graph), planned_timeline(graph)) for graph, _ in drawn]
    heights = [len(timeline.rows) + 1.6 for pair in pairs for timeline in pair]
    figure = Figure(figsize=(11, 0.6 + 0.3 * sum(heights)), layout="constrained")
    axes = figure.subplots(2 * len(drawn), 1, squeeze=False, height_ratios=heights)[:, 0]
    for index, ((graph, title), pair) in enumerate(zip(drawn, pairs, strict=True)):
        longest_us = max(each.total_us for each in pair)
        unit, unit_us = unit_of(longest_us)
        labels = _describe_sums(graph, simulated=simulated)
        for timeline, label, ax in zip(pair, labels, axes[2 * index : 2 * index + 2], strict=True):
            total = microseconds(timeline.total_us, longest_us)
            _draw(ax, timeline, f"{title}, {label}: {total}", unit_us)
            ax.set_xlim(0, 1.01 * longest_us / unit_us)
        axes[2 * index + 1].set_xlabel(
            f"{unit}; of a stage the full colour is what a lane takes alone"
        )
    if simulated:
        figure.suptitle(f"Simulated: {plan.made_with[SIMULATED]}", fontsize=9, wrap=True)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=_DOTS_PER_INCH, format="png")
    try:
        write_atomically(picture.getvalue(), path)
    except OSError as error:
        raise PlanError(
            f"Expected to write '{os.fspath(path)}', got: {error.strerror}. Check the path."
        ) from error


def _describe_sums(graph: GraphPlan, *, simulated: bool) -> tuple[str, str]:
    """What each of the two timelines of a graph shows, and what its total is."""
    measured = figure_label(FigureSource.MEASURED, simulated=simulated)
    in_stages = " and ".join(total_labels(graph, simulated=simulated))
    return f"one after another, sum of {measured}", f"in stages, sum of {in_stages}"


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
