"""Explanations: the figures that a stage was chosen by, and why other algorithms were not."""

from __future__ import annotations

import dataclasses
import io

import pytest
from paper_problem import FFT, FFT_KERNEL, GEMM, GEMM_KERNEL, paper_problem
from planning_values import make_problem
from rich.console import Console

from tf_interop.plan.explain import explain_plan
from tf_interop.plan.make import make_plan
from tf_interop.plan.overview import GraphLabel, show_plan
from tf_interop.plan.problem import FigureSource, KnownStage, PlanningProblem
from tf_interop.plan.tables import explain_stages
from tf_interop.plan.types import (
    Alternative,
    BatchSchedule,
    GraphPlan,
    LaneExplanation,
    LaneOptions,
    PinnedConvolution,
    Plan,
    PlannedStage,
    SmUse,
    StageExplanation,
)


def _explanation(problem: PlanningProblem) -> StageExplanation:
    [stage] = explain_plan(problem, make_plan(problem)).stages
    assert stage.explanation is not None
    return stage.explanation


def _shown(problem: PlanningProblem) -> str:
    text = io.StringIO()
    explain_stages(Plan((explain_plan(problem, make_plan(problem)),)), Console(file=text))
    return " ".join(text.getvalue().split())


def _by_algorithms(explanation: StageExplanation) -> dict[tuple[str | None, ...], Alternative]:
    return {each.algorithms: each for each in explanation.alternatives}


def test_the_kernels_of_the_example_take_what_the_paper_says() -> None:
    uses = {
        lane.fastest_algorithm if lane.alone_us == lane.fastest_us else FFT: lane.sm_use
        for lane in _explanation(paper_problem()).lanes
    }
    gemm, fft = uses[GEMM], uses[FFT]
    assert isinstance(gemm, SmUse)
    assert isinstance(fft, SmUse)
    assert (gemm.registers, gemm.shared_memory) == pytest.approx((0.92, 0.39), abs=0.005)
    assert (fft.registers, fft.shared_memory) == pytest.approx((0.38, 0.75), abs=0.005)
    assert (gemm.alu_utilization, gemm.memory_stall) == (0.7, None)
    assert (fft.alu_utilization, fft.memory_stall) == (0.3, 0.15)


def test_says_what_each_lane_takes_alone() -> None:
    first, second = _explanation(paper_problem()).lanes
    assert dataclasses.replace(first, sm_use=None) == LaneExplanation(100.0, 1 << 20, GEMM, 100.0)
    assert dataclasses.replace(second, sm_use=None) == LaneExplanation(105.0, 2 << 20, GEMM, 100.0)


def test_says_why_not_what_is_fastest_alone() -> None:
    alternative = _by_algorithms(_explanation(paper_problem()))[GEMM, GEMM]
    assert (alternative.latency_us, alternative.source) == (190.0, FigureSource.MEASURED)
    assert alternative.why_not == (
        "not faster; its lanes together ask for 184 % of the registers (chosen: 130 %), 140 % of "
        "the ALU time (chosen: 100 %)"
    )


def test_measurements_of_different_runs_are_made_comparable() -> None:
    # As much faster than its sequence as before, on a day on which everything took half as long.
    problem = paper_problem()
    (same,) = (each for each in problem.stages if each.algorithms == (GEMM, GEMM))
    faster = dataclasses.replace(same, latency_us=95.0, sequential_us=100.0)
    stages = tuple(faster if each is same else each for each in problem.stages)
    explanation = _explanation(dataclasses.replace(problem, stages=stages))
    assert _by_algorithms(explanation)[GEMM, GEMM].latency_us == 190.0


def test_says_why_not_what_fills_the_shared_memory() -> None:
    alternative = _by_algorithms(_explanation(paper_problem()))[FFT, FFT]
    assert alternative.why_not == (
        "not faster; its lanes together ask for 150 % of the shared memory (chosen: 114 %)"
    )


def test_the_example_in_words() -> None:
    shown = _shown(paper_problem())
    assert "130.0 us measured, may be off by 2.0, against 200.0 us one after another" in shown
    assert "together 130 % 114 % 56 % 100 % – –" in shown
    assert "Different resources: lane 0 most of the registers (92 %), lane 1 most of the " in shown
    assert "Lane 1 waits for memory in 15 % of its stalls" in shown
    assert f"Lane 1: alone {GEMM} is faster, 100.0 us" in shown
    assert f"Not {GEMM}, {GEMM} (190.0 us measured, 2.1 MB of workspace): not faster" in shown


