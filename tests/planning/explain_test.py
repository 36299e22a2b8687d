"""Explanations: the values that a stage was chosen by, and why other algorithms were not."""

from __future__ import annotations

import dataclasses
import io

import pytest
from paper_problem import FFT, FFT_KERNEL, GEMM, GEMM_KERNEL, paper_problem
from planning_values import make_lanes, make_problem, merge
from rich.console import Console

from tf_interop.planning.explain import explain_plan
from tf_interop.planning.make import make_plan
from tf_interop.planning.overview import show_plan
from tf_interop.planning.problem import Candidate, MeasuredStage, PlanningProblem, ValueSource
from tf_interop.planning.tables import explain_stages
from tf_interop.planning.types import (
    Alternative,
    BatchSchedule,
    GraphPlan,
    LaneExplanation,
    Plan,
    PlannedStage,
    StageExplanation,
)
from tf_interop.profile.occupancy import SmUse
from tf_interop.stage import Lane, Stage, Step

MEASURED, MODELLED = ValueSource.MEASURED, ValueSource.MODELLED


def explanation_of(problem: PlanningProblem) -> StageExplanation:
    [stage] = explain_plan(problem, make_plan(problem)).stages
    assert stage.explanation is not None
    return stage.explanation


def words_of(*graphs: GraphPlan) -> str:
    text = io.StringIO()
    explain_stages(Plan(graphs), Console(file=text))
    return " ".join(text.getvalue().split())


def shown(problem: PlanningProblem) -> str:
    return words_of(explain_plan(problem, make_plan(problem)))


def alternatives_of(problem: PlanningProblem) -> dict[tuple[str | None, ...], Alternative]:
    found = explanation_of(problem).alternatives
    return {tuple(step.algorithm for step in each.stage.steps): each for each in found}


def with_candidates(problem: PlanningProblem, **changes: object) -> PlanningProblem:
    """Each candidate with other values: `gemm_…` of GEMM, `fft_…` of FFT."""
    prefixes = {GEMM: "gemm_", FFT: "fft_"}

    def changed(candidate: Candidate) -> Candidate:
        prefix = prefixes[candidate.algorithm or ""]
        its = {
            name.removeprefix(prefix): value for name, value in changes.items() if prefix in name
        }
        return dataclasses.replace(candidate, **its)  # type: ignore[arg-type]

    costs = tuple(
        dataclasses.replace(each, candidates=tuple(map(changed, each.candidates)))
        for each in problem.costs
    )
    return dataclasses.replace(problem, costs=costs, stages=())


def modelled_problem() -> PlanningProblem:
    """The example without measured stages; the second kernel fills the device once."""
    return with_candidates(
        paper_problem(),
        gemm_kernels=(dataclasses.replace(GEMM_KERNEL, grid=(1200, 1, 1), dram_utilization=0.1),),
        fft_kernels=(dataclasses.replace(FFT_KERNEL, grid=(120, 1, 1), dram_utilization=0.1),),
    )


def test_says_what_each_lane_takes_alone_and_of_an_sm() -> None:
    gemm, fft = explanation_of(paper_problem()).lanes
    assert dataclasses.replace(gemm, sm_use=None) == LaneExplanation(100.0, 1 << 20, GEMM, 100.0)
    assert dataclasses.replace(fft, sm_use=None) == LaneExplanation(105.0, 2 << 20, GEMM, 100.0)
    # As the paper says.
    assert isinstance(gemm.sm_use, SmUse) and isinstance(fft.sm_use, SmUse)
    shares = (gemm.sm_use.registers, gemm.sm_use.shared_memory)
    assert shares == pytest.approx((0.92, 0.39), abs=0.005)
    shares = (fft.sm_use.registers, fft.sm_use.shared_memory)
    assert shares == pytest.approx((0.38, 0.75), abs=0.005)
    assert (gemm.sm_use.alu_utilization, gemm.sm_use.memory_stall) == (0.7, None)
    assert (fft.sm_use.alu_utilization, fft.sm_use.memory_stall) == (0.3, 0.15)


@pytest.mark.parametrize(
    ("problem", "algorithms", "source", "crowded"),
    [
        pytest.param(
            paper_problem(),
            (GEMM, GEMM),
            MEASURED,
            ["184 % of the registers (chosen: 130 %)", "140 % of the ALU time (chosen: 100 %)"],
            id="fastest_alone",
        ),
        pytest.param(
            paper_problem(),
            (FFT, FFT),
            MEASURED,
            ["150 % of the shared memory (chosen: 114 %)"],
            id="complementary_to_itself",
        ),
        pytest.param(
            modelled_problem(), (GEMM, GEMM), MODELLED, ["184 % of the registers"], id="modelled"
        ),
        pytest.param(
            dataclasses.replace(paper_problem(), sm_limits=None),
            (GEMM, GEMM),
            MEASURED,
            [],
            id="kernels_unknown",
        ),
    ],
)
def test_says_why_not_other_algorithms(
    problem: PlanningProblem, algorithms: tuple[str, ...], source: ValueSource, crowded: list[str]
) -> None:
    alternative = alternatives_of(problem)[algorithms]
    assert alternative.source is source
    assert alternative.why_not.startswith("not faster")
    assert all(each in alternative.why_not for each in crowded)
    assert ("its lanes together ask for" in alternative.why_not) == bool(crowded)


