"""The legality check: the stages that it accepts, and the reasons for its refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from planning_graphs import CONFIGURATION, INCEPTION, make_graph, make_lanes, make_stage

from tf_interop.errors import PlanError
from tf_interop.planning.check import check_stages
from tf_interop.planning.types import PlannedStage
from tf_interop.stage import Lane, Schedule, Stage, Step

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
RING = {**dict.fromkeys("ace", "Conv2D"), "d": "Conv2D a", "f": "Conv2D c", "b": "Conv2D e"}
WIDER = dataclasses.replace(CONFIGURATION, filter_shape=(3, 3, 16, 8), output_shape=(8, 28, 28, 8))
STRIDED = dataclasses.replace(CONFIGURATION, strides=(2, 2))


def stages_of(text: str) -> list[PlannedStage]:
    """Stages such as `a b, c; d, e`: the first runs c beside a and then b."""
    return [make_stage(*stage.split(", ")) for stage in filter(None, text.split("; "))]


def check(nodes: dict[str, str], stages: str | PlannedStage, **of_nodes: Any) -> None:
    view, convolutions = make_graph(nodes, **of_nodes)
    check_stages(stages_of(stages) if isinstance(stages, str) else [stages], view, convolutions)


TAKEN: dict[str, Any] = {
    "none": (INCEPTION, ""),
    "both_levels": (INCEPTION, "3x3, 5x5; 1x1, 3x3_reduce 5x5_reduce, pool_proj"),
    "unequal_depths_where_nothing_depends": (INCEPTION, "3x3, 5x5_reduce; 1x1, 5x5"),
    "one": (INCEPTION, "3x3"),
    "algorithm": (INCEPTION, "1x1:IMPLICIT_PRECOMP_GEMM"),
    "lane_options": (
        INCEPTION,
        PlannedStage(Stage((Lane((Step("1x1"),), -1), Lane((Step("3x3_reduce"),))))),
    ),
    "chain_in_a_lane": (CHAIN, "a b c, apart"),
    "chain_with_another_between": (CHAIN, "a apart b"),
    "control_in_a_lane": ({**CHAIN, "b": "Conv2D ^a"}, "a b"),
    "one_of_two_that_would_wait": (CROSSED, "a, b"),
    "of_one_iteration": (LOOP, "a, b"),
    "merged_of_one_image": (INCEPTION, "+1x1 3x3_reduce 5x5_reduce, pool_proj"),
    "merged_with_one_algorithm": (INCEPTION, "+1x1:GEMM 3x3_reduce:GEMM 5x5_reduce:GEMM"),
}


@pytest.mark.parametrize(("nodes", "stages"), TAKEN.values(), ids=TAKEN)
def test_takes(nodes: dict[str, str], stages: str | PlannedStage) -> None:
    check(nodes, stages, configurations={"5x5_reduce": WIDER})


REFUSED: dict[str, Any] = {
    "reader_on_another_lane": (
        INCEPTION, "5x5; 3x3_reduce, 1x1, 3x3", "Stage 1.*'3x3'.*'3x3_reduce'",
    ),
    "reader_before": (CHAIN, "b a", "Stage 0.*'b'.*'a'"),
    "end_of_a_chain_apart": (CHAIN, "a b, c", "Stage 0.*'c'"),
    "through_other_nodes": (PATH, "a b", "'x' -> 'c' -> 'y'"),
    "through_control_edges": (
        {"a": "Conv2D", "x": "NoOp ^a", "b": "Conv2D ^x"}, "a, b", "'x'.*stage 0",
    ),
    "iteration": (LOOP | {"b": "Conv2D a"}, "a, b", "'b'.*'a'"),
    "control_edge_out_of_a_next_iteration": (
        LOOP | {"b": "Conv2D merge ^next", "sum": "AddV2 a a"}, "a, b",
        "'next'.*stage 0",
    ),
    "two_stages_that_wait_for_each_other": (
        CROSSED, "a, b; c, d",
        "stage 1 -> stage 0",
    ),
    "three_stages_in_a_ring": (RING, "a, b; c, d; e, f", "(stage [012].*){4}"),
    "not_in_the_graph": (INCEPTION, "1x1, 3x3; 7x7, 5x5", "Stage 1 names '7x7'"),
    "no_convolution": (INCEPTION, "pool", "Stage 0 names 'pool'"),
    "twice": (INCEPTION, "1x1, 3x3; 5x5 1x1", "'1x1' is in stage 0 and in stage 1"),
    "no_lane": (INCEPTION, PlannedStage(Stage(())), "stage 0"),
    "algorithm": (INCEPTION, "1x1:ALGO_3", "ALGO_3.*'1x1'"),
    "merged_of_two_images": (
        INCEPTION | {"beside": "Conv2D pool"}, "+1x1 pool_proj, 3x3_reduce",
        "merged lane of stage 0.*1x1, pool_proj",
    ),
    "merged_of_two_outputs_of_one_node": (
        INCEPTION | {"3x3_reduce": "Conv2D input:1"}, "+1x1 3x3_reduce", "merged",
    ),
    "merged_of_other_strides": (INCEPTION, "+1x1 5x5_reduce", "merged"),
    **{
        f"schedule_{lanes}": (
            CHAIN,
            PlannedStage(make_lanes("a b"), schedules=(Schedule(8, make_lanes(*lanes)),)),
            place,
        )
        for lanes, place in {
            ("a b c",): "schedules", ("a:NONSENSE", "b"): "NONSENSE", ("+a b",): "merged",
            ("b a",): "'b'.*'a'",
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "stages", "place"), REFUSED.values(), ids=REFUSED)
def test_refuses(nodes: dict[str, str], stages: str | PlannedStage, place: str) -> None:
    with pytest.raises(PlanError, match=place):
        check(nodes, stages, configurations={"5x5_reduce": STRIDED})


@pytest.mark.parametrize(("what", "values"), [("device", "devices"), ("region", "regions")])
def test_refuses_two_devices_and_two_regions(what: str, values: str) -> None:
    reason = f"stage 0 need one (control-flow )?{what}, but '1x1' has '' and '3x3' has 'other'"
    with pytest.raises(PlanError, match=reason):
        check(INCEPTION, "1x1, 3x3", **{values: {"3x3": "other"}})
