"""When what runs, as a plan has it."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from report_values import EVIL_NAME, network_plan, plan_without_figures, planned_graph

from tf_interop.plan.problem import FigureSource
from tf_interop.plan.types import GraphPlan
from tf_interop.report.timeline import has_times, planned_timeline, sequential_timeline


def _convolutions(graph: GraphPlan) -> set[str]:
    staged = {each.node for stage in graph.stages for each in stage.convolutions}
    return staged | {each.node for each in graph.alone}


def test_one_after_another_takes_what_the_plan_says_with_no_gap_and_no_overlap() -> None:
    graph = planned_graph()
    timeline = sequential_timeline(graph)
    assert graph.prediction is not None
    assert timeline.total_us == pytest.approx(graph.prediction.sequential_us)
    assert {span.row for span in timeline.spans} == {0}
    assert timeline.spans[0].start_us == 0
    for before, after in itertools.pairwise(timeline.spans):
        assert after.start_us == pytest.approx(before.end_us)
    assert {each.node for span in timeline.spans for each in span.convolutions} == _convolutions(
        graph
    )
    assert {span.source for span in timeline.spans} == {FigureSource.MEASURED}


def test_one_after_another_has_the_algorithm_that_is_fastest_alone_and_not_the_pinned_one() -> None:
    [pinned] = [each for each in planned_graph().stages[0].convolutions if each.node == "a_reduce"]
    assert pinned.algorithm == "FFT_TILING"
    [span] = [
        span
        for span in sequential_timeline(planned_graph()).spans
        if span.convolutions[0].node == "a_reduce"
    ]
    assert span.convolutions[0].algorithm == "IMPLICIT_PRECOMP_GEMM"
    assert span.duration_us == 34.0


def test_lanes_of_a_stage_begin_together_and_what_follows_waits_for_all() -> None:
    graph = planned_graph()
    timeline = planned_timeline(graph)
    assert graph.prediction is not None
    assert timeline.total_us == pytest.approx(graph.prediction.latency_us)
    assert timeline.rows == ("main stream", "lane 0", "lane 1", "lane 2")
    assert {each.node for span in timeline.spans for each in span.convolutions} == _convolutions(
        graph
    )
    now_us = 0.0
    for _, group in itertools.groupby(
        timeline.spans, key=lambda span: span.convolutions if span.stage is None else span.stage
    ):
        spans = list(group)
        assert {span.start_us for span in spans} == {now_us}
        assert len({span.end_us for span in spans}) == 1
        now_us = spans[0].end_us


def test_a_lane_is_busy_for_what_it_takes_alone() -> None:
    graph = planned_graph()
    for span in planned_timeline(graph).spans:
        if span.stage is None or span.lane is None:
            assert span.row == 0 and span.busy_us == span.duration_us
            continue
        stage = graph.stages[span.stage]
        assert stage.explanation is not None and stage.prediction is not None
        assert span.row == 1 + span.lane
        assert span.duration_us == stage.prediction.latency_us
        assert span.source is stage.prediction.source
        assert span.busy_us == min(stage.explanation.lanes[span.lane].alone_us, span.duration_us)
    assert EVIL_NAME in {each.node for each in graph.stages[1].convolutions}


def test_without_reasons_a_stage_is_one_span_of_its_sequence() -> None:
    graph = planned_graph()
    stages = tuple(dataclasses.replace(stage, explanation=None) for stage in graph.stages)
    graph = dataclasses.replace(graph, stages=stages)
    assert graph.prediction is not None
    timeline = sequential_timeline(graph)
    assert timeline.total_us == pytest.approx(graph.prediction.sequential_us)
    assert [span.stage for span in timeline.spans] == [None, 0, None, 1, None]
    assert all(
        span.busy_us is None for span in planned_timeline(graph).spans if span.stage is not None
    )


def test_stages_that_no_planner_made_have_no_times() -> None:
    assert has_times(network_plan().graphs[0])
    assert not has_times(plan_without_figures().graphs[0])
    assert not has_times(GraphPlan("f", 0, ()))
