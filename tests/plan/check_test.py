"""The legality check of stages: hand-made cases, then random ones against a matrix closure."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_graphs import CONFIGURATION, INCEPTION, make_graph, make_stage

from tf_interop.convolution import ConvolutionKind
from tf_interop.errors import GraphError, PlanError
from tf_interop.plan.check import check_stages
from tf_interop.plan.types import LaneOptions, PinnedConvolution, PlannedStage


def _refusal(nodes: dict[str, str], *stages: PlannedStage, **keywords: Any) -> str:
    view, convolutions = make_graph(nodes, **keywords)
    with pytest.raises(PlanError) as raised:
        check_stages(stages, view, convolutions)
    return str(raised.value)


def _check(nodes: dict[str, str], *stages: PlannedStage) -> None:
    view, convolutions = make_graph(nodes)
    check_stages(stages, view, convolutions)


def test_takes_no_stage() -> None:
    _check(INCEPTION)


def test_takes_both_levels_of_a_module() -> None:
    _check(
        INCEPTION, make_stage("3x3", "5x5"), make_stage("1x1", "3x3_reduce 5x5_reduce", "pool_proj")
    )


def test_takes_unequal_depths_where_nothing_depends() -> None:
    _check(INCEPTION, make_stage("3x3", "5x5_reduce"), make_stage("1x1", "5x5"))


def test_takes_a_stage_of_one_and_leaves_others_alone() -> None:
    _check(INCEPTION, make_stage("3x3"))


def test_takes_a_pinned_algorithm_of_the_kind() -> None:
    _check(INCEPTION, PlannedStage(((PinnedConvolution("1x1", "IMPLICIT_PRECOMP_GEMM"),),)))


def test_takes_options_of_every_lane() -> None:
    stage = make_stage("1x1", "3x3_reduce")
    options = (LaneOptions(-1, 64), LaneOptions())
    _check(INCEPTION, dataclasses.replace(stage, lane_options=options))


def _merged(*lanes: str, algorithm: str | None = None) -> PlannedStage:
    """A stage whose first lane is merged."""
    stage = make_stage(*lanes)
    options = [LaneOptions(merged=not lane) for lane in range(len(lanes))]
    first = tuple(PinnedConvolution(pinned.node, algorithm) for pinned in stage.lanes[0])
    return dataclasses.replace(stage, lanes=(first, *stage.lanes[1:]), lane_options=tuple(options))


def test_takes_a_merged_lane_of_filters_of_one_image() -> None:
    configurations = {
        "5x5_reduce": dataclasses.replace(
            CONFIGURATION, filter_shape=(3, 3, 16, 8), output_shape=(8, 28, 28, 8)
        )
    }
    view, convolutions = make_graph(INCEPTION, configurations=configurations)
    for algorithm in (None, "IMPLICIT_GEMM"):
        stage = _merged("1x1 3x3_reduce 5x5_reduce", "pool_proj", algorithm=algorithm)
        check_stages((stage,), view, convolutions)


def test_refuses_a_merged_lane_of_different_images() -> None:
    message = _refusal(INCEPTION, _merged("1x1 pool_proj", "3x3_reduce"))
    assert "stage 0, got '1x1' and 'pool_proj', which read different images" in message
    # Other outputs of one node are other images.
    nodes = INCEPTION | {"3x3_reduce": "Conv2D input:1"}
    message = _refusal(nodes, _merged("1x1 3x3_reduce"))
    assert "'1x1' and '3x3_reduce', which read different images" in message


def test_refuses_a_merged_lane_of_one_convolution() -> None:
    assert "two or more convolutions in a merged lane, got '1x1'" in _refusal(
        INCEPTION, _merged("1x1", "3x3_reduce")
    )


def test_refuses_a_merged_lane_of_two_algorithms() -> None:
    lane = (PinnedConvolution("1x1", "GEMM"), PinnedConvolution("3x3_reduce"))
    stage = PlannedStage((lane,), lane_options=(LaneOptions(merged=True),))
    assert "pin algorithms GEMM and None" in _refusal(INCEPTION, stage)


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"filter_shape": (1, 1, 16, 32)}, "have filters of shape (3, 3, 16, 32) and (1, 1,"),
        ({"filter_shape": None}, "have filters of shape (3, 3, 16, 32) and None"),
        ({"strides": (2, 2)}, "differ in more than their filters"),
        ({"dilations": (2, 2)}, "differ in more than their filters"),
        ({"padding": "VALID"}, "differ in more than their filters"),
        ({"dtype": "float16"}, "differ in more than their filters"),
        ({"layout": "NCHW"}, "differ in more than their filters"),
        ({"op": "_FusedConv2D", "fused_ops": ("BiasAdd",)}, "differ in more than their filters"),
        ({"group_count": 2}, "not both forward convolutions without groups"),
        ({"depthwise": True}, "not both forward convolutions without groups"),
        ({"kind": ConvolutionKind.BACKWARD_FILTER}, "not both forward convolutions"),
    ],
)
def test_refuses_a_merged_lane_of_convolutions_that_differ(
    changes: dict[str, Any], difference: str
) -> None:
    other = dataclasses.replace(CONFIGURATION, **changes)
    message = _refusal(INCEPTION, _merged("1x1 3x3_reduce"), configurations={"3x3_reduce": other})
    assert difference in message


def test_refuses_a_name_that_is_not_in_the_graph() -> None:
    message = _refusal(INCEPTION, make_stage("1x1", "3x3"), make_stage("7x7", "5x5"))
    assert "names of convolutions that can be part of a stage, got '7x7' in stage 1" in message


def test_refuses_a_node_that_is_no_convolution() -> None:
    assert "got 'pool' in stage 0" in _refusal(INCEPTION, make_stage("pool"))


def test_refuses_a_convolution_that_was_left_out() -> None:
    view, convolutions = make_graph(INCEPTION)
    with pytest.raises(PlanError, match="can be part of a stage, got '1x1' in stage 0"):
        check_stages([make_stage("1x1")], view, convolutions[1:])


def test_refuses_a_node_twice() -> None:
    message = _refusal(INCEPTION, make_stage("1x1", "3x3"), make_stage("5x5 1x1"))
    assert "each convolution once, got '1x1' in stage 0 and in stage 1" in message
    message = _refusal(INCEPTION, make_stage("1x1", "1x1"))
    assert "each convolution once, got '1x1' in stage 0 and in stage 0" in message


def test_refuses_a_stage_without_lane() -> None:
    message = _refusal(INCEPTION, make_stage("1x1"), PlannedStage(()))
    assert "Expected a lane in stage 1, got none" in message


def test_refuses_a_lane_without_convolution() -> None:
    message = _refusal(INCEPTION, make_stage("1x1", ""))
    assert "in every lane of stage 0, got none in lane 1" in message


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((LaneOptions(),), "options for none or all of 2 lanes, got 1 in stage 1"),
        ((LaneOptions(), LaneOptions(0, -8)), "SM count from 0 to 2147483647, got -8 in stage 1"),
        ((LaneOptions(-(2**40)), LaneOptions()), f"got {-(2**40)} in stage 1"),
    ],
)
def test_refuses_options_that_are_not_those_of_the_lanes(
    options: tuple[LaneOptions, ...], reason: str
) -> None:
    stage = dataclasses.replace(make_stage("1x1", "3x3_reduce"), lane_options=options)
    assert reason in _refusal(INCEPTION, make_stage("pool_proj"), stage)


def test_refuses_an_algorithm_of_another_kind() -> None:
    message = _refusal(INCEPTION, PlannedStage(((PinnedConvolution("1x1", "ALGO_3"),),)))
    assert "got 'ALGO_3' for '1x1' in stage 0" in message


def test_refuses_two_devices() -> None:
    message = _refusal(
        INCEPTION, make_stage("1x1", "3x3"), devices={"1x1": "/gpu:0", "3x3": "/gpu:1"}
    )
    assert "one device in stage 0, got '/gpu:0' for '1x1' and '/gpu:1' for '3x3'" in message


def test_refuses_two_regions() -> None:
    message = _refusal(INCEPTION, make_stage("1x1", "3x3"), regions={"3x3": "loop"})
    assert "one control-flow region in stage 0, got '' for '1x1' and 'loop' for '3x3'" in message


def test_refuses_a_convolution_and_its_reader() -> None:
    assert (
        "independent convolutions in stage 1, got '3x3' that depends on '3x3_reduce': "
        "'3x3_reduce' -> '3x3'. "
    ) in _refusal(INCEPTION, make_stage("5x5"), make_stage("3x3_reduce", "1x1", "3x3"))


def test_refuses_dependent_convolutions_in_one_lane() -> None:
    message = _refusal(INCEPTION, make_stage("3x3_reduce 3x3"))
    assert "independent convolutions in stage 0, got '3x3' that depends on '3x3_reduce'" in message


def test_refuses_a_dependency_through_other_nodes() -> None:
    nodes = {"a": "Conv2D", "x": "Relu a", "c": "Conv2D x", "y": "Relu c:0", "b": "Conv2D y"}
    message = _refusal(nodes, make_stage("b", "a"))
    assert "got 'b' that depends on 'a': 'a' -> 'x' -> 'c' -> 'y' -> 'b'" in message


def test_refuses_a_dependency_through_control_edges() -> None:
    nodes = {"a": "Conv2D", "x": "NoOp ^a", "b": "Conv2D ^x"}
    message = _refusal(nodes, make_stage("a", "b"))
    assert "got 'b' that depends on 'a': 'a' -> 'x' -> 'b'" in message


def test_shortens_long_paths() -> None:
    nodes = {"n0": "Conv2D"} | {f"n{i}": f"Relu n{i - 1}" for i in range(1, 20)}
    nodes["n20"] = "Conv2D n19"
    message = _refusal(nodes, make_stage("n0", "n20"))
    assert "'n0' -> 'n1' -> 'n2' -> 15 more -> 'n18' -> 'n19' -> 'n20'" in message


def test_refuses_two_stages_that_wait_for_each_other() -> None:
    nodes = {"a": "Conv2D", "c": "Conv2D", "x": "Relu a", "d": "Conv2D x", "b": "Conv2D c"}
    _check(nodes, make_stage("a", "b"))
    _check(nodes, make_stage("c", "d"))
    message = _refusal(nodes, make_stage("a", "b"), make_stage("c", "d"))
    assert "some that wait for each other: " in message
    assert "stage 1 for stage 0 ('a' -> 'x' -> 'd')" in message
    assert "stage 0 for stage 1 ('c' -> 'b')" in message


def test_refuses_three_stages_in_a_ring() -> None:
    nodes = dict.fromkeys("ace", "Conv2D")
    nodes |= {"d": "Conv2D a", "f": "Conv2D c", "b": "Conv2D e"}
    stages = [make_stage("a", "b"), make_stage("c", "d"), make_stage("e", "f")]
    for two in itertools.combinations(stages, 2):
        _check(nodes, *two)
    message = _refusal(nodes, *stages)
    assert message.count(" for stage ") == 3


def test_leaves_a_cycle_of_the_graph_to_the_graph_check() -> None:
    view, convolutions = make_graph({"a": "Conv2D y", "x": "Relu a", "y": "Relu x"})
    with pytest.raises(GraphError, match="without cycles"):
        check_stages([make_stage("a")], view, convolutions)


LOOP = {
    "start": "Enter",
    "merge": "Merge start next",
    "a": "Conv2D merge",
    "b": "Conv2D merge",
    "sum": "AddV2 a b",
    "next": "NextIteration sum",
}


def test_takes_convolutions_of_one_iteration() -> None:
    _check(LOOP, make_stage("a", "b"))


def test_refuses_a_dependency_within_one_iteration() -> None:
    nodes = LOOP | {"b": "Conv2D a"}
    assert "got 'b' that depends on 'a'" in _refusal(nodes, make_stage("a", "b"))


def test_control_edge_out_of_a_next_iteration_holds_up_its_reader() -> None:
    nodes = LOOP | {"b": "Conv2D merge ^next", "sum": "AddV2 a a"}
    assert "got 'b' that depends on 'a': 'a' -> 'sum' -> 'next' -> 'b'" in _refusal(
        nodes, make_stage("a", "b")
    )


@dataclasses.dataclass(frozen=True)
class _Case:
    nodes: dict[str, str]
    stages: tuple[tuple[int, ...], ...]


@st.composite
def cases(draw: st.DrawFn) -> _Case:
    count = draw(st.integers(2, 10))
    sources: list[set[int]] = [
        draw(st.sets(st.integers(0, node - 1), max_size=3)) if node else set()
        for node in range(count)
    ]
    # Of each node: the stage it is in, or none; only then it needs to be a convolution.
    stage_of = draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count))
    place = draw(st.permutations(range(count)))
    controls = draw(st.sets(st.integers(0, count - 1)))
    nodes = {}
    for node in place:
        inputs = [f"^n{each}" if node in controls else f"n{each}" for each in sources[node]]
        nodes[f"n{node}"] = " ".join(["Relu" if stage_of[node] < 0 else "Conv2D", *inputs])
    stages = tuple(
        members
        for stage in range(3)
        if (members := tuple(node for node in place if stage_of[node] == stage))
    )
    return _Case(nodes, stages)


def _is_legal(case: _Case) -> bool:
    """Whether contraction leaves no cycle, by transitive closure of the contracted graph."""
    unit_of = {name: name for name in case.nodes}
    for number, members in enumerate(case.stages):
        unit_of |= {f"n{node}": f"stage {number}" for node in members}
    reaches = {
        (unit_of[source.strip("^")], unit_of[name])
        for name, text in case.nodes.items()
        for source in text.split()[1:]
    }
    units = sorted(set(unit_of.values()))
    for middle, first, last in itertools.product(units, units, units):
        if (first, middle) in reaches and (middle, last) in reaches:
            reaches.add((first, last))
    return not any((unit, unit) in reaches for unit in units)


@settings(max_examples=500)
@given(case=cases())
def test_agrees_with_the_closure(case: _Case) -> None:
    stages = [make_stage(*(f"n{node}" for node in members)) for members in case.stages]
    if _is_legal(case):
        _check(case.nodes, *stages)
    else:
        message = _refusal(case.nodes, *stages)
        assert "depends on" in message or "wait for each other" in message