def _modelled_problem() -> PlanningProblem:
    """The example without measured stages; the second kernel fills the device once."""
    kernels = [
        dataclasses.replace(GEMM_KERNEL, grid=(1200, 1, 1), dram_utilization=0.1),
        dataclasses.replace(FFT_KERNEL, grid=(120, 1, 1), dram_utilization=0.1),
    ]
    problem = paper_problem()
    costs = tuple(
        dataclasses.replace(
            each,
            candidates=tuple(
                dataclasses.replace(candidate, kernels=(kernel,))
                for candidate, kernel in zip(each.candidates, kernels, strict=True)
            ),
        )
        for each in problem.costs
    )
    return dataclasses.replace(problem, costs=costs, stages=())


def test_the_example_modelled_says_why_not_precomp_gemm_on_both() -> None:
    problem = _modelled_problem()
    [stage] = make_plan(problem).stages
    assert {pinned.algorithm for pinned in stage.convolutions} == {GEMM, FFT}
    alternative = _by_algorithms(_explanation(problem))[GEMM, GEMM]
    assert alternative.source is FigureSource.MODELLED
    assert "184 % of the registers (chosen: 130 %), 140 % of the ALU time" in alternative.why_not


def test_what_is_modelled_says_so() -> None:
    problem = _modelled_problem()
    explanation = _explanation(problem)
    assert explanation.alternatives
    assert {each.source for each in explanation.alternatives} == {FigureSource.MODELLED}
    shown = _shown(problem)
    assert "us expected, modelled; 200.0 us one after another, measured" in shown
    assert "measured, may be off" not in shown


def test_says_that_an_alternative_does_not_fit_into_the_memory() -> None:
    problem = paper_problem()
    first = problem.costs[0]
    large = dataclasses.replace(first.candidates[0], algorithm="GEMM", workspace_bytes=1 << 30)
    stage = dataclasses.replace(
        problem.stages[0], algorithms=("GEMM", FFT), latency_us=50.0, workspace_bytes=1 << 30
    )
    problem = dataclasses.replace(
        problem,
        costs=(
            dataclasses.replace(first, candidates=(*first.candidates, large)),
            problem.costs[1],
        ),
        stages=(*problem.stages, stage),
        memory_budget_bytes=10 << 20,
    )
    alternative = _by_algorithms(_explanation(problem))["GEMM", FFT]
    assert alternative.why_not == (
        f"does not fit: needs {(1 << 30) + (2 << 20)} bytes of workspace where {8 << 20} are left"
    )


def test_a_convolution_alone_is_pinned_for_its_memory() -> None:
    # What is fastest alone does not fit, together or not.
    problem = paper_problem()
    costs = tuple(
        dataclasses.replace(
            each,
            candidates=tuple(
                dataclasses.replace(
                    candidate,
                    workspace_bytes=(100 if candidate.algorithm == GEMM else 5) << 20,
                )
                for candidate in each.candidates
            ),
        )
        for each in problem.costs
    )
    problem = dataclasses.replace(problem, costs=costs, stages=(), memory_budget_bytes=10 << 20)
    plan = explain_plan(problem, make_plan(problem))
    assert [len(stage.lanes) for stage in plan.stages] == [1, 1]
    for stage in plan.stages:
        assert stage.explanation is not None
        [alternative] = stage.explanation.alternatives
        assert (alternative.latency_us, alternative.source) == (100.0, FigureSource.MEASURED)
        assert "does not fit" in alternative.why_not
    shown = _shown(problem)
    assert "Stage 0: pinned for its memory: 105.0 us" in shown
    assert "lanes take more" not in shown.split("Shares of one SM")[0]


def test_says_nothing_of_kernels_that_are_not_known() -> None:
    problem = dataclasses.replace(paper_problem(), sm_limits=None)
    explanation = _explanation(problem)
    assert [lane.sm_use for lane in explanation.lanes] == [None, None]
    assert _by_algorithms(explanation)[GEMM, GEMM].why_not == "not faster"
    assert "registers" not in _shown(problem)


def _problem_to_merge(**stages: dict[str, float]) -> PlanningProblem:
    return make_problem(
        {"a": "", "b": "", "c": ""},
        {"a": 10, "b": 20, "c": 10},
        merge_keys={"a": "x", "b": "x"},
        **stages,
    )


def test_explains_what_is_merged() -> None:
    problem = _problem_to_merge(merged={"a b": 20}, stages={"a b": 24})
    explanation = _explanation(problem)
    # One after another, each with what is fastest alone.
    assert explanation.lanes == (LaneExplanation(30, 5, None, 30),)
    assert explanation.alternatives == (
        Alternative(("GEMM", "GEMM"), 24, FigureSource.MEASURED, 10, "not faster"),
    )
    shown = _shown(problem)
    assert "20.0 us measured, may be off by 0.0, against 30.0 us one after another" in shown
    assert "lane 0: a and b, merged into one wider convolution, with WINOGRAD" in shown
    assert "Lane 0: its 2 convolutions read one image; one after another they take 30.0 us" in shown
    assert "Not GEMM, GEMM (24.0 us measured, 10 bytes of workspace): not faster" in shown


