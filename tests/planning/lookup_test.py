"""What a plan holds for a graph: which entry is taken, under which names, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest
from planning_graphs import CONFIGURATION, INCEPTION, make_graph, make_stage

from tf_interop.convolution import ConvolutionConfiguration, batch_size_of
from tf_interop.errors import PlanError
from tf_interop.graph.fingerprint import fingerprint_convolutions
from tf_interop.planning.lookup import stages_from_plan
from tf_interop.planning.problem import ValueSource
from tf_interop.planning.types import (
    Alternative,
    BatchSchedule,
    GraphPlan,
    LaneExplanation,
    Plan,
    PlannedStage,
    StageExplanation,
    StagePrediction,
    UnstagedConvolution,
)
from tf_interop.stage import Stage


def _plan_for(nodes: dict[str, str], *stages: PlannedStage) -> GraphPlan:
    _, convolutions = make_graph(nodes)
    return GraphPlan(fingerprint_convolutions(convolutions), len(convolutions), stages)


CHAIN = {"a": "Conv2D", "b": "Conv2D a"}


def test_takes_the_stages_of_the_graph_that_fits() -> None:
    stages = (make_stage("3x3", "5x5"), make_stage("1x1", "pool_proj"))
    plan = Plan((_plan_for(CHAIN, make_stage("a")), _plan_for(INCEPTION, *stages)))
    assert stages_from_plan(plan, make_graph(INCEPTION)[1]) == stages
    assert stages_from_plan(plan, make_graph(CHAIN)[1]) == (make_stage("a"),)


def test_takes_a_plan_of_another_batch_size() -> None:
    plan = Plan((_plan_for(CHAIN, make_stage("a")),))
    larger = dataclasses.replace(
        CONFIGURATION, image_shape=(None, 56, 56, 16), output_shape=(None, 56, 56, 32)
    )
    _, convolutions = make_graph(CHAIN, configurations={"a": larger, "b": larger})
    assert stages_from_plan(plan, convolutions) == (make_stage("a"),)


def _of_batch(size: int | None) -> dict[str, ConvolutionConfiguration]:
    shapes = {"image_shape": (size, 28, 28, 16), "output_shape": (size, 28, 28, 32)}
    return dict.fromkeys(CHAIN, dataclasses.replace(CONFIGURATION, **shapes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch_size", "planned", "taken"),
    [
        pytest.param(8, (1, 8, 32), 8, id="equal"),
        pytest.param(8, (1, None, 8), 8, id="equal_before_one_for_all"),
        pytest.param(9, (8, None, 32), None, id="one_for_all_before_the_nearest"),
        pytest.param(6, (1, 4, 32), 4, id="nearest_by_ratio"),
        pytest.param(20, (8, 32), 32, id="nearest_by_ratio_not_by_difference"),
        pytest.param(4, (2, 8), 8, id="of_two_as_near_the_larger"),
        pytest.param(None, (1, None, 8), None, id="one_for_all_for_an_unknown_one"),
    ],
)
def test_takes_the_entry_of_the_batch_size(
    batch_size: int | None, planned: tuple[int | None, ...], taken: int | None
) -> None:
    def stage(size: int | None) -> PlannedStage:
        return dataclasses.replace(make_stage("a"), why=f"for {size}")

    plan = Plan(
        tuple(
            dataclasses.replace(_plan_for(CHAIN, stage(size)), batch_size=size) for size in planned
        )
    )
    _, convolutions = make_graph(CHAIN, configurations=_of_batch(batch_size))
    [found] = stages_from_plan(plan, convolutions)
    if taken in (None, batch_size):
        assert found.why == f"for {taken}"
    else:
        assert f"of the plan for batch size {taken}, the " in found.why


def test_says_that_it_is_of_another_batch_size_and_expects_nothing() -> None:
    prediction = StagePrediction(20.0, 1.0, 30.0, ValueSource.MEASURED, 0, 0)
    lane = LaneExplanation(15.0, 0, None, 15.0)
    stage = dataclasses.replace(
        make_stage("a"), prediction=prediction, explanation=StageExplanation((lane,))
    )
    plan = Plan((dataclasses.replace(_plan_for(CHAIN, stage), batch_size=8),))

    def found(batch_size: int | None) -> PlannedStage:
        _, convolutions = make_graph(CHAIN, configurations=_of_batch(batch_size))
        [each] = stages_from_plan(plan, convolutions)
        return each

    assert found(8) == stage
    assert found(9) == dataclasses.replace(
        make_stage("a"), why="of the plan for batch size 8, the nearest to 9"
    )


def test_the_batch_size_of_a_graph_is_that_of_most_of_its_convolutions() -> None:
    sizes = [_of_batch(size)["a"] for size in (300, 8, None, 8)]
    assert batch_size_of(sizes) == 8
    assert batch_size_of(sizes[2:3]) is None
    assert batch_size_of([dataclasses.replace(CONFIGURATION, image_shape=None)]) is None


def test_takes_a_plan_of_another_trace_of_the_model() -> None:
    def stage(a: str, b: str) -> PlannedStage:
        made = make_stage(a, b)
        in_sequence = Stage.in_sequence(made.stage.steps)
        lane = LaneExplanation(15.0, 0, None, 15.0)
        alternative = Alternative(in_sequence, 25.0, ValueSource.MEASURED, 0, "not faster")
        return dataclasses.replace(
            made,
            explanation=StageExplanation((lane, lane), (alternative,)),
            schedules=(BatchSchedule(8, in_sequence),),
        )

    planned = {"net_1/a": "Conv2D", "net_1/b": "Conv2D"}
    trace = {"PartitionedCall/net_4/a": "Conv2D", "PartitionedCall/net_4/b": "Conv2D"}
    plan = Plan((_plan_for(planned, stage(*planned)),))
    assert stages_from_plan(plan, make_graph(trace)[1]) == (stage(*trace),)


def _plan_refusal(
    plan: Plan,
    nodes: dict[str, str],
    configurations: dict[str, ConvolutionConfiguration] | None = None,
) -> str:
    _, convolutions = make_graph(nodes, configurations=configurations)
    with pytest.raises(PlanError, match=fingerprint_convolutions(convolutions)) as raised:
        stages_from_plan(plan, convolutions)
    return str(raised.value)


def test_refuses_a_plan_of_no_graph() -> None:
    assert "holds no graph" in _plan_refusal(Plan(()), CHAIN)


def test_refusal_compares_with_the_closest_graph() -> None:
    planned = {"a": "Conv2D", **{f"p{index}": "Conv2D" for index in range(5)}}
    closest = _plan_for(planned, make_stage(*planned))
    plan = Plan((_plan_for(INCEPTION, make_stage("3x3")), closest))
    message = _plan_refusal(plan, CHAIN)
    assert f"(fingerprint {closest.fingerprint}) is for 6 convolutions" in message
    assert "this graph has 2" in message
    assert "1 of the 6 names" in message
    assert "'p0', 'p1', 'p2' and 2 more" in message
    assert "differs" not in message


@pytest.mark.parametrize(
    ("planned", "found"),
    [
        pytest.param(("a", "b"), ("a", "b"), id="same_names"),
        pytest.param(("a",), ("a", "b"), id="some_in_no_stage"),
        pytest.param(("net_1/a",), ("PartitionedCall/net_4/a", "net_4/b"), id="another_trace"),
    ],
)
def test_refusal_says_that_something_else_differs_where_names_agree(
    planned: tuple[str, ...], found: tuple[str, ...]
) -> None:
    graph = dict.fromkeys(("a", "b"), "Conv2D")
    plan = Plan((dataclasses.replace(_plan_for(graph), stages=(make_stage(*planned),)),))
    strided = dataclasses.replace(CONFIGURATION, strides=(2, 2))
    message = _plan_refusal(plan, dict.fromkeys(found, "Conv2D"), {found[0]: strided})
    assert "differs" in message
    assert "lacks" not in message


@pytest.mark.parametrize("nodes", [{"a": "Conv2D"}, {**CHAIN, "c": "Conv2D"}])
def test_refusal_blames_no_op_where_the_number_of_convolutions_differs(
    nodes: dict[str, str],
) -> None:
    message = _plan_refusal(Plan((_plan_for(nodes, make_stage("a")),)), CHAIN)
    assert f"for {len(nodes)} convolutions" in message
    assert "differs" not in message


def test_refusal_goes_by_convolutions_in_no_stage_too() -> None:
    without_stages = dataclasses.replace(
        _plan_for(INCEPTION),
        unstaged=tuple(UnstagedConvolution(name, None, 1.0, 0, 0) for name in ("1x1", "3x3")),
    )
    assert "lacks '1x1', '3x3'" in _plan_refusal(Plan((without_stages,)), CHAIN)
