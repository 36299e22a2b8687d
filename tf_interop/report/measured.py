"""Measured runs: writes and reads the file of `tf-interop run --trace`, and finds a plan in it.

The file is a trace of Chrome's, for ui.perfetto.dev and chrome://tracing: complete events
(`"ph": "X"`, times in microseconds) on the lanes of stages and on the threads of units.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tf_interop.convolution import canonical_names
from tf_interop.errors import PlanError
from tf_interop.planning.types import GraphPlan
from tf_interop.profile.types import ProfiledDevice
from tf_interop.report.timeline import Span, Timeline
from tf_interop.stage import Step
from tf_interop.versioned_file import PathLike, read_file

if TYPE_CHECKING:
    from tf_interop.runtime.kernel_library import TimedSpan

_MADE_BY = "tf-interop run"


@dataclasses.dataclass(frozen=True)
class _Event:
    name: str
    ph: str
    pid: int
    tid: int
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def end_us(self) -> float:
        return self.ts + self.dur


@dataclasses.dataclass(frozen=True)
class _Trace:
    traceEvents: tuple[_Event, ...]  # noqa: N815 (Chrome's name)
    otherData: dict[str, str]  # noqa: N815 (likewise)


@dataclasses.dataclass(frozen=True)
class MeasuredRun:
    """A trace file: the machine and the date, events by their beginnings, and rows by thread."""

    where: str
    events: tuple[_Event, ...]
    rows: dict[int, str]


def trace_of_run(
    spans: Iterable[TimedSpan], device: ProfiledDevice, made_with: dict[str, str]
) -> dict[str, Any]:
    """Makes the JSON of a trace file.

    A stage may begin while another runs. Spans that overlap without one being inside the other are
    on different rows.
    """
    ordered = sorted(spans, key=lambda each: (each.begin_ns, -each.end_ns))
    slots: dict[str, list[list[int]]] = collections.defaultdict(list)
    rows: dict[str, int] = {}
    events: list[dict[str, Any]] = []
    for span in ordered:
        name = "stages" if span.row == "stage" else f"{span.row} {span.number}"
        slot = _slot_for(span, slots[name])
        row = f"{name} ({slot + 1})" if slot else name
        args: dict[str, Any] = {"op": span.op, "call": span.call}
        if span.algorithm:
            args["algorithm"] = span.algorithm
        shown = span.name
        if span.row == "thread" and not span.name.startswith("images "):
            shown, args["operations"] = span.op, span.name.split()
        events.append(
            {
                "name": shown,
                "ph": "X",
                "cat": span.row,
                "pid": 1,
                # Perfetto takes thread 1 of process 1 for the main thread.
                "tid": rows.setdefault(row, 1001 + len(rows)),
                "ts": (span.begin_ns - ordered[0].begin_ns) / 1e3,
                "dur": (span.end_ns - span.begin_ns) / 1e3,
                "args": args,
            }
        )
    named = [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": thread, "args": {"name": row}}
        for row, thread in rows.items()
    ]
    where = {"measured on": device.name, "date": device.date}
    return {
        "traceEvents": named + events,
        "displayTimeUnit": "ns",
        "otherData": {"made by": _MADE_BY} | where | made_with,
    }


def load_run(path: PathLike) -> MeasuredRun:
    """Reads a trace of `tf-interop run --trace`.

    Raises:
        PlanError: the file cannot be read, or is no such trace.
    """
    content = read_file(path, "trace", PlanError)
    try:
        trace = msgspec.json.decode(content, type=_Trace)
        made = trace.otherData
        if made.get("made by") != _MADE_BY:
            raise ValueError(f"{made.get('made by', 'another program')} made it")
        where = f"{made['measured on']}, {made['date']}"
    except (ValueError, KeyError) as error:
        raise PlanError(
            f"'{path}' is no trace from 'tf-interop run --trace': {error}. Run the program with "
            "--trace, and pass that file."
        ) from error
    rows = {each.tid: str(each.args["name"]) for each in trace.traceEvents if each.ph == "M"}
    events = (each for each in trace.traceEvents if each.ph == "X" and "op" in each.args)
    return MeasuredRun(where, tuple(sorted(events, key=lambda each: each.ts)), rows)


def timeline_of_run(run: MeasuredRun, graph: GraphPlan) -> Timeline | None:
    """The timeline of a median call of a graph's stages or units; None if the run has none.

    A program may make a graph twice, such as for training and for validation. Only the first op for
    each stage or unit of the plan counts.
    """
    names = canonical_names([*(name for each in graph.stages for name in each.nodes), *graph.units])
    places = {names[name]: n for n, each in enumerate(graph.stages) for name in each.nodes}
    wanted = places.keys() | {names[name] for name in graph.units}
    ops = _ops_of(run, wanted)
    calls: dict[int, list[_Event]] = collections.defaultdict(list)
    for each in run.events:
        if each.args["op"] in ops:
            calls[each.args["call"]].append(each)
    if not calls:
        return None
    by_length = sorted(calls, key=lambda call: _length_us(calls[call]))
    taken = by_length[(len(by_length) - 1) // 2]
    events = calls[taken]
    rows = sorted({run.rows[each.tid] for each in events}, key=_row_order)
    origin_us = events[0].ts
    spans = tuple(
        Span(
            each.ts - origin_us,
            each.dur,
            tuple(Step(name, each.args.get("algorithm")) for name in each.name.split(" + ")),
            None,
            "measured",
            rows.index(run.rows[each.tid]),
            places.get(ops[each.args["op"]]),
        )
        for each in events
    )
    which = f"the median of {len(calls)} calls" if len(calls) > 1 else "one call"
    note = f"{which}, {run.where}"
    return Timeline("measured", tuple(rows), spans, note)


def _ops_of(run: MeasuredRun, wanted: Iterable[str]) -> dict[str, str]:
    """The first op of a run for each wanted node, with the name of that node."""
    held: dict[str, list[str]] = collections.defaultdict(list)
    for each in run.events:
        parts = each.args.get("operations") or each.name.split(" + ")
        held[each.args["op"]] += parts if each.cat != "stage" else ()
    first: dict[str, str] = {}
    for op, parts in held.items():
        canonical = canonical_names(dict.fromkeys(parts))
        name = next((canonical[part] for part in parts if canonical[part] in wanted), None)
        if name is not None:
            first.setdefault(name, op)
    return {op: name for name, op in first.items()}


def _length_us(events: Sequence[_Event]) -> float:
    return max(each.end_us for each in events) - events[0].ts


def _row_order(row: str) -> tuple[bool, list[tuple[int, str]]]:
    """Stages first, and lane 10 after lane 9."""
    parts = re.split(r"(\d+)", row)
    return not row.startswith("stages"), [(int(p), "") if p.isdigit() else (0, p) for p in parts]


def _slot_for(span: TimedSpan, slots: list[list[int]]) -> int:
    """The first row in which a span is inside another or overlaps with none.

    Each row lists the ends of the spans that run there, the outermost first. Spans come in the
    order of their beginnings.
    """
    for slot, ends in enumerate(slots):
        while ends and ends[-1] <= span.begin_ns:
            ends.pop()
        if not ends or span.end_ns <= ends[-1]:
            ends.append(span.end_ns)
            return slot
    slots.append([span.end_ns])
    return len(slots) - 1
