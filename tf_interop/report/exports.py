"""Exports the timelines of a plan as a picture and as a trace."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

from tf_interop.errors import PlanError
from tf_interop.planning.show import name_graph
from tf_interop.planning.types import Plan
from tf_interop.report.page import ASSETS, MILLISECOND_US, microseconds, shown_graphs
from tf_interop.report.timeline import Timeline, Trace, TraceEvent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STAGE_COLORS = re.findall(r"--hue: (#\w{6})", (ASSETS / "report.css").read_text("utf-8"))
_UNSTAGED_COLOR = "#a3abb8"
_ROW_HEIGHT = 0.8
# Thread numbers are unique among all processes. Perfetto treats a thread numbered 0, or numbered as
# its process, as the main thread.
_THREADS_OF_A_PROCESS = 1000


def draw_timelines(plan: Plan) -> bytes:
    """Draws the timelines of all graphs, one below the other, as a PNG with matplotlib.

    Raises:
        PlanError: no graph has times, or matplotlib is not installed.
    """
    try:
        # Not pyplot: no window, no state of the process.
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlanError(
            "A picture needs matplotlib, which is missing. Install it: pip install "
            "'tf-interop[report]'"
        ) from error
    drawn = [(graph, each) for graph in shown_graphs(plan) for each in graph.timelines]
    if not drawn:
        raise PlanError(
            "The plan has no predicted times, which a picture needs. Make the plan with tf-interop "
            "plan."
        )
    heights = [len(timeline.rows) + 1.6 for _, timeline in drawn]
    figure = Figure(figsize=(11, 0.6 + 0.3 * sum(heights)), layout="constrained")
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, (graph, timeline) in zip(axes, drawn, strict=True):
        longest_us = max(each.total_us for each in graph.timelines)
        unit, unit_us = ("µs", 1) if longest_us < MILLISECOND_US else ("ms", MILLISECOND_US)
        _draw(ax, timeline, unit_us)
        total = microseconds(timeline.total_us, longest_us)
        words = f"{timeline.name}: {total}, sum of {' and '.join(timeline.labels)}"
        ax.set_title(f"{name_graph(graph.planned)}, {words}", loc="left", fontsize=9)
        ax.set_xlim(0, 1.01 * longest_us / unit_us)
        if timeline is graph.timelines[-1]:
            of_lanes = "; in a stage the full colour is the lane's time alone"
            ax.set_xlabel(unit + (of_lanes if graph.planned.stages else ""))
    if plan.made_with.get("backend") == "host":
        figure.suptitle(
            "These are times of tf_interop's own algorithms on a CPU, and do not apply to a GPU.",
            fontsize=9,
            wrap=True,
        )
    picture = io.BytesIO()
    figure.savefig(picture, dpi=160, format="png")
    return picture.getvalue()


def trace_of_plan(plan: Plan) -> Trace:
    """The timelines of a plan for Perfetto and chrome://tracing, each as a process."""
    events: list[TraceEvent] = []
    timelines = ((graph, each) for graph in shown_graphs(plan) for each in graph.timelines)
    for process, (graph, timeline) in enumerate(timelines, 1):
        first_thread = process * _THREADS_OF_A_PROCESS
        name = {"name": f"{name_graph(graph.planned)}: {timeline.name}"}
        events.append(TraceEvent("process_name", "M", process, first_thread, args=name))
        for thread, row in enumerate(timeline.rows, first_thread):
            events.append(TraceEvent("thread_name", "M", process, thread, args={"name": row}))
        for span in timeline.spans:
            algorithms = [step.algorithm or "the runner's choice" for step in span.steps]
            args: dict[str, Any] = {"algorithm": ", ".join(algorithms), "time is": span.label}
            if span.busy_us is not None:
                args["alone_us"] = span.busy_us
            kind = "convolution"
            if span.stage is not None:
                args["stage"] = span.stage
                kind = f"stage {span.stage}"
            steps = ", ".join(step.operation for step in span.steps)
            thread = first_thread + span.row
            events.append(
                TraceEvent(steps, "X", process, thread, kind, span.start_us, span.duration_us, args)
            )
    return Trace(tuple(events), {"made by": "tf-interop report", **plan.made_with})


def _draw(ax: Axes, timeline: Timeline, unit_us: float) -> None:
    for span in timeline.spans:
        color = _UNSTAGED_COLOR
        if span.stage is not None:
            color = _STAGE_COLORS[span.stage % len(_STAGE_COLORS)]
        place = (span.row - _ROW_HEIGHT / 2, _ROW_HEIGHT)
        start, duration = span.start_us / unit_us, span.duration_us / unit_us
        busy = duration if span.busy_us is None else span.busy_us / unit_us
        ax.broken_barh([(start, duration)], place, facecolors=color, alpha=0.4)
        ax.broken_barh([(start, busy)], place, facecolors=color, edgecolors="white", linewidth=0.4)
    ax.set_yticks(range(len(timeline.rows)), timeline.rows, fontsize=8)
    ax.set_ylim(len(timeline.rows) - 0.4, -0.6)
    ax.tick_params(axis="x", labelsize=8)
    ax.spines[["top", "right", "left"]].set_visible(False)
