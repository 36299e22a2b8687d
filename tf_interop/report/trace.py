"""Timelines as a trace that Perfetto and chrome://tracing open.

The format is the JSON one of Chrome's tracer: complete events (`"ph": "X"`) on threads of
processes, with metadata events (`"M"`) that name them. Times are microseconds.
"""

from __future__ import annotations

import itertools
from typing import Any

from tf_interop.planning.show import name_graph
from tf_interop.planning.types import Plan
from tf_interop.report.page import shown_graphs

# Perfetto takes a thread whose number is 0 or that of its process for the process' main thread, and
# threads are numbered for all processes.
_THREADS_OF_A_PROCESS = 1000


def trace_of_plan(plan: Plan) -> dict[str, Any]:
    """The timelines of all graphs of a plan as a trace file's JSON, each as a process."""
    events: list[dict[str, Any]] = []
    timelines = ((graph, each) for graph in shown_graphs(plan) for each in graph.timelines)
    for (graph, timeline), process in zip(timelines, itertools.count(1), strict=False):

        def event(kind: str, row: int, process: int = process, **others: object) -> dict[str, Any]:
            thread = process * _THREADS_OF_A_PROCESS + row
            return {"name": kind, "pid": process, "tid": thread, **others}

        name = f"{name_graph(graph.planned)}: {timeline.name}"
        events.append(event("process_name", 0, ph="M", args={"name": name}))
        for row, row_name in enumerate(timeline.rows):
            events.append(event("thread_name", row, ph="M", args={"name": row_name}))
        for span in timeline.spans:
            known = {"alone_us": span.busy_us, "stage": span.stage}
            events.append(
                event(
                    ", ".join(step.operation for step in span.steps),
                    span.row,
                    ph="X",
                    cat="convolution" if span.stage is None else f"stage {span.stage}",
                    ts=span.start_us,
                    dur=span.duration_us,
                    args={
                        "algorithm": ", ".join(
                            step.algorithm or "the runner's choice" for step in span.steps
                        ),
                        "time is": span.label,
                    }
                    | {key: value for key, value in known.items() if value is not None},
                )
            )
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"made by": "tf-interop report", **plan.made_with},
    }
