"""Timelines of a graph: predicted from its plan, and measured in a run of `tf-interop run --trace`.

A plan has the time of a whole stage, and the times of its convolutions alone, but not the end of
each lane. So a predicted lane is as long as its stage, and shows how long its convolutions take
alone.

The file of a run is a Chrome trace, for ui.perfetto.dev and chrome://tracing: complete events
(`"ph": "X"`, times in µs) on the lanes of stages and on the threads of units.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tf_interop.errors import PlanError
from tf_interop.planning.types import GraphPlan, UnstagedConvolution, ValueSource
from tf_interop.profile.types import ProfiledDevice
from tf_interop.stage import Step
from tf_interop.versioned_file import PathLike, read_file

if TYPE_CHECKING:
    from tf_interop.runtime.kernel_library import TimedSpan

MAIN_ROW = "main stream"
"""TensorFlow's own stream, for everything outside stages."""
_MADE_BY = "tf-interop run"


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Convolutions that occupy one row of a timeline for some time.

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
        """The end, from the beginning of the timeline."""
        return self.start_us + self.duration_us


@dataclasses.dataclass(frozen=True, slots=True)
class Timeline:
    """Spans, by their starts, on the streams of a device.

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


def timelines_of(graph: GraphPlan) -> tuple[Timeline, ...]:
    """The timelines of a graph: one after another and, if it has stages, in stages.

    Empty if no planner made the stages, because their times are then unknown.
    """
    measured = ValueSource.MEASURED.value
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
        prediction = planned.prediction
        if prediction is None or not planned.alone:
            return ()
        for place, (lane, explained) in enumerate(
            zip(planned.stage.lanes, planned.alone, strict=True)
        ):
            took_us, latency_us = explained.fastest_us, prediction.latency_us
            # The algorithm is None if the lane has several steps.
            steps = tuple(Step(name, explained.fastest_algorithm) for name in lane.operations)
            sequence.append(Span(start_us, took_us, steps, took_us, measured, 0, number))
            start_us += took_us
            # The wider convolution of a merged lane was not measured alone.
            busy_us = None if lane.merged else min(explained.alone_us, latency_us)
            source = prediction.source.value
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


@dataclasses.dataclass(frozen=True)
class TraceEvent:
    """An event of a Chrome trace: with `ph` `X` a span in µs, with `M` the name of a row."""

    name: str
    ph: str
    pid: int
    tid: int
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Trace:
    """A Chrome trace."""

    traceEvents: tuple[TraceEvent, ...]  # noqa: N815 (Chrome's name)
    otherData: dict[str, Any]  # noqa: N815 (Chrome's name)
    displayTimeUnit: str = "ns"  # noqa: N815 (Chrome's name)


@dataclasses.dataclass(frozen=True)
class NamedGraph:
    """The names in a program's graph: of its landmarks, in their places, and of its units."""

    convolutions: tuple[str, ...] = ()
    units: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class MeasuredRun:
    """A trace file.

    Attributes:
        where: the machine and the date.
        events: by their starts.
        rows: by thread.
        graphs: the graphs of the program that have stages or units, by fingerprint.
    """

    where: str
    events: tuple[TraceEvent, ...]
    rows: dict[int, str]
    graphs: dict[str, NamedGraph] = dataclasses.field(default_factory=dict)


def trace_of_run(
    spans: Iterable[TimedSpan],
    device: ProfiledDevice,
    made_with: dict[str, str],
    graphs: dict[str, NamedGraph],
) -> Trace:
    """Makes a trace file.

    A stage may begin while another runs. Spans that overlap without nesting are on different rows.
    """
    ordered = sorted(spans, key=lambda each: (each.begin_ns, -each.end_ns))
    slots: dict[str, list[list[int]]] = collections.defaultdict(list)
    rows: dict[str, int] = {}
    events: list[TraceEvent] = []
    for span in ordered:
        name = "stages" if span.row == "stage" else f"{span.row} {span.number}"
        slot = _slot_for(span, slots[name])
        row = f"{name} ({slot + 1})" if slot else name
        args: dict[str, Any] = {"op": span.op, "call": span.call}
        if span.algorithm:
            args["runs" if span.row == "thread" else "algorithm"] = span.algorithm
        shown = span.name
        if span.row == "thread" and not span.name.startswith("images "):
            shown, args["operations"] = span.op, span.name.split()
        # Perfetto treats thread 1 of process 1 as the main thread.
        thread = rows.setdefault(row, 1001 + len(rows))
        start_us = (span.begin_ns - ordered[0].begin_ns) / 1e3
        took_us = (span.end_ns - span.begin_ns) / 1e3
        events.append(TraceEvent(shown, "X", 1, thread, span.row, start_us, took_us, args))
    named = [
        TraceEvent("thread_name", "M", 1, thread, args={"name": row})
        for row, thread in rows.items()
    ]
    where = {"measured on": device.name, "date": device.date}
    return Trace((*named, *events), {"made by": _MADE_BY, "graphs": graphs} | where | made_with)