def test_measurements_of_different_runs_are_made_comparable() -> None:
    # As much faster than its sequence as before, on a day on which everything took half as long.
    problem = paper_problem()
    assert alternatives_of(problem)[GEMM, GEMM].latency_us == 190.0
    same, *others = problem.stages
    faster = dataclasses.replace(same, latency_us=95.0, sequential_us=100.0)
    problem = dataclasses.replace(problem, stages=(faster, *others))
    assert alternatives_of(problem)[GEMM, GEMM].latency_us == 190.0


def test_the_example_in_words() -> None:
    said = shown(paper_problem())
    assert "130.0 us measured, may be off by 2.0, against 200.0 us one after another" in said
    assert "together 130 % 114 % 56 % 100 % – –" in said
    assert "Different resources: lane 0 most of the registers (92 %)" in said
    assert "Lane 1 waits for memory in 15 % of its stalls" in said
    assert f"Lane 1: alone {GEMM} is faster, 100.0 us" in said
    assert f"Not {GEMM}, {GEMM} (190.0 us measured, 2.1 MB of workspace): not faster" in said
    said = shown(modelled_problem())
    assert "us expected, modelled; 200.0 us one after another, measured" in said
    assert "measured, may be off" not in said
    assert "registers" not in shown(dataclasses.replace(paper_problem(), sm_limits=None))


def test_says_that_an_alternative_does_not_fit_into_the_memory() -> None:
    problem = paper_problem()
    first, second = problem.costs
    large = Candidate("GEMM", 100.0, 1 << 30, 1.0)
    first = dataclasses.replace(first, candidates=(*first.candidates, large))
    stage = dataclasses.replace(
        problem.stages[0],
        stage=problem.stages[0].stage.with_algorithms(("GEMM", FFT)),
        latency_us=50.0,
        workspace_bytes=1 << 30,
    )
    problem = dataclasses.replace(
        problem,
        costs=(first, second),
        stages=(*problem.stages, stage),
        memory_budget_bytes=10 << 20,
    )
    why_not = alternatives_of(problem)["GEMM", FFT].why_not
    assert "does not fit" in why_not and f"{8 << 20} are left" in why_not


def test_an_unstaged_convolution_is_pinned_for_its_memory() -> None:
    # What is fastest alone does not fit, together or not.
    problem = with_candidates(
        paper_problem(), gemm_workspace_bytes=100 << 20, fft_workspace_bytes=5 << 20
    )
    problem = dataclasses.replace(problem, memory_budget_bytes=10 << 20)
    plan = explain_plan(problem, make_plan(problem))
    assert [len(planned.stage.lanes) for planned in plan.stages] == [1, 1]
    for planned in plan.stages:
        assert planned.explanation is not None
        [alternative] = planned.explanation.alternatives
        assert (alternative.latency_us, alternative.source) == (100.0, MEASURED)
        assert "does not fit" in alternative.why_not
    said = words_of(plan)
    assert "Stage 0: pinned for its memory: 105.0 us" in said
    assert "lanes take more" not in said.split("Shares of one SM")[0]


def problem_to_merge(**stages: dict[str, float]) -> PlanningProblem:
    return make_problem(
        {"a": "", "b": "", "c": ""},
        {"a": 10, "b": 20, "c": 10},
        merge_keys={"a": "x", "b": "x"},
        **stages,
    )


def test_explains_what_is_merged_and_what_is_not() -> None:
    problem = problem_to_merge(merged={"a b": 20}, stages={"a b": 24})
    explanation = explanation_of(problem)
    # One after another, each with what is fastest alone.
    assert explanation.lanes == (LaneExplanation(30, 5, None, 30),)
    apart = Alternative(make_lanes("a b"), 24, MEASURED, 10, "not faster")
    assert explanation.alternatives == (apart,)
    said = shown(problem)
    assert "lane 0: a and b, merged into one wider convolution, with WINOGRAD" in said
    assert "one after another they take 30.0 us" in said
    assert "Not GEMM, GEMM (24.0 us measured, 10 bytes of workspace)" in said

    problem = problem_to_merge(merged={"a b": 26}, stages={"a b": 24})
    merged = Alternative(merge("a b"), 26, MEASURED, 7, "not faster")
    assert explanation_of(problem).alternatives == (merged,)
    assert "Not 2 merged with WINOGRAD (26.0 us measured" in shown(problem)
    # Of different images it does not matter what merged ones take.
    problem = make_problem({"a": "", "b": ""}, {"a": 10, "b": 20}, {"a b": 24}, merged={"a b": 26})
    assert explanation_of(problem).alternatives == ()


