"""Timelines as a trace that Perfetto and chrome://tracing open.

The format is the JSON one of Chrome's tracer: complete events (`"ph": "X"`) on threads of
processes, with metadata events (`"M"`) that name them. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tf_interop.planning.types import Plan
from tf_interop.report.timeline import Span, Timeline, timelines_of
from tf_interop.report.words import graph_titles, is_simulated, value_label, what_is_lacking

# Perfetto takes a thread whose number is 0 or that of its process for the process' main thread, and
# threads are numbered for all processes.
_THREADS_OF_A_PROCESS = 1000


def trace_of_plan(plan: Plan) -> dict[str, Any]:
    """The timelines of all graphs of a plan, each as a process of the trace.

    Args:
        plan: any plan; graphs without times are left out.

    Returns:
        What the trace file holds as JSON.
    """
    simulated = is_simulated(plan)
    events: list[dict[str, Any]] = []
    process = 0
    for graph, title in zip(plan.graphs, graph_titles(plan), strict=True):
        lacking = what_is_lacking(graph, simulated=simulated)
        for timeline in timelines_of(graph, simulated=simulated):
            process += 1
            name = f"{title}: {timeline.name}" + (f" ({lacking})" if lacking else "")
            events += _metadata(process, name, timeline)
            events += (_event(process, span, simulated=simulated) for span in timeline.spans)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"made by": "tf-interop report", **plan.made_with},
    }


def _metadata(process: int, name: str, timeline: Timeline) -> Iterator[dict[str, Any]]:
    def event(kind: str, row: int, **arguments: object) -> dict[str, Any]:
        thread = _thread(process, row)
        return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": arguments}

    yield event("process_name", 0, name=name)
    yield event("process_sort_index", 0, sort_index=process)
    for row, row_name in enumerate(timeline.rows):
        yield event("thread_name", row, name=row_name)
        yield event("thread_sort_index", row, sort_index=row)


def _thread(process: int, row: int) -> int:
    return process * _THREADS_OF_A_PROCESS + row


def _event(process: int, span: Span, *, simulated: bool) -> dict[str, Any]:
    arguments: dict[str, object] = {
        "algorithm": ", ".join(step.algorithm or "the runner's choice" for step in span.steps),
        "time is": value_label(span.source, simulated=simulated),
    }
    if span.busy_us is not None:
        arguments["alone_us"] = span.busy_us
    if span.stage is not None:
        arguments["stage"] = span.stage
    return {
        "name": ", ".join(step.operation for step in span.steps),
        "cat": "convolution" if span.stage is None else f"stage {span.stage}",
        "ph": "X",
        "pid": process,
        "tid": _thread(process, span.row),
        "ts": span.start_us,
        "dur": span.duration_us,
        "args": arguments,
    }