def load_run(path: PathLike) -> MeasuredRun:
    """Reads a trace of `tf-interop run --trace`.

    Raises:
        PlanError: the file cannot be read, or is not such a trace.
    """
    content = read_file(path, "trace", PlanError)
    try:
        trace = msgspec.json.decode(content, type=Trace)
        made = trace.otherData
        if made.get("made by") != _MADE_BY:
            raise ValueError(f"{made.get('made by', 'another program')} made it")
        where = f"{made['measured on']}, {made['date']}"
        graphs = msgspec.convert(made["graphs"], dict[str, NamedGraph])
    except (ValueError, KeyError) as error:
        raise PlanError(
            f"'{path}' is not a trace from 'tf-interop run --trace': {error}. Run the program with "
            "--trace, and pass that file."
        ) from error
    rows = {each.tid: str(each.args["name"]) for each in trace.traceEvents if each.ph == "M"}
    events = (each for each in trace.traceEvents if each.ph == "X" and "op" in each.args)
    return MeasuredRun(where, tuple(sorted(events, key=lambda each: each.ts)), rows, graphs)


def timeline_of_run(run: MeasuredRun, graph: GraphPlan) -> Timeline | None:
    """The timeline of a median call of a graph's stages or units; None if the run has none.

    A program may make a graph twice, for example for training and for validation. Only the first op
    for each stage or unit of the plan counts.
    """
    here = run.graphs.get(graph.fingerprint, NamedGraph(graph.structure.names))
    planned = dict(zip(here.convolutions, graph.structure.names, strict=False))
    places = {name: n for n, each in enumerate(graph.stages) for name in each.nodes}
    ops = _ops_of(run, here, planned, places)
    calls: dict[int, list[TraceEvent]] = collections.defaultdict(list)
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

    def names_of(event: TraceEvent) -> list[str]:
        # A unit has the name of its first convolution, not of its last operation.
        if event.name == event.args["op"] and event.cat != "stage":
            return [ops[event.name]]
        return [planned.get(name, name) for name in event.name.split(" + ")]

    spans = tuple(
        Span(
            each.ts - origin_us,
            each.dur,
            tuple(Step(name, each.args.get("algorithm")) for name in names_of(each)),
            None,
            "measured",
            rows.index(run.rows[each.tid]),
            places.get(ops[each.args["op"]]),
        )
        for each in events
    )
    which = f"the median of {len(calls)} calls" if len(calls) > 1 else "one call"
    note = f"{which}, {run.where}"
    return Timeline("in a run", tuple(rows), spans, note)


def _ops_of(
    run: MeasuredRun, here: NamedGraph, planned: Mapping[str, str], staged: Collection[str]
) -> dict[str, str]:
    """The ops of a graph in a run: its units, and the first op for each staged convolution.

    Each has a name of the plan's: that of its first convolution, if it has one.
    """
    held: dict[str, list[str]] = collections.defaultdict(list)
    for each in run.events:
        parts = each.args.get("operations") or each.name.split(" + ")
        held[each.args["op"]] += parts if each.cat != "stage" else ()
    ops: dict[str, str] = {}
    for op, parts in held.items():
        name = next((planned[part] for part in parts if part in planned), op)
        if op in here.units or (name in staged and name not in ops.values()):
            ops[op] = name
    return ops


def _length_us(events: Sequence[TraceEvent]) -> float:
    return max(each.ts + each.dur for each in events) - events[0].ts


def _row_order(row: str) -> tuple[bool, list[tuple[int, str]]]:
    """Stages first, and lane 10 after lane 9."""
    parts = re.split(r"(\d+)", row)
    return not row.startswith("stages"), [(int(p), "") if p.isdigit() else (0, p) for p in parts]


def _slot_for(span: TimedSpan, slots: list[list[int]]) -> int:
    """The first row in which a span is inside another or overlaps none.

    Each row lists the ends of the spans that run there, the outermost first. Spans come in the
    order of their starts.
    """
    for slot, ends in enumerate(slots):
        while ends and ends[-1] <= span.begin_ns:
            ends.pop()
        if not ends or span.end_ns <= ends[-1]:
            ends.append(span.end_ns)
            return slot
    slots.append([span.end_ns])
    return len(slots) - 1
