"""The plan's stages for a graph: the entry, the names of its nodes, and refusals."""

from __future__ import annotations

import dataclasses

import pytest
from planning_graphs import CONFIGURATION, INCEPTION, make_graph, make_lanes, make_stage

from tf_interop.convolution import ConvolutionConfiguration, fingerprint_convolutions
from tf_interop.errors import PlanError
from tf_interop.planning.lookup import stages_for_batch_sizes, stages_from_plan
from tf_interop.planning.problem import ValueSource
from tf_interop.planning.types import (
    GraphPlan,
    GraphPrediction,
    Plan,
    PlannedStage,
    StagePrediction,
    UnstagedConvolution,
)
from tf_interop.stage import Lane, Schedule, Stage, Step

CHAIN = {"a": "Conv2D", "b": "Conv2D a"}
ABC = dict.fromkeys("abc", "Conv2D")


def plan_for(nodes: dict[str, str], *stages: PlannedStage) -> GraphPlan:
    _, convolutions = make_graph(nodes)
    return GraphPlan(fingerprint_convolutions(convolutions), len(convolutions), stages)


def of_batch(nodes: dict[str, str], size: int | None) -> dict[str, ConvolutionConfiguration]:
    shapes = {"image_shape": (size, 28, 28, 16), "output_shape": (size, 28, 28, 32)}
    return dict.fromkeys(nodes, dataclasses.replace(CONFIGURATION, **shapes))


@pytest.mark.parametrize(
    ("batch_size", "planned", "taken"),
    [
        pytest.param(8, (1, 8, 32), 8, id="equal"),
        pytest.param(8, (1, None, 8), 8, id="equal_before_any"),
        pytest.param(9, (8, None, 32), None, id="any_before_the_nearest"),
        pytest.param(6, (1, 4, 32), 4, id="nearest_by_ratio"),
        pytest.param(20, (8, 32), 32, id="nearest_by_ratio_not_by_difference"),
        pytest.param(4, (2, 8), 8, id="larger_of_two_equally_near"),
        pytest.param(None, (1, None, 8), None, id="any_for_unknown"),
    ],
)
def test_takes_the_entry_of_the_batch_size(
    batch_size: int | None, planned: tuple[int | None, ...], taken: int | None
) -> None:
    prediction = StagePrediction(20.0, 1.0, 30.0, ValueSource.MEASURED, 0, 0)

    def stage(size: int | None) -> PlannedStage:
        return dataclasses.replace(make_stage("a"), why=f"for {size}", prediction=prediction)

    entries = (
        dataclasses.replace(plan_for(CHAIN, stage(size)), batch_size=size) for size in planned
    )
    _, convolutions = make_graph(CHAIN, configurations=of_batch(CHAIN, batch_size))
    [found] = stages_from_plan(Plan(tuple(entries)), convolutions)
    if taken in (None, batch_size):
        assert found == stage(taken)
    else:
        # The prediction is for another batch size.
        why = f"from the plan for batch size {taken}, the nearest to {batch_size}"
        assert found == dataclasses.replace(make_stage("a"), why=why)


def test_takes_a_plan_of_another_trace_of_the_model() -> None:
    def stage(a: str, b: str) -> PlannedStage:
        made = make_stage(a, b)
        in_sequence = Stage.in_sequence(made.stage.steps)
        return dataclasses.replace(made, schedules=(Schedule(8, in_sequence),))

    planned = {"net_1/a": "Conv2D", "net_1/b": "Conv2D"}
    trace = {"PartitionedCall/net_4/a": "Conv2D", "PartitionedCall/net_4/b": "Conv2D"}
    plan = Plan((plan_for(planned, stage(*planned)),))
    assert stages_from_plan(plan, make_graph(trace)[1]) == (stage(*trace),)


WIDE = {"a": "Conv2D", **{f"p{index}": "Conv2D" for index in range(5)}}
UNSTAGED = tuple(UnstagedConvolution(name, None, 1.0, 0, 0) for name in ("1x1", "3x3"))


@pytest.mark.parametrize(
    ("entries", "strides", "said"),
    [
        (
            (plan_for(INCEPTION, make_stage("3x3")), plan_for(WIDE, make_stage(*WIDE))),
            (1, 1),
            "'Net' .* 6 .*, some not in this graph, such as 'p0', 'p1', 'p2', .* 2.*clear_session",
        ),
        ((plan_for(CHAIN, make_stage("a")),), (2, 2), "2 convolutions with the same names"),
        ((dataclasses.replace(plan_for(INCEPTION), unstaged=UNSTAGED),), (1, 1), "'1x1', '3x3'"),
        ((dataclasses.replace(plan_for(CHAIN), narrow_units=("a",)),), (2, 2), "s, and .* has 2"),
        ((), (1, 1), "contains no graph"),
    ],
    ids=["closest", "other_configuration", "only_unstaged", "units", "empty"],
)
def test_a_refusal_compares_with_the_closest_graph(
    entries: tuple[GraphPlan, ...], strides: tuple[int, int], said: str
) -> None:
    configurations = {"a": dataclasses.replace(CONFIGURATION, strides=strides)}
    _, convolutions = make_graph(CHAIN, configurations=configurations)
    with pytest.raises(PlanError, match=said):
        stages_from_plan(Plan(entries, made_with={"model": "Net"}), convolutions)


def entry(
    batch_size: int, *stages: PlannedStage, unstaged: dict[str, str] | None = None
) -> GraphPlan:
    """A plan for `ABC` that takes 900 µs instead of 1000."""
    return dataclasses.replace(
        plan_for(ABC, *stages),
        batch_size=batch_size,
        prediction=GraphPrediction(900.0, 1000.0, 0, 0, None, "exact"),
        unstaged=tuple(
            UnstagedConvolution(node, algorithm, 10.0, 0, 0)
            for node, algorithm in (unstaged or {}).items()
        ),
    )


def test_a_stage_has_the_schedule_of_each_batch_size() -> None:
    small = make_lanes("a:FFT b:WINOGRAD")
    large = Stage((Lane((Step("b", "GEMM"),), priority=-1), Lane((Step("a", "FFT"),), sm_count=8)))
    entries = [entry(32, PlannedStage(large)), entry(8, PlannedStage(small))]
    [stage] = stages_for_batch_sizes(entries)
    assert stage.stage == large
    assert stage.schedules == (Schedule(8, small), Schedule(32, large))
    assert stage.why == "from the plan for batch sizes 8, 32, grouped as for 32"


def test_a_stage_runs_in_sequence_where_the_plan_groups_otherwise() -> None:
    large = entry(32, make_stage("a:FFT", "b"))
    small = entry(8, make_stage("b:GEMM", "c"), unstaged={"a": "WINOGRAD"})
    # A later trace of the model has other names.
    trace = {f"PartitionedCall/{name}": "Conv2D" for name in ABC}
    _, convolutions = make_graph(trace, configurations=of_batch(trace, None))
    [stage] = stages_from_plan(Plan((large, small)), convolutions)
    # At batch size 8, "a" was planned to run alone; for "b", GEMM was chosen to run beside "c".
    expected = make_lanes("PartitionedCall/a:WINOGRAD PartitionedCall/b")
    assert stage.schedules[0] == Schedule(8, expected)


def test_takes_the_grouping_that_saves_most() -> None:
    small, large = entry(8, make_stage("a", "b")), entry(32, make_stage("b", "c"))
    faster = dataclasses.replace(small.prediction, latency_us=800.0)
    [stage] = stages_for_batch_sizes([dataclasses.replace(small, prediction=faster), large])
    assert stage.stage == make_lanes("a", "b")
