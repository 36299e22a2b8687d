"""Timelines that a plan predicts, and timelines of a run."""

from __future__ import annotations

import itertools
import pathlib

import msgspec
import pytest
from planning_values import make_problem
from profile_values import CPU
from report_values import EVIL_NAME, FINGERPRINT, labels_of, page_of, planned_graph, tuned_graph

from tf_interop.errors import PlanError
from tf_interop.planning.explain import explain_plan
from tf_interop.planning.make import make_plan
from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.report.page import ShownGraph, render_page
from tf_interop.report.timeline import (
    MeasuredRun,
    NamedGraph,
    Timeline,
    load_run,
    timeline_of_run,
    trace_of_run,
)
from tf_interop.runtime.kernel_library import TimedSpan
from tf_interop.stage import Step

GRAPH = planned_graph()
# The nodes of the two stages.
FIRST, SECOND = (stage.nodes for stage in GRAPH.stages)
# Program and plan have other names for the same convolutions.
SCOPE = "net_1/"
IN_PROGRAM = {
    FINGERPRINT: NamedGraph(tuple(SCOPE + name for name in GRAPH.structure.names), ("a_unit",))
}


def timelines(graph: GraphPlan) -> tuple[Timeline, ...]:
    return ShownGraph(graph, "measured").timelines


def test_both_take_the_plans_times_without_gaps_or_overlaps() -> None:
    sequence, in_stages = timelines(planned_graph())
    assert [(span.stage, span.start_us, span.end_us) for span in sequence.spans] == [
        (None, 0, 20), (0, 20, 47), (0, 47, 81), (None, 81, 122),
        (1, 122, 184), (1, 184, 239), (1, 239, 287), (None, 287, 356),
    ]  # fmt: skip
    # With the algorithm that is fastest alone, not the pinned one.
    assert sequence.spans[2].steps == (Step("a_reduce", "IMPLICIT_PRECOMP_GEMM"),)
    assert in_stages.rows == ("main stream", "lane 0", "lane 1", "lane 2")
    assert [
        (span.steps[0].operation, span.row, span.stage, span.start_us, span.end_us, span.busy_us)
        for span in in_stages.spans
    ] == [
        ("stem", 0, None, 0, 20, 20),
        ("a_1x1", 1, 0, 20, 50, 27),
        # Alone it takes 38 µs, longer than the stage.
        ("a_reduce", 2, 0, 20, 50, 30),
        ("a_5x5", 0, None, 50, 91, 41),
        ("b_5x5", 1, 1, 91, 153, 62),
        ("b_3x3", 2, 1, 91, 153, 55),
        (EVIL_NAME, 3, 1, 91, 153, 48),
        ("tail", 0, None, 153, 222, 69),
    ]
    assert in_stages.spans[2].steps == (Step("a_reduce", "FFT_TILING"),)


def test_steps_of_one_lane_are_one_span_with_the_sum_of_their_times() -> None:
    problem = make_problem({"a": "", "b": "a", "c": ""}, dict.fromkeys("abc", 10.0), {"a>b c": 21})
    sequence, in_stages = timelines(explain_plan(problem, make_plan(problem)))
    for timeline, duration_us in ((sequence, 20.0), (in_stages, 21.0)):
        [span] = [span for span in timeline.spans if span.steps[0].operation == "a"]
        assert [step.operation for step in span.steps] == ["a", "b"]
        assert (span.duration_us, span.busy_us) == (duration_us, 20.0)


def stage(
    op: str, nodes: tuple[str, ...], call: int, begin_us: int, took_us: int, scope: str = SCOPE
) -> list[TimedSpan]:
    """A stage whose lanes start one after another and end together."""
    begin, end = begin_us * 1000, (begin_us + took_us) * 1000
    lanes = [
        TimedSpan("lane", lane, op, call, scope + name, "FFT", begin + 1000 * lane, end)
        for lane, name in enumerate(nodes)
    ]
    return [*lanes, TimedSpan("stage", 0, op, call, op, "", begin, end)]


def unit(op: str, steps: str, thread: int, call: int, begin_us: int, took_us: int) -> TimedSpan:
    begin, end = begin_us * 1000, (begin_us + took_us) * 1000
    return TimedSpan("thread", thread, op, call, steps, "", begin, end)


def run_of(
    spans: list[TimedSpan],
    folder: pathlib.Path,
    graphs: dict[str, NamedGraph] = IN_PROGRAM,
) -> MeasuredRun:
    path = folder / "trace.json"
    trace = trace_of_run(spans, CPU, {"tensorflow": "2.21.0"}, graphs)
    path.write_bytes(msgspec.json.encode(trace))
    return load_run(path)


def of_calls(*took_us: int, scope: str = SCOPE) -> list[TimedSpan]:
    """Calls of both stages with these times for each stage."""
    spans = []
    for call, us in enumerate(took_us, 1):
        spans += stage("s0", FIRST, call, 10_000 * call, us, scope)
        spans += stage("s1", SECOND, call, 10_000 * call + us + 5, us, scope)
    return spans


