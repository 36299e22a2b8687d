"""The legality check of stages: which it takes, and which it refuses for what reason."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from planning_graphs import CONFIGURATION, INCEPTION, make_graph, make_lanes, make_stage

from tf_interop.errors import PlanError
from tf_interop.planning.check import check_stages
from tf_interop.planning.types import BatchSchedule, PlannedStage
from tf_interop.stage import Lane, Stage, Step


def _refusal(nodes: dict[str, str], *stages: PlannedStage, **keywords: Any) -> str:
    view, convolutions = make_graph(nodes, **keywords)
    with pytest.raises(PlanError) as raised:
        check_stages(stages, view, convolutions)
    return str(raised.value)


def _check(nodes: dict[str, str], *stages: PlannedStage, **keywords: Any) -> None:
    view, convolutions = make_graph(nodes, **keywords)
    check_stages(stages, view, convolutions)


CHAIN = {"a": "Conv2D", "b": "Conv2D a", "c": "Conv2D b a", "apart": "Conv2D"}
PATH = {"a": "Conv2D", "x": "Relu a", "c": "Conv2D x", "y": "Relu c:0", "b": "Conv2D y"}
LOOP = {
    "start": "Enter",
    "merge": "Merge start next",
    "a": "Conv2D merge",
    "b": "Conv2D merge",
    "sum": "AddV2 a b",
    "next": "NextIteration sum",
}
CROSSED = {"a": "Conv2D", "c": "Conv2D", "x": "Relu a", "d": "Conv2D x", "b": "Conv2D c"}


@pytest.mark.parametrize(
    ("nodes", "stages"),
    [
        pytest.param(INCEPTION, [], id="none"),
        pytest.param(
            INCEPTION,
            [make_stage("3x3", "5x5"), make_stage("1x1", "3x3_reduce 5x5_reduce", "pool_proj")],
            id="both_levels",
        ),
        pytest.param(
            INCEPTION,
            [make_stage("3x3", "5x5_reduce"), make_stage("1x1", "5x5")],
            id="unequal_depths_where_nothing_depends",
        ),
        pytest.param(INCEPTION, [make_stage("3x3")], id="one"),
        pytest.param(INCEPTION, [make_stage("1x1:IMPLICIT_PRECOMP_GEMM")], id="algorithm"),
        pytest.param(
            INCEPTION,
            [PlannedStage(Stage((Lane((Step("1x1"),), -1, 64), Lane((Step("3x3_reduce"),)))))],
            id="lane_options",
        ),
        pytest.param(CHAIN, [make_stage("a b c", "apart")], id="chain_in_a_lane"),
        pytest.param(CHAIN, [make_stage("a apart b")], id="chain_with_another_between"),
        pytest.param({**CHAIN, "b": "Conv2D ^a"}, [make_stage("a b")], id="control_in_a_lane"),
        pytest.param(CROSSED, [make_stage("a", "b")], id="one_of_two_that_would_wait"),
        pytest.param(LOOP, [make_stage("a", "b")], id="of_one_iteration"),
    ],
)
def test_takes(nodes: dict[str, str], stages: list[PlannedStage]) -> None:
    _check(nodes, *stages)


@pytest.mark.parametrize(
    ("nodes", "stages", "place"),
    [
        pytest.param(
            INCEPTION,
            [make_stage("5x5"), make_stage("3x3_reduce", "1x1", "3x3")],
            "Stage 1.*'3x3'.*'3x3_reduce'",
            id="reader_on_another_lane",
        ),
        pytest.param(CHAIN, [make_stage("b a")], "Stage 0.*'b'.*'a'", id="reader_before"),
        pytest.param(CHAIN, [make_stage("a b", "c")], "Stage 0.*'c'", id="end_of_a_chain_apart"),
        pytest.param(
            PATH, [make_stage("a b")], "'a' -> 'x' -> 'c' -> 'y' -> 'b'", id="through_other_nodes"
        ),
        pytest.param(
            {"a": "Conv2D", "x": "NoOp ^a", "b": "Conv2D ^x"},
            [make_stage("a", "b")],
            "'a' -> 'x' -> 'b'",
            id="through_control_edges",
        ),
        pytest.param(LOOP | {"b": "Conv2D a"}, [make_stage("a", "b")], "'b'.*'a'", id="iteration"),
        pytest.param(
            LOOP | {"b": "Conv2D merge ^next", "sum": "AddV2 a a"},
            [make_stage("a", "b")],
            "'a' -> 'sum' -> 'next' -> 'b'",
            id="control_edge_out_of_a_next_iteration",
        ),
        pytest.param(
            CROSSED,
            [make_stage("a", "b"), make_stage("c", "d")],
            "stage 1 .*stage 0 .*'a' -> 'x' -> 'd'.*'c' -> 'b'|"
            "stage 0 .*stage 1 .*'c' -> 'b'.*'a' -> 'x' -> 'd'",
            id="two_stages_that_wait_for_each_other",
        ),
        pytest.param(
            {**dict.fromkeys("ace", "Conv2D"), "d": "Conv2D a", "f": "Conv2D c", "b": "Conv2D e"},
            [make_stage("a", "b"), make_stage("c", "d"), make_stage("e", "f")],
            "(that waits for stage.*){3}",
            id="three_stages_in_a_ring",
        ),
        pytest.param(
            INCEPTION,
            [make_stage("1x1", "3x3"), make_stage("7x7", "5x5")],
            "Stage 1 names '7x7'",
            id="not_in_the_graph",
        ),
        pytest.param(INCEPTION, [make_stage("pool")], "Stage 0 names 'pool'", id="no_convolution"),
        pytest.param(
            INCEPTION,
            [make_stage("1x1", "3x3"), make_stage("5x5 1x1")],
            "'1x1' is in stage 0 and in stage 1",
            id="twice",
        ),
        pytest.param(
            INCEPTION, [make_stage("1x1"), PlannedStage(Stage(()))], "stage 1", id="no_lane"
        ),
        pytest.param(INCEPTION, [make_stage("1x1:ALGO_3")], "ALGO_3.*'1x1'", id="algorithm"),
        pytest.param(
            INCEPTION,
            [make_stage("+1x1 pool_proj", "3x3_reduce")],
            "merged lane of stage 0.*1x1, pool_proj",
            id="merged_of_two_images",
        ),
        pytest.param(
            INCEPTION | {"3x3_reduce": "Conv2D input:1"},
            [make_stage("+1x1 3x3_reduce")],
            "merged",
            id="merged_of_two_outputs_of_one_node",
        ),
    ],
)
def test_refuses(nodes: dict[str, str], stages: list[PlannedStage], place: str) -> None:
    assert re.search(place, _refusal(nodes, *stages))


@pytest.mark.parametrize(
    ("schedule", "place"),
    [
        (BatchSchedule(8, make_lanes("a b c")), "schedules"),
        (BatchSchedule(8, make_lanes("a:NONSENSE", "b")), "NONSENSE"),
        (BatchSchedule(8, make_lanes("+a b")), "merged"),
        (BatchSchedule(8, make_lanes("b a")), "'b'.*'a'"),
    ],
)
def test_refuses_a_schedule(schedule: BatchSchedule, place: str) -> None:
    stage = dataclasses.replace(make_stage("a b"), schedules=(schedule,))
    assert re.search(place, _refusal(CHAIN, stage))


@pytest.mark.parametrize(("what", "values"), [("device", "devices"), ("region", "regions")])
def test_refuses_two_devices_and_two_regions(what: str, values: str) -> None:
    message = _refusal(INCEPTION, make_stage("1x1", "3x3"), **{values: {"3x3": "other"}})
    assert re.search(
        f"stage 0 need one (control-flow )?{what}, but '1x1' has '' and '3x3' has 'other'", message
    )


def test_takes_a_merged_lane_of_filters_of_one_image() -> None:
    wider = dataclasses.replace(
        CONFIGURATION, filter_shape=(3, 3, 16, 8), output_shape=(8, 28, 28, 8)
    )
    for lane in ("+1x1 3x3_reduce 5x5_reduce", "+1x1:GEMM 3x3_reduce:GEMM 5x5_reduce:GEMM"):
        _check(INCEPTION, make_stage(lane, "pool_proj"), configurations={"5x5_reduce": wider})


def test_refuses_a_merged_lane_of_convolutions_that_differ() -> None:
    other = dataclasses.replace(CONFIGURATION, strides=(2, 2))
    stage = make_stage("+1x1 3x3_reduce")
    assert "merged" in _refusal(INCEPTION, stage, configurations={"3x3_reduce": other})


def test_refuses_a_convolution_that_was_left_out() -> None:
    view, convolutions = make_graph(INCEPTION)
    with pytest.raises(PlanError, match="Stage 0 names '1x1'"):
        check_stages([make_stage("1x1")], view, convolutions[1:])