def test_explains_what_is_merged_beside_another() -> None:
    def stage(algorithm: str) -> Stage[str]:
        [merged] = merge("b a", algorithm).lanes
        return Stage((Lane((Step("c", "GEMM"),)), merged))

    measured = (MeasuredStage(stage("FFT"), 27), MeasuredStage(stage("WINOGRAD"), 25))
    problem = dataclasses.replace(problem_to_merge(), stages=measured)
    explanation = explanation_of(problem)
    alone = (LaneExplanation(10, 5, "GEMM", 10), LaneExplanation(30, 5, None, 30))
    assert explanation.lanes == alone
    assert explanation.alternatives == (Alternative(stage("FFT"), 27, MEASURED, 0, "not faster"),)
    assert "Not GEMM, 2 merged with FFT (27.0 us" in shown(problem)


def test_explains_a_lane_of_dependent_steps() -> None:
    problem = make_problem({"a": "", "b": "a", "c": ""}, dict.fromkeys("abc", 10.0), {"a>b c": 18})
    large = dataclasses.replace(problem.costs[1].candidates[0], algorithm="FFT", latency_us=8.0)
    costs = dataclasses.replace(problem.costs[1], candidates=(*problem.costs[1].candidates, large))
    problem = dataclasses.replace(problem, costs=(problem.costs[0], costs, problem.costs[2]))
    explanation = explanation_of(problem)
    # Both with what is pinned, and with what is fastest.
    assert explanation.lanes[0] == LaneExplanation(20, 5, None, 18)
    assert explanation.alternatives == ()
    said = shown(problem)
    assert "lane 0: a with GEMM → b with GEMM lane 1: c with GEMM" in said
    assert "each with what is fastest alone it is faster, 18.0 us" in said
    faster = dataclasses.replace(problem.stages[0], latency_us=19.0)
    faster = dataclasses.replace(
        faster, stage=faster.stage.with_algorithms(("GEMM", "FFT", "GEMM"))
    )
    problem = dataclasses.replace(problem, stages=(*problem.stages, faster))
    assert list(alternatives_of(problem)) == [("GEMM", "FFT", "GEMM")]
    assert "Not GEMM → FFT, GEMM (19.0 us measured" in shown(problem)


def test_blocks_alike_are_explained_by_their_own_names() -> None:
    nodes = {"a": "", "b": "", "c": "a b", "d": "a b"}
    problem = make_problem(nodes, dict.fromkeys("abcd", 10.0), {"a b": 12}, merged={"a b": 13})
    alike = tuple(
        dataclasses.replace(node, costs=costs, merge_key=key)
        for node, costs, key in zip(problem.nodes, "abab", "xxyy", strict=True)
    )
    problem = dataclasses.replace(problem, nodes=alike)
    first, second = explain_plan(problem, make_plan(problem)).stages
    assert first.explanation is not None and second.explanation is not None
    assert [each.stage for each in first.explanation.alternatives] == [merge("a b")]
    assert [each.stage for each in second.explanation.alternatives] == [merge("c d")]


def test_shows_every_batch_size_of_a_stage() -> None:
    a, b = Step("a", "GEMM"), Step("b", "GEMM")
    apart = Stage((Lane((a,), priority=-1), Lane((b,))))
    schedules = (BatchSchedule(2, merge("a b", "GEMM")), BatchSchedule(8, apart))
    graph = GraphPlan("f", 2, (PlannedStage(apart, schedules=schedules),))
    assert (
        "batch size 2: lane 0: a and b, merged into one wider convolution, with GEMM "
        "batch size 8: lane 0: a with GEMM, priority -1 lane 1: b with GEMM "
        "any other batch size: in sequence"
    ) in words_of(graph)


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
    plan = make_plan(paper_problem())
    [stage] = plan.stages
    assert plan.prediction is not None and stage.prediction is not None
    modelled = dataclasses.replace(stage.prediction, latency_us=30.0, source=MODELLED)
    plan = dataclasses.replace(
        plan,
        stages=(dataclasses.replace(stage, prediction=modelled),),
        prediction=dataclasses.replace(plan.prediction, latency_us=90.0),
        mode="inference",
    )
    text = io.StringIO()
    show_plan(Plan((plan,)), Console(file=text))
    said = " ".join(text.getvalue().split())
    assert "inference 8 3 1 90.0 200.0 2.22 67 % 5.2 MB 3.1 MB" in said
