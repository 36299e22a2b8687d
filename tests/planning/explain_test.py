"""Explanations: the values that a stage was chosen by, and why others are none."""

from __future__ import annotations

import dataclasses
import io

import pytest
from paper_problem import FFT, FFT_KERNEL, GEMM, GEMM_KERNEL, paper_problem
from planning_values import make_lanes, make_problem, merge
from profile_values import HOPPER_SM, KERNEL
from rich.console import Console

from tf_interop.planning.explain import explain_plan
from tf_interop.planning.make import make_plan
from tf_interop.planning.problem import Candidate, PlanningProblem, ValueSource
from tf_interop.planning.show import explain_stages
from tf_interop.planning.types import (
    Alternative,
    GraphPlan,
    LaneExplanation,
    Plan,
    PlannedStage,
    StageExplanation,
)
from tf_interop.stage import Lane, Schedule, Stage, Step

MEASURED, MODELLED = ValueSource.MEASURED, ValueSource.MODELLED


def explained(problem: PlanningProblem) -> GraphPlan:
    return explain_plan(problem, make_plan(problem))


def explanation_of(problem: PlanningProblem) -> StageExplanation:
    [stage] = explained(problem).stages
    return stage.explanation


def words_of(*graphs: GraphPlan) -> str:
    text = io.StringIO()
    explain_stages(Plan(graphs), Console(file=text))
    return " ".join(text.getvalue().split())


def of_candidates(*candidates: Candidate, **changes: object) -> PlanningProblem:
    """The paper's example with other candidates, and nothing measured together."""
    problem = paper_problem()
    costs = tuple(dataclasses.replace(each, candidates=candidates) for each in problem.costs)
    return dataclasses.replace(problem, costs=costs, stages=(), **changes)


def modelled_example() -> PlanningProblem:
    """The second kernel fills the device once."""
    gemm = dataclasses.replace(GEMM_KERNEL, grid=(1200, 1, 1), dram_utilization=0.1)
    fft = dataclasses.replace(FFT_KERNEL, grid=(120, 1, 1), dram_utilization=0.1)
    return of_candidates(
        Candidate(GEMM, 100.0, kernels=(gemm,)), Candidate(FFT, 105.0, kernels=(fft,))
    )


@pytest.mark.parametrize(
    ("problem", "source", "crowded"),
    [
        (
            paper_problem(),
            MEASURED,
            ["184 % of the registers (chosen: 130 %)", "140 % of the ALU time (chosen: 100 %)"],
        ),
        (modelled_example(), MODELLED, ["184 % of the registers"]),
        (dataclasses.replace(paper_problem(), sm_limits=None), MEASURED, []),
    ],
    ids=["measured", "modelled", "kernels_unknown"],
)
def test_says_why_the_fastest_alone_are_not_together(
    problem: PlanningProblem, source: ValueSource, crowded: list[str]
) -> None:
    [alternative] = [
        each
        for each in explanation_of(problem).alternatives
        if [step.algorithm for step in each.stage.steps] == [GEMM, GEMM]
    ]
    assert alternative.source is source
    assert alternative.why_not.startswith("not faster")
    assert all(each in alternative.why_not for each in crowded)
    assert ("its lanes together need" in alternative.why_not) == bool(crowded)


def test_the_example_in_words() -> None:
    said = words_of(dataclasses.replace(explained(paper_problem()), mode="inference"))
    for part in (
        "inference 8 3 1 130.0 200.0 1.54 100 %",
        "130.0 ± 2.0 µs measured, against 200.0 µs one after another",
        "alone 100.0 µs, 1.0 MB of workspace, 92 % of the registers, 39 % of the shared memory",
        "together 130 % of the registers, 114 % of the shared memory",
        f"alone 105.0 µs, 100.0 µs with {GEMM}, 2.1 MB of workspace",
        f"Not {GEMM}, {GEMM} (190.0 µs measured, 3.1 MB of workspace): not faster",
    ):
        assert part in said
    assert " 0 %" in words_of(explained(modelled_example()))