def test_says_why_it_is_not_merged() -> None:
    problem = _problem_to_merge(merged={"a b": 26}, stages={"a b": 24})
    (alternative,) = _explanation(problem).alternatives
    assert alternative == Alternative(
        ("WINOGRAD", "WINOGRAD"), 26, FigureSource.MEASURED, 7, "not faster", lanes=(0, 0)
    )
    shown = _shown(problem)
    assert "Not 2 merged with WINOGRAD (26.0 us measured, 7 bytes of workspace)" in shown


def test_does_not_speak_of_merging_what_reads_different_images() -> None:
    problem = make_problem({"a": "", "b": ""}, {"a": 10, "b": 20}, {"a b": 24}, merged={"a b": 26})
    assert _explanation(problem).alternatives == ()


def test_explains_what_is_merged_beside_another() -> None:
    problem = _problem_to_merge()
    known = KnownStage(
        ("c", "b", "a"),
        ("GEMM", "WINOGRAD", "WINOGRAD"),
        25,
        lanes=(0, 1, 1),
        merged=(False, True),
    )
    other = dataclasses.replace(known, algorithms=("GEMM", "FFT", "FFT"), latency_us=27)
    problem = dataclasses.replace(problem, stages=(other, known))
    explanation = _explanation(problem)
    assert explanation.lanes == (
        LaneExplanation(10, 5, "GEMM", 10),
        LaneExplanation(30, 5, None, 30),
    )
    assert explanation.alternatives == (
        Alternative(
            ("GEMM", "FFT", "FFT"), 27, FigureSource.MEASURED, 0, "not faster", lanes=(0, 1, 1)
        ),
    )
    assert "Not GEMM, 2 merged with FFT (27.0 us" in _shown(problem)


def test_shows_every_batch_size_of_a_stage() -> None:
    a, b = PinnedConvolution("a", "GEMM"), PinnedConvolution("b", "GEMM")
    schedules = (
        BatchSchedule(2, ((a, b),), (LaneOptions(merged=True),)),
        BatchSchedule(8, ((a,), (b,)), (LaneOptions(priority=-1), LaneOptions())),
    )
    stage = PlannedStage(((a,), (b,)), lane_options=schedules[1].lane_options, schedules=schedules)
    text = io.StringIO()
    explain_stages(Plan((GraphPlan("f", 2, (stage,)),)), Console(file=text))
    assert (
        "batch size 2: lane 0: a and b, merged into one wider convolution, with GEMM "
        "batch size 8: lane 0: a with GEMM, priority -1 lane 1: b with GEMM "
        "any other batch size: in sequence"
    ) in " ".join(text.getvalue().split())


def test_says_that_nothing_wins() -> None:
    problem = paper_problem()
    slow = tuple(dataclasses.replace(each, latency_us=199.0) for each in problem.stages)
    shown = _shown(dataclasses.replace(problem, stages=slow))
    assert "no stage: the one measured set does not beat its convolutions one after" in shown


def test_explains_nothing_that_no_planner_made() -> None:
    problem = paper_problem()
    plan = make_plan(problem)
    by_hand = tuple(dataclasses.replace(each, prediction=None) for each in plan.stages)
    plan = dataclasses.replace(plan, stages=by_hand)
    assert explain_plan(problem, plan) == plan


def test_equal_problems_give_equal_explanations() -> None:
    plans = [explain_plan(problem, make_plan(problem)) for problem in (paper_problem(),) * 2]
    assert plans[0] == plans[1]


def test_the_table_says_what_share_was_measured() -> None:
    problem = paper_problem()
    plan = make_plan(problem)
    assert plan.prediction is not None
    [stage] = plan.stages
    assert stage.prediction is not None
    prediction = dataclasses.replace(
        stage.prediction, latency_us=30.0, source=FigureSource.MODELLED
    )
    plan = dataclasses.replace(
        plan,
        stages=(dataclasses.replace(stage, prediction=prediction),),
        prediction=dataclasses.replace(plan.prediction, latency_us=90.0),
    )
    text = io.StringIO()
    show_plan(Plan((plan,)), Console(file=text), [GraphLabel("inference")])
    shown = " ".join(text.getvalue().split())
    assert "inference 8 3 1 90.0 200.0 2.22 67 % 5.2 MB 3.1 MB" in shown