@pytest.mark.parametrize(
    ("scope", "graphs"), [(SCOPE, IN_PROGRAM), ("", {})], ids=["same_network", "similar_network"]
)
def test_takes_the_median_call(
    scope: str, graphs: dict[str, NamedGraph], tmp_path: pathlib.Path
) -> None:
    spans = of_calls(100, 900, 300, 500, 200, scope=scope)
    measured = timeline_of_run(run_of(spans, tmp_path, graphs), GRAPH)
    assert measured.total_us == pytest.approx(605)
    assert measured.note == f"the median of 5 calls, {CPU.name}, {CPU.date}"
    assert measured.rows == ("stages", *(f"lane {n}" for n in range(max(len(FIRST), len(SECOND)))))
    drawn = {(each.row, each.stage, each.start_us) for each in measured.spans}
    assert drawn == {
        *((0, n, n * 305.0) for n in range(2)),
        *((1 + lane, 0, float(lane)) for lane in range(len(FIRST))),
        *((1 + lane, 1, 305.0 + lane) for lane in range(len(SECOND))),
    }
    lane = next(each for each in measured.spans if each.row == 1)
    assert (lane.steps[0].operation, lane.steps[0].algorithm) == (FIRST[0], "FFT")


def test_takes_the_first_of_a_graphs_copies(tmp_path: pathlib.Path) -> None:
    again = [*stage("v0", FIRST, 1, 500_000, 7), *stage("v1", SECOND, 1, 500_010, 7)]
    measured = timeline_of_run(run_of([*of_calls(100), *again], tmp_path), GRAPH)
    assert measured.total_us == pytest.approx(205)


def test_overlapping_stages_have_rows_of_their_own(tmp_path: pathlib.Path) -> None:
    spans = [*stage("s0", FIRST, 1, 0, 100), *stage("s1", SECOND, 1, 50, 100)]
    measured = timeline_of_run(run_of(spans, tmp_path), GRAPH)
    assert {"stages", "stages (2)", "lane 0", "lane 0 (2)"} <= set(measured.rows)
    for row in range(len(measured.rows)):
        its = [each for each in measured.spans if each.row == row]
        for before, after in itertools.pairwise(its):
            assert before.end_us <= after.start_us


def test_finds_units_by_their_operations_and_draws_them_on_threads(tmp_path: pathlib.Path) -> None:
    assert tuned_graph().structure.names == ("net/stem", EVIL_NAME, "net/right")
    spans = [
        unit("a_last_node", "net_1/before conv_1", 10, 1, 0, 30),
        unit("net_1/mul", "net_1/sub net_1/mul", 10, 1, 31, 5),
        unit("net_1/add", "conv_2 net_1/add", 9, 1, 10, 50),
        unit("net_1/add", "images 0 to 3", 9, 1, 12, 40),
        unit("other", "other_net/conv", 1, 1, 0, 900),
    ]
    names = NamedGraph(("conv", "conv_1", "conv_2"), ("net_1/add", "net_1/mul", "a_last_node"))
    run = run_of(spans, tmp_path, {FINGERPRINT: names})
    measured = timeline_of_run(run, tuned_graph())
    assert measured.rows == ("thread 9", "thread 10")
    assert measured.total_us == 60.0
    assert {each.stage for each in measured.spans} == {None}
    assert {(each.row, each.steps[0].operation) for each in measured.spans} == {
        (0, "net/right"), (0, "images 0 to 3"), (1, EVIL_NAME), (1, "net_1/mul"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("graph", "spans"),
    [(GRAPH, of_calls(100)), (tuned_graph(), [unit("a_unit", "net/right", 0, 1, 0, 40)])],
)
def test_a_page_shows_the_run_and_the_machine(
    graph: GraphPlan, spans: list[TimedSpan], tmp_path: pathlib.Path
) -> None:
    plan, run = Plan((graph,)), run_of(spans, tmp_path)
    page = page_of(plan, run=run)
    [head] = [each for each in page.of_tag("h4") if each.words.startswith("In a run: ")]
    assert f"one call, {CPU.name}, {CPU.date}" in head.words
    assert "sum of" not in head.words and labels_of(head) == ["measured"]
    assert len(page.of_class("timeline")) == 1 + len(graph.stages)
    # The verdict comes first.
    shown = page.of_class("graph")[0].words
    assert 0 < shown.index(page.of_class("verdict")[0].words) < shown.index("Timeline")
    other = run_of([unit("other", "other", 0, 1, 0, 1)], tmp_path)
    with pytest.raises(PlanError, match="tf-interop run --plan"):
        render_page(plan, title="Title", run=other)


@pytest.mark.parametrize("content", ["{", "[]", '{"traceEvents": [], "otherData": {}}'])
def test_refuses_other_files(content: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "trace.json").write_text(content)
    with pytest.raises(
        PlanError, match=r"trace\.json' is not a trace from 'tf-interop run --trace'"
    ):
        load_run(tmp_path / "trace.json")