def test_an_unstaged_convolution_is_pinned_for_its_memory() -> None:
    # What is fastest alone does not fit, together or not.
    problem = of_candidates(
        Candidate(GEMM, 100.0, 100 << 20),
        Candidate(FFT, 105.0, 5 << 20),
        memory_budget_bytes=10 << 20,
    )
    plan = explained(problem)
    assert [len(planned.stage.lanes) for planned in plan.stages] == [1, 1]
    for planned in plan.stages:
        [alternative] = planned.explanation.alternatives
        assert (alternative.latency_us, alternative.source) == (100.0, MEASURED)
        assert "does not fit" in alternative.why_not
    assert "Stage 0: pinned for its memory: 105.0 µs" in words_of(plan)


def test_explains_what_is_merged_and_what_is_not() -> None:
    def problem_to_merge(merged_us: float, keys: dict[str, str]) -> PlanningProblem:
        return make_problem(
            {"a": "", "b": ""},
            {"a": 10, "b": 20},
            {"a b": 24},
            merged={"a b": merged_us},
            merge_keys=keys,
        )

    explanation = explanation_of(problem_to_merge(20, ONE_IMAGE))
    # One after another, each with what is fastest alone.
    assert explanation.lanes == (LaneExplanation(30, 5, None, 30),)
    apart = Alternative(make_lanes("a b"), 24, MEASURED, 10, "not faster")
    assert explanation.alternatives == (apart,)
    said = words_of(explained(problem_to_merge(20, ONE_IMAGE)))
    assert "lane 0: a and b, merged into one wider convolution, with WINOGRAD" in said
    assert "one after another they take 30.0 µs" in said

    merged = Alternative(merge("a b"), 26, MEASURED, 7, "not faster")
    assert explanation_of(problem_to_merge(26, ONE_IMAGE)).alternatives == (merged,)
    # Of different images it does not matter what merged ones take.
    assert explanation_of(problem_to_merge(26, {})).alternatives == ()


def test_explains_a_lane_of_dependent_steps() -> None:
    problem = make_problem({"a": "", "b": "a", "c": ""}, dict.fromkeys("abc", 10.0), {"a>b c": 18})
    costs = dataclasses.replace(
        problem.costs[1], candidates=(Candidate("GEMM", 10.0, 5), Candidate("FFT", 8.0, 5))
    )
    problem = dataclasses.replace(problem, costs=(problem.costs[0], costs, problem.costs[2]))
    # Both with what is pinned, and with what is fastest.
    assert explanation_of(problem).lanes[0] == LaneExplanation(20, 5, None, 18)
    said = words_of(explained(problem))
    assert "lane 0: a with GEMM → b with GEMM" in said
    assert "alone 20.0 µs, 18.0 µs with the fastest of each" in said


def test_shows_every_batch_size_of_a_stage() -> None:
    a, b = Step("a", "GEMM"), Step("b", "GEMM")
    apart = Stage((Lane((a,), priority=-1), Lane((b,))))
    schedules = (Schedule(2, merge("a b", "GEMM")), Schedule(8, apart))
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
    plan = dataclasses.replace(plan, stages=by_hand, prediction=None)
    assert explain_plan(problem, plan) == plan


PAIR = {"a": "", "b": ""}
TEN = {"a": 10.0, "b": 10.0}
ONE_IMAGE = {"a": "x", "b": "x"}


def modelled_pair() -> PlanningProblem:
    """Kernels of which one block fills an SM."""
    kernel = dataclasses.replace(KERNEL, grid=(132, 1, 1), block=(512, 1, 1))
    problem = make_problem(PAIR, TEN)
    candidates = (Candidate("GEMM", 10.0, kernels=(kernel,)),)
    costs = tuple(dataclasses.replace(each, candidates=candidates) for each in problem.costs)
    return dataclasses.replace(problem, costs=costs, sm_count=132, sm_limits=HOPPER_SM)


def ten_each(nodes: dict[str, str], stages: dict[str, float], **others: int) -> PlanningProblem:
    return make_problem(nodes, dict.fromkeys(nodes, 10.0), stages, **others)


