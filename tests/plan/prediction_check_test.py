"""The check of a plan against its problem: each tampered plan is caught, for its own reason."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Callable

import pytest
from planning_values import make_problem
from profile_values import HOPPER_SM, KERNEL

from tf_interop.errors import PlanError
from tf_interop.plan import player as plan_player
from tf_interop.plan import prediction_check
from tf_interop.plan.make import make_plan
from tf_interop.plan.prediction_check import check_prediction
from tf_interop.plan.problem import (
    Candidate,
    FigureSource,
    PlanningProblem,
    ProblemNode,
)
from tf_interop.plan.types import GraphPlan, LaneOptions, PinnedConvolution, PlannedStage

# "a" before the stage of "b" and "c", then "d".
PROBLEM = make_problem(
    {"a": "", "b": "a", "c": "a", "d": "b c"},
    {"a": 10, "b": 10, "c": 20, "d": 10},
    {"b c": 24, "a d": 3},
    spread_us=1,
    memory_budget_bytes=100,
)
PLAN = make_plan(PROBLEM)

Tamper = Callable[[GraphPlan], GraphPlan]


def with_stage(**changes: object) -> Tamper:
    def tamper(plan: GraphPlan) -> GraphPlan:
        (stage,) = plan.stages
        return dataclasses.replace(plan, stages=(dataclasses.replace(stage, **changes),))

    return tamper


def with_stage_prediction(**changes: object) -> Tamper:
    (stage,) = PLAN.stages
    assert stage.prediction is not None
    return with_stage(prediction=dataclasses.replace(stage.prediction, **changes))


def with_prediction(**changes: object) -> Tamper:
    assert PLAN.prediction is not None
    prediction = dataclasses.replace(PLAN.prediction, **changes)
    return lambda plan: dataclasses.replace(plan, prediction=prediction)


def with_plan(**changes: object) -> Tamper:
    return lambda plan: dataclasses.replace(plan, **changes)


def with_alone(place: int, **changes: object) -> Tamper:
    def tamper(plan: GraphPlan) -> GraphPlan:
        alone = list(plan.alone)
        alone[place] = dataclasses.replace(alone[place], **changes)
        return dataclasses.replace(plan, alone=tuple(alone))

    return tamper


def lanes(*names: str, algorithm: str = "GEMM") -> tuple[tuple[PinnedConvolution, ...], ...]:
    return tuple(
        tuple(PinnedConvolution(name, algorithm) for name in lane.split()) for lane in names
    )


def test_takes_what_the_planner_makes() -> None:
    assert [stage.lanes for stage in PLAN.stages] == [lanes("b", "c")]
    assert [(each.node, each.before_stage) for each in PLAN.alone] == [("a", 0), ("d", 1)]
    check_prediction(PLAN, PROBLEM)


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (with_plan(prediction=None), "a plan with a prediction, got none"),
        (with_plan(fingerprint="other"), "the fingerprint '', .* got 'other'"),
        (with_plan(batch_size=3), "the batch size None, .* got 3"),
        (with_plan(convolution_count=3), "the convolution count 4, .* got 3"),
        (with_prediction(memory_budget_bytes=None), "the memory budget 100, .* got None"),
        (with_alone(0, node="x"), "nodes of the problem, got 'x'"),
        (with_alone(0, node="b"), "each convolution once, got 'b' again"),
        (with_plan(alone=PLAN.alone[:1]), "in a stage or alone, got 'd' in none"),
        (with_alone(0, before_stage=1), "'a' before 'b', which depends on it, got it behind st"),
        (with_alone(1, before_stage=0), "'b' before 'd', .* behind convolution 'd' alone"),
        (with_alone(1, before_stage=2), r"from 0 to 1, got \[0, 2\]"),
        (with_plan(alone=PLAN.alone[::-1]), r"by the stage that they run before, .* \[1, 0\]"),
        (with_stage(lanes=lanes("b c")), "several that are merged, got 2 in lane 0, which is not"),
        (
            with_stage(lane_options=(LaneOptions(merged=True), LaneOptions())),
            "several that are merged, got 1 in lane 0, which is merged",
        ),
        (with_stage(prediction=None), "a prediction of stage 0, got none"),
        (with_alone(0, algorithm="FFT"), "a candidate of convolution 'a', got 'FFT'"),
        (with_alone(0, latency_us=9.0), "a latency of 10 us for convolution 'a' alone, got 9"),
        (with_alone(1, peak_bytes=34), "a peak of 35 bytes for convolution 'd' alone, got 34"),
        (with_stage(lanes=lanes("c", "b")), "a measurement of stage 0, .* got none with algor"),
        (
            with_stage(lane_options=(LaneOptions(-1), LaneOptions())),
            r"a measurement of stage 0, .* priorities \[-1, 0\]",
        ),
        (
            with_stage(lane_options=(LaneOptions(0, 8), LaneOptions())),
            r"a measurement of stage 0, .* SM counts \[8, 0\]",
        ),
        (with_stage_prediction(latency_us=23.0), r"in us of \[\(24.*, got \(23.0, 1"),
        (with_stage_prediction(spread_us=0.5), r"in us of \[\(24.*, got \(24.*, 0.5"),
        (with_stage_prediction(sequential_us=31.0), "one after another of 30 us for stage 0"),
        (with_stage_prediction(workspace_bytes=9), "a workspace of 10 bytes for stage 0, got 9"),
        (with_stage_prediction(peak_bytes=39), "a peak of 40 bytes for stage 0, got 39"),
        (
            with_stage_prediction(source=FigureSource.MODELLED),
            "kernels and a device that a model could know stage 0 by",
        ),
        (with_prediction(latency_us=43.0), "a latency of 44.* us for the graph, got 43"),
        (with_prediction(peak_bytes=39), "a peak of 40 bytes for the graph, got 39"),
        (with_prediction(sequential_us=51.0), "one after another of 50.* us for the graph"),
        (with_prediction(sequential_peak_bytes=36), "peak one after another of 35 bytes"),
    ],
)
def test_catches_a_tampered_plan(tamper: Tamper, message: str) -> None:
    with pytest.raises(PlanError, match=f"{message}.*Plan this graph anew"):
        check_prediction(tamper(PLAN), PROBLEM)


def test_catches_a_stage_of_convolutions_that_depend_on_each_other() -> None:
    problem = make_problem({"a": "", "b": ""}, {"a": 10, "b": 10}, {"a b": 11})
    plan = make_plan(problem)
    nodes = (ProblemNode("a", "a"), ProblemNode("b", "b", ("a",)))
    with pytest.raises(PlanError, match=r"independent .* stage 0, got 'b' that depends on 'a'"):
        check_prediction(plan, dataclasses.replace(problem, nodes=nodes))


def test_catches_a_stage_over_two_groups() -> None:
    problem = make_problem({"a": "", "b": ""}, {"a": 10, "b": 10}, {"a b": 11})
    plan = make_plan(problem)
    nodes = (ProblemNode("a", "a"), ProblemNode("b", "b", group="GPU:1"))
    with pytest.raises(PlanError, match="one group in stage 0, got '' for 'a' and 'GPU:1' for"):
        check_prediction(plan, dataclasses.replace(problem, nodes=nodes))


def test_catches_stages_that_wait_for_each_other() -> None:
    # Either stage holds independent convolutions: "a" with "d", "b" with "c".
    problem = make_problem(
        {"a": "", "b": "", "c": "a", "d": "b"}, dict.fromkeys("abcd", 10.0), {"a d": 11, "b c": 11}
    )
    (stage, *_) = make_plan(problem).stages
    both = tuple(
        dataclasses.replace(stage, lanes=lanes(*names)) for names in (("a", "d"), ("b", "c"))
    )
    plan = dataclasses.replace(make_plan(problem), stages=both, alone=())
    with pytest.raises(PlanError, match="'b' before 'd', which depends on it, got it behind stag"):
        check_prediction(plan, problem)


def test_catches_a_stage_that_wins_by_less_than_its_spread() -> None:
    problem = make_problem({"a": "", "b": ""}, {"a": 10, "b": 10}, {"a b": 15}, spread_us=4)
    plan = make_plan(problem)
    (stage,) = plan.stages
    assert stage.prediction is not None
    known = dataclasses.replace(problem.stages[0], spread_us=5)
    tampered = dataclasses.replace(
        plan,
        stages=(
            dataclasses.replace(
                stage, prediction=dataclasses.replace(stage.prediction, spread_us=5)
            ),
        ),
    )
    with pytest.raises(PlanError, match="stage 0 to win by more than its spread against 20 us"):
        check_prediction(tampered, dataclasses.replace(problem, stages=(known,)))


def test_catches_a_plan_over_its_budget() -> None:
    budget = 39  # One less than the stage needs.
    plan = with_prediction(memory_budget_bytes=budget)(PLAN)
    with pytest.raises(PlanError, match="at most the budget, 39 bytes, got 40"):
        check_prediction(plan, dataclasses.replace(PROBLEM, memory_budget_bytes=budget))


def test_catches_a_plan_that_is_slower_than_sequential() -> None:
    problem = make_problem({"a": ""}, {"a": 10})
    costs = dataclasses.replace(
        problem.costs[0], candidates=(Candidate("GEMM", 10, 5), Candidate("FFT", 12, 5))
    )
    problem = dataclasses.replace(problem, costs=(costs,))
    plan = make_plan(problem)
    assert plan.prediction is not None
    tampered = dataclasses.replace(
        plan,
        alone=(dataclasses.replace(plan.alone[0], algorithm="FFT", latency_us=12.0),),
        prediction=dataclasses.replace(plan.prediction, latency_us=12.0),
    )
    with pytest.raises(PlanError, match=r"no slower than one after another, 10.* us, got 12"):
        check_prediction(tampered, problem)


def modelled_pair() -> tuple[PlanningProblem, GraphPlan]:
    """Two small kernels that the model runs at the same time."""
    problem = make_problem({"a": "", "b": ""}, {"a": 10, "b": 10})
    kernel = dataclasses.replace(
        KERNEL, grid=(60, 1, 1), time_share=1.0, alu_utilization=None, dram_utilization=None
    )
    costs = tuple(
        dataclasses.replace(each, candidates=(Candidate("GEMM", 10, 5, kernels=(kernel,)),))
        for each in problem.costs
    )
    problem = dataclasses.replace(problem, costs=costs, sm_count=132, sm_limits=HOPPER_SM)
    return problem, make_plan(problem)


def tampered_stage(plan: GraphPlan, **changes: object) -> GraphPlan:
    (stage,) = plan.stages
    assert stage.prediction is not None
    prediction = dataclasses.replace(stage.prediction, **changes)
    stages: tuple[PlannedStage, ...] = (dataclasses.replace(stage, prediction=prediction),)
    return dataclasses.replace(plan, stages=stages)


def test_a_modelled_stage_takes_no_less_than_its_longest_convolution() -> None:
    problem, plan = modelled_pair()
    check_prediction(plan, problem)
    with pytest.raises(PlanError, match=r"no less than its longest convolution, 10 us, got 9.9"):
        check_prediction(tampered_stage(plan, latency_us=9.9), problem)


def test_a_modelled_stage_has_to_win_by_more_than_its_spread() -> None:
    problem, plan = modelled_pair()
    with pytest.raises(PlanError, match=r"win by more than its spread against 20 us .*take 11"):
        check_prediction(tampered_stage(plan, spread_us=11), problem)


def test_a_modelled_stage_is_not_called_measured() -> None:
    problem, plan = modelled_pair()
    with pytest.raises(PlanError, match="a measurement of stage 0"):
        check_prediction(tampered_stage(plan, source=FigureSource.MEASURED), problem)


def merged_pair() -> tuple[PlanningProblem, GraphPlan]:
    """Two convolutions on one image that take 12 us as a wider one, and a third on another."""
    problem = make_problem(
        {"a": "", "b": "", "c": ""},
        dict.fromkeys("abc", 10.0),
        merged={"a b": 12.0},
        merge_keys={"a": "x", "b": "x", "c": "y"},
    )
    return problem, make_plan(problem)


def test_takes_a_stage_that_was_measured_merged() -> None:
    problem, plan = merged_pair()
    (stage,) = plan.stages
    assert stage.lanes == lanes("a b", algorithm="WINOGRAD")
    assert stage.lane_options == (LaneOptions(merged=True),)
    check_prediction(plan, problem)


def test_a_stage_that_was_measured_merged_is_not_made_otherwise() -> None:
    problem, plan = merged_pair()
    tampered = with_stage(lanes=lanes("a", "b", algorithm="WINOGRAD"), lane_options=())(plan)
    with pytest.raises(PlanError, match="a candidate of convolution 'a', got 'WINOGRAD'"):
        check_prediction(tampered, problem)
    candidates = (Candidate("GEMM", 10, 5), Candidate("WINOGRAD", 11, 5))
    costs = tuple(dataclasses.replace(each, candidates=candidates) for each in problem.costs)
    with pytest.raises(PlanError, match="a measurement of stage 0, which says that it was"):
        check_prediction(tampered, dataclasses.replace(problem, costs=costs))


def test_a_merged_stage_has_a_measurement_of_its_own() -> None:
    problem, plan = merged_pair()
    with pytest.raises(PlanError, match=r"a measurement of stage 0, .* merged in lanes \[0, 0\]"):
        check_prediction(plan, dataclasses.replace(problem, stages=()))
    modelled = tampered_stage(plan, source=FigureSource.MODELLED)
    with pytest.raises(PlanError, match="stage 0, whose lanes are merged, got a model's figure"):
        check_prediction(modelled, problem)


@pytest.mark.parametrize("merge_key", [None, "other"])
def test_what_is_merged_reads_one_image(merge_key: str | None) -> None:
    problem, plan = merged_pair()
    nodes = (
        problem.nodes[0],
        dataclasses.replace(problem.nodes[1], merge_key=merge_key),
        problem.nodes[2],
    )
    with pytest.raises(PlanError, match=r"on one image in merged lane 0 .* got \['a', 'b'\]"):
        check_prediction(plan, dataclasses.replace(problem, nodes=nodes))


def test_a_merged_stage_needs_the_workspace_that_was_measured() -> None:
    problem, plan = merged_pair()
    (stage,) = plan.stages
    assert stage.prediction is not None
    assert stage.prediction.workspace_bytes == problem.stages[0].workspace_bytes == 7
    with pytest.raises(PlanError, match="a workspace of 7 bytes for stage 0, got 10"):
        check_prediction(tampered_stage(plan, workspace_bytes=10, peak_bytes=27), problem)


def test_shares_no_code_with_the_planner() -> None:
    modules = {
        node.module
        for source in map(inspect.getsource, (prediction_check, plan_player))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    decide = {module for module in modules if module.startswith("tf_interop.decide")}
    assert decide == {plan_player.__name__}
