"""The predicted timelines of a plan."""

from __future__ import annotations

import itertools

import pytest
from planning_values import make_problem
from report_values import planned_graph

from tf_interop.planning.explain import explain_plan
from tf_interop.planning.make import make_plan
from tf_interop.planning.types import GraphPlan
from tf_interop.report.page import ShownGraph
from tf_interop.report.timeline import Timeline


def timelines(graph: GraphPlan) -> tuple[Timeline, ...]:
    return ShownGraph(graph, "measured").timelines


def nodes_of(timeline: Timeline) -> list[str]:
    return sorted(step.operation for span in timeline.spans for step in span.steps)


def test_both_take_the_plans_times_without_gaps_or_overlaps() -> None:
    graph = planned_graph()
    sequence, in_stages = timelines(graph)
    assert sequence.total_us == pytest.approx(graph.prediction.sequential_us)
    assert in_stages.total_us == pytest.approx(graph.prediction.latency_us)
    assert in_stages.rows == ("main stream", "lane 0", "lane 1", "lane 2")
    for before, after in itertools.pairwise(sequence.spans):
        assert after.start_us == pytest.approx(before.end_us)
    for timeline in (sequence, in_stages):
        assert nodes_of(timeline) == sorted(graph.planned_nodes)
    # With the algorithm that is fastest alone, not the pinned one.
    [span] = [span for span in sequence.spans if span.steps[0].operation == "a_reduce"]
    assert (span.steps[0].algorithm, span.duration_us) == ("IMPLICIT_PRECOMP_GEMM", 34.0)
    now_us = 0.0
    for _, group in itertools.groupby(
        in_stages.spans, key=lambda span: span.steps if span.stage is None else span.stage
    ):
        spans = list(group)
        assert {span.start_us for span in spans} == {now_us}
        assert len({span.end_us for span in spans}) == 1
        now_us = spans[0].end_us


def test_steps_of_one_lane_are_one_span_with_the_sum_of_their_times() -> None:
    problem = make_problem({"a": "", "b": "a", "c": ""}, dict.fromkeys("abc", 10.0), {"a>b c": 21})
    sequence, in_stages = timelines(explain_plan(problem, make_plan(problem)))
    for timeline, duration_us in ((sequence, 20.0), (in_stages, 21.0)):
        [span] = [span for span in timeline.spans if span.steps[0].operation == "a"]
        assert [step.operation for step in span.steps] == ["a", "b"]
        assert (span.duration_us, span.busy_us) == (duration_us, 20.0)