@pytest.mark.parametrize(
    ("problem", "pair", "why_not"),
    [
        (make_problem(PAIR, TEN, {"a b": 23.5}), "a b", ["measured 3.5 µs slower"]),
        (
            make_problem(PAIR, TEN, {"a b": 18}, spread_us=2.5),
            "a b",
            ["measured 2.0 µs faster", "±2.5 µs"],
        ),
        (make_problem(PAIR, TEN), "a b", ["not measured together"]),
        (modelled_pair(), "a b", ["modelled to take as long"]),
        (
            make_problem(PAIR, TEN, {"a b": 21}, merge_keys=ONE_IMAGE),
            "a b",
            ["measured 1.0 µs slower", "merged", "not measured"],
        ),
        (
            ten_each({"a": "", "b": "", "c": ""}, {"a b": 12, "a c": 15}),
            "a c",
            ["5.0 µs faster, measured", "'a' runs in stage 0"],
        ),
        # "c" and "f" win together, but "g", after "c", shares a stage with "e", before "f".
        (
            ten_each({"c": "", "e": "", "g": "c", "f": "e"}, {"e g": 11, "c f": 12}),
            "c f",
            ["8.0 µs faster, measured", "the order of this plan or"],
        ),
        (ten_each(PAIR, {"a b": 12}, memory_budget_bytes=26), "a b", ["the memory budget"]),
    ],
)
def test_says_why_not(problem: PlanningProblem, pair: str, why_not: list[str]) -> None:
    plan = explained(problem)
    [found] = [each for each in plan.rejected if " ".join(each.nodes) == pair]
    assert all(each in found.why_not for each in why_not), found
    if not plan.stages:
        which, _, rest = plan.why_no_stage.partition(", ")
        assert rest == f"{' and '.join(pair.split())}: {found.why_not}"
        # Only what may win is called so.
        assert (which == "the most promising") == found.may_win


@pytest.mark.parametrize(
    ("latencies_us", "stages", "spread_us", "first"),
    [
        # Of those in no stage what could save most, then what has one in a stage.
        (
            {"a": 50, "b": 50, "c": 5, "d": 20, "e": 30, "f": 1},
            {"a b": 60, "d e": 49.5},
            1,
            ["d e", "c d", "c e"],
        ),
        # What may win before what is known to be slower.
        ({"a": 9, "b": 8, "c": 4}, {"a b": 20, "a c": 13}, 0, ["b c", "a c", "a b"]),
    ],
)
def test_puts_first_what_could_save_most(
    latencies_us: dict[str, float], stages: dict[str, float], spread_us: float, first: list[str]
) -> None:
    nodes = dict.fromkeys(latencies_us, "")
    rejected = explained(make_problem(nodes, latencies_us, stages, spread_us=spread_us)).rejected
    assert [" ".join(each.nodes) for each in rejected[:3]] == first
    assert len(rejected) <= 5


def test_tells_of_equal_ones_once_and_of_those_in_no_stage() -> None:
    # "p" and "q" come twice; the first "p" shares a stage with "r".
    problem = ten_each({"p": "", "q": "", "r": "", "p2": "p q r", "q2": "p q r"}, {"p r": 12})
    renamed = tuple(
        dataclasses.replace(each, costs=each.name.rstrip("2")) for each in problem.nodes
    )
    plan = explained(dataclasses.replace(problem, nodes=renamed))
    assert (plan.rejected[0].nodes, plan.rejected[0].count) == (("p2", "q2"), 2)
    assert "p2 and q2 (1 more of the same costs): not measured" in words_of(plan)


def test_says_nothing_of_what_can_be_no_stage_or_is_one() -> None:
    chain = explained(ten_each({"a": "", "b": "a", "c": "b"}, {}))
    assert chain.rejected == ()
    assert chain.why_no_stage == "no two of its measured convolutions are independent"
    problem = make_problem(PAIR, TEN)
    nodes = (problem.nodes[0], dataclasses.replace(problem.nodes[1], group="GPU:1"))
    assert explained(dataclasses.replace(problem, nodes=nodes)).rejected == ()
    staged = explained(make_problem(PAIR, TEN, {"a b": 12}))
    assert (staged.rejected, staged.why_no_stage) == ((), "")
