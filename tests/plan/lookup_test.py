"""What a plan holds for a graph: which entry is taken, under which names, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest
from planning_graphs import CONFIGURATION, INCEPTION, make_graph, make_stage

from tf_interop.convolution import ConvolutionConfiguration, batch_size_of
from tf_interop.errors import PlanError
from tf_interop.graph.fingerprint import fingerprint_convolutions
from tf_interop.plan.lookup import stages_from_plan
from tf_interop.plan.problem import FigureSource
from tf_interop.plan.types import (
    AloneConvolution,
    GraphPlan,
    LaneExplanation,
    Plan,
    PlannedStage,
    StageExplanation,
    StagePrediction,
)


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
    prediction = StagePrediction(20.0, 1.0, 30.0, FigureSource.MEASURED, 0, 0)
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
    planned = _plan_for(
        {"net_1/a": "Conv2D", "net_1/b": "Conv2D"}, make_stage("net_1/a", "net_1/b")
    )
    trace = {"PartitionedCall/net_4/a": "Conv2D", "PartitionedCall/net_4/b": "Conv2D"}
    stages = stages_from_plan(Plan((planned,)), make_graph(trace)[1])
    assert stages == (make_stage(*trace),)


def _plan_refusal(
    plan: Plan,
    nodes: dict[str, str],
    configurations: dict[str, ConvolutionConfiguration] | None = None,
) -> str:
    _, convolutions = make_graph(nodes, configurations=configurations)
    with pytest.raises(PlanError) as raised:
        stages_from_plan(plan, convolutions)
    message = str(raised.value)
    fingerprint = fingerprint_convolutions(convolutions)
    assert message.startswith(f"Expected a plan for this graph (fingerprint {fingerprint}), got")
    assert message.endswith("Plan this graph anew, or use the plan with the model it was made for.")
    return message


def test_refuses_a_plan_of_no_graph() -> None:
    assert "got one that holds no graph. " in _plan_refusal(Plan(()), CHAIN)


def test_refusal_compares_with_the_closest_graph() -> None:
    module = _plan_for(INCEPTION, make_stage("1x1", "3x3_reduce", "5x5_reduce", "pool_proj"))
    plan = Plan((_plan_for(CHAIN, make_stage("a"), make_stage("b")), module))
    nodes = {"5x5_reduce": "Conv2D"}
    message = _plan_refusal(plan, nodes)
    assert f"(fingerprint {module.fingerprint}) is for 6 convolutions where this graph has 1; the "
    assert "the graph has 1 of the 4 names that the plan has, and lacks " in message
    assert "lacks '1x1', '3x3_reduce', 'pool_proj'. " in message
    assert "does not name" not in message


def test_refusal_names_a_few_of_many() -> None:
    planned = {f"p{index}": "Conv2D" for index in range(5)}
    found = {f"q{index}": "Conv2D" for index in range(7)}
    message = _plan_refusal(Plan((_plan_for(planned, make_stage(*planned)),)), found)
    assert "is for 5 convolutions where this graph has 7" in message
    assert (
        "has 0 of the 5 names that the plan has, and lacks 'p0', 'p1', 'p2' and 2 more" in message
    )
    assert "the plan does not name 'q0', 'q1', 'q2' and 4 more" in message


def test_refusal_does_not_blame_convolutions_that_the_plan_left_alone() -> None:
    plan = Plan((_plan_for(INCEPTION, make_stage("3x3", "5x5")),))
    strided = dataclasses.replace(CONFIGURATION, strides=(2, 2))
    message = _plan_refusal(plan, INCEPTION, {"3x3": strided})
    assert "where this graph has 6; the names agree: the graph has all 2 that the plan" in message
    assert "so an op type, dtype" in message
    assert "operation, or the name of another convolution, differs. " in message
    assert "lacks" not in message
    assert "does not name" not in message


def test_refusal_says_of_a_plan_of_another_model_that_no_name_agrees() -> None:
    without_stages = dataclasses.replace(
        _plan_for(INCEPTION),
        alone=tuple(AloneConvolution(name, None, 1.0, 0, 0) for name in ("1x1", "3x3")),
    )
    message = _plan_refusal(Plan((without_stages,)), CHAIN)
    assert "is for 6 convolutions where this graph has 2" in message
    assert "the graph has 0 of the 2 names that the plan has, and lacks '1x1', '3x3'. " in message
    assert "agree" not in message
    assert "differs" not in message


def test_refusal_compares_no_names_where_the_plan_has_none() -> None:
    message = _plan_refusal(Plan((_plan_for(INCEPTION),)), CHAIN)
    assert "where this graph has 2; it names none of them, so that they cannot be" in message
    assert "agree" not in message


def test_refusal_says_that_names_of_another_trace_agree() -> None:
    planned = _plan_for({"net_1/a": "Conv2D"}, make_stage("net_1/a"))
    strided = dataclasses.replace(CONFIGURATION, strides=(2, 2))
    name = "PartitionedCall/net_4/a"
    message = _plan_refusal(Plan((planned,)), {name: "Conv2D"}, {name: strided})
    assert "the names agree: the graph has all 1 that the plan has, so an op type" in message
    assert "fused operation differs. " in message


def test_refusal_blames_no_op_where_the_graph_has_more_convolutions() -> None:
    message = _plan_refusal(Plan((_plan_for({"a": "Conv2D"}, make_stage("a")),)), CHAIN)
    assert "the names agree: the graph has all 1 that the plan has; the plan does not" in message
    assert "not name 'b'. " in message
    assert "op type" not in message


def test_refusal_blames_no_op_where_the_graph_has_fewer_convolutions() -> None:
    plan = Plan((_plan_for({**CHAIN, "c": "Conv2D"}, make_stage("a")),))
    message = _plan_refusal(plan, CHAIN)
    assert "is for 3 convolutions where this graph has 2; the names agree: " in message
    assert "op type" not in message
