"""What a plan holds for a graph: which entry is taken, under which names, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest
from planning_graphs import CONFIGURATION, INCEPTION, make_graph, make_lanes, make_stage

from tf_interop.convolution import ConvolutionConfiguration, fingerprint_convolutions
from tf_interop.errors import PlanError
from tf_interop.planning.check import check_stages
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


def _plan_for(nodes: dict[str, str], *stages: PlannedStage) -> GraphPlan:
    _, convolutions = make_graph(nodes)
    return GraphPlan(fingerprint_convolutions(convolutions), len(convolutions), stages)


CHAIN = {"a": "Conv2D", "b": "Conv2D a"}


def _of_batch(size: int | None) -> dict[str, ConvolutionConfiguration]:
    shapes = {"image_shape": (size, 28, 28, 16), "output_shape": (size, 28, 28, 32)}
    return dict.fromkeys(CHAIN, dataclasses.replace(CONFIGURATION, **shapes))


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
    prediction = StagePrediction(20.0, 1.0, 30.0, ValueSource.MEASURED, 0, 0)

    def stage(size: int | None) -> PlannedStage:
        return dataclasses.replace(make_stage("a"), why=f"for {size}", prediction=prediction)

    plan = Plan(
        tuple(
            dataclasses.replace(_plan_for(CHAIN, stage(size)), batch_size=size) for size in planned
        )
    )
    _, convolutions = make_graph(CHAIN, configurations=_of_batch(batch_size))
    [found] = stages_from_plan(plan, convolutions)
    if taken in (None, batch_size):
        assert found == stage(taken)
    else:
        # What was expected of it is not expected at another batch size.
        why = f"from the plan for batch size {taken}, the nearest to {batch_size}"
        assert found == dataclasses.replace(make_stage("a"), why=why)


def test_takes_a_plan_of_another_trace_of_the_model() -> None:
    def stage(a: str, b: str) -> PlannedStage:
        made = make_stage(a, b)
        in_sequence = Stage.in_sequence(made.stage.steps)
        return dataclasses.replace(made, schedules=(Schedule(8, in_sequence),))

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
    with pytest.raises(PlanError, match=f"with {len(convolutions)} convolutions") as raised:
        stages_from_plan(plan, convolutions)
    return str(raised.value)


def test_refusal_compares_with_the_closest_graph() -> None:
    planned = {"a": "Conv2D", **{f"p{index}": "Conv2D" for index in range(5)}}
    closest = _plan_for(planned, make_stage(*planned))
    plans = (_plan_for(INCEPTION, make_stage("3x3")), closest)
    message = _plan_refusal(Plan(plans, made_with={"model": "Wide"}), CHAIN)
    assert "for 'Wide' with 6, such as 'p0', 'p1', 'p2'" in message
    assert closest.fingerprint not in message
    assert "clear_session()" in message
    same = _plan_refusal(
        Plan((_plan_for(CHAIN, make_stage("a")),)),
        CHAIN,
        {"a": dataclasses.replace(CONFIGURATION, strides=(2, 2))},
    )
    assert "of the same names" in same
    unstaged = tuple(UnstagedConvolution(name, None, 1.0, 0, 0) for name in ("1x1", "3x3"))
    without_stages = dataclasses.replace(_plan_for(INCEPTION), unstaged=unstaged)
    assert "'1x1', '3x3'" in _plan_refusal(Plan((without_stages,)), CHAIN)
    assert "holds no graph" in _plan_refusal(Plan(()), CHAIN)


NODES = {"a": "Conv2D", "b": "Conv2D", "c": "Conv2D"}
UNKNOWN = dict.fromkeys(
    NODES, dataclasses.replace(CONFIGURATION, image_shape=(None, 28, 28, 16), output_shape=None)
)


def entry(
    batch_size: int, *stages: PlannedStage, unstaged: dict[str, str] | None = None
) -> GraphPlan:
    """A plan of a graph that takes 1000 us in sequence."""
    return GraphPlan(
        "",
        len(NODES),
        stages,
        batch_size,
        GraphPrediction(900.0, 1000.0, 0, 0, None, "exact"),
        tuple(
            UnstagedConvolution(node, algorithm, 10.0, 0, 0)
            for node, algorithm in (unstaged or {}).items()
        ),
    )


def test_gives_a_stage_the_schedule_of_each_batch_size() -> None:
    small = make_lanes("a:FFT b:WINOGRAD")
    large = Stage((Lane((Step("b", "GEMM"),), priority=-1), Lane((Step("a", "FFT"),), sm_count=8)))
    [stage] = stages_for_batch_sizes(
        [entry(32, PlannedStage(large)), entry(8, PlannedStage(small))]
    )
    assert stage.stage == large
    assert stage.schedules == (Schedule(8, small), Schedule(32, large))
    assert stage.why == "from the plan for batch sizes 8, 32, grouped as for 32"


def test_runs_in_sequence_where_a_plan_groups_otherwise() -> None:
    [stage] = stages_for_batch_sizes(
        [
            entry(32, make_stage("a:FFT", "b")),
            entry(8, make_stage("b:GEMM", "c"), unstaged={"a": "WINOGRAD"}),
        ]
    )
    # What is in no stage takes the algorithm that is fastest alone; what the plan puts beside
    # others has none that says anything about running in sequence.
    assert stage.schedules[0] == Schedule(8, make_lanes("a:WINOGRAD b"))


def test_takes_the_grouping_that_saves_most() -> None:
    small, large = entry(8, make_stage("a", "b")), entry(32, make_stage("b", "c"))
    faster = dataclasses.replace(small.prediction, latency_us=800.0)
    [stage] = stages_for_batch_sizes([dataclasses.replace(small, prediction=faster), large])
    assert stage.stage == make_lanes("a", "b")


def _plan(*entries: GraphPlan) -> Plan:
    _, convolutions = make_graph(NODES)
    fingerprint = fingerprint_convolutions(convolutions)
    return Plan(tuple(dataclasses.replace(each, fingerprint=fingerprint) for each in entries))


def test_a_graph_of_unknown_batch_size_takes_all_entries() -> None:
    plan = _plan(entry(8, make_stage("a:FFT", "b")), entry(32, make_stage("a", "b:GEMM")))
    view, convolutions = make_graph(NODES, configurations=UNKNOWN)
    [stage] = stages_from_plan(plan, convolutions)
    check_stages([stage], view, convolutions)
    assert [schedule.batch_size for schedule in stage.schedules] == [8, 32]
    # A graph whose batch size is known goes by its own entry.
    _, known = make_graph(NODES)
    assert stages_from_plan(plan, known) == (make_stage("a:FFT", "b"),)
