"""Explanations: the values that led to a stage, and the reasons against others."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from typing import Any

import pytest
from plan_values import landmarks_of, make_lanes
from planning_values import make_problem, named, problem_of, timed, timed_stage
from profile_values import KERNEL
from rich.console import Console

from tf_interop.planning.explain import explain_plan
from tf_interop.planning.make import make_plan
from tf_interop.planning.problem import PlanningProblem, ProblemNode
from tf_interop.planning.show import explain_stages, why_no_stage
from tf_interop.planning.sm_model import Device
from tf_interop.planning.types import (
    GraphPlan,
    LaneAlone,
    Plan,
    PlannedStage,
    StageChoice,
    StagePrediction,
    ValueSource,
)
from tf_interop.profile.entries import StageMeasurement
from tf_interop.profile.types import SmLimits
from tf_interop.stage import Lane, Schedule, Stage, Step
from tf_interop.structure import Structure

MEASURED = ValueSource.MEASURED

# Pourghassemi et al., SPAA 2020, Table 1: PRECOMP_GEMM takes 92 % of an SM's registers and 39 % of
# its shared memory and keeps the ALUs busy for 70 % of the time; FFT_TILING takes 38 % and 75 %,
# 30 %, and waits for memory in 15 % of its stalls. Times and device are made up.
GEMM, FFT = "IMPLICIT_PRECOMP_GEMM", "FFT_TILING"
GEMM_KERNEL = dataclasses.replace(
    KERNEL,
    grid=(1200, 1, 1),
    block=(256, 1, 1),
    registers_per_thread=118,
    shared_memory_bytes=19200,
    alu_utilization=0.7,
    dram_utilization=0.1,
)
# It fills the device once.
FFT_KERNEL = dataclasses.replace(
    GEMM_KERNEL,
    grid=(120, 1, 1),
    block=(320, 1, 1),
    registers_per_thread=40,
    shared_memory_bytes=36864,
    alu_utilization=0.3,
    memory_stall=0.15,
)
ALGORITHMS = ((GEMM, 100.0, 1 << 20, GEMM_KERNEL), (FFT, 105.0, 2 << 20, FFT_KERNEL))
TOGETHER_US = {(GEMM, GEMM): 190.0, (GEMM, FFT): 130.0, (FFT, GEMM): 132.0, (FFT, FFT): 185.0}
LAYERS = (named("3x3", 1 << 20), named("5x5", 1 << 20))


def paper_problem(
    algorithms: Sequence[tuple[Any, ...]], stages: Sequence[StageMeasurement] = (), **others: int
) -> PlanningProblem:
    """Two independent layers, each with these algorithms."""
    return problem_of(
        map(ProblemNode, ("layer_3x3", "layer_5x5"), LAYERS),
        [timed(layer, *each) for layer in LAYERS for each in algorithms],
        stages,
        device=Device(SmLimits(66783, 98304, threads=2048, blocks=32), sm_count=60),
        structure=Structure("f", landmarks_of("layer_3x3", "layer_5x5")),
        batch_size=8,
        **others,
    )


PAPER_PROBLEM = paper_problem(
    ALGORITHMS,
    [
        timed_stage(Stage.side_by_side(map(Step, LAYERS, its)), us, 200.0, 2.0, 3 << 20)
        for its, us in TOGETHER_US.items()
    ],
)


def explained(problem: PlanningProblem) -> GraphPlan:
    return explain_plan(problem, make_plan(problem))


def explained_stage(problem: PlanningProblem) -> PlannedStage:
    [stage] = explained(problem).stages
    return stage


def words_of(graph: GraphPlan) -> str:
    text = io.StringIO()
    explain_stages(Plan((graph,)), Console(file=text))
    return " ".join(text.getvalue().split())


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (
            {},
            [
                "inference 8 2 1 130.0 200.0 1.54 100 %",
                "130.0 ± 2.0 µs measured, against 200.0 µs one after another",
                "alone 100.0 µs, 1.0 MB of workspace, 92 % of the registers, 39 % of the shared",
                "together 130 % of the registers, 114 % of the shared memory",
                f"alone 105.0 µs, 100.0 µs with {GEMM}, 2.1 MB of workspace",
                f"Not {GEMM}, {GEMM} (190.0 µs measured, 3.1 MB of workspace): not faster; its "
                "lanes together need 184 % of the registers (chosen: 130 %), 140 % of the ALU time "
                "(chosen: 100 %)",
            ],
        ),
        (
            {"stages": ()},
            [
                "inference 8 2 1 155.0 200.0 1.29 0 %",
                "155.0 ± 31.0 µs modelled, against 200.0 µs one after another",
                f"Not {GEMM}, {GEMM} (200.0 µs modelled, 2.1 MB of workspace): not faster; its "
                "lanes together need 184 % of the registers",
            ],
        ),
        ({"device": None}, ["alone 100.0 µs, 1.0 MB of workspace"]),
    ],
    ids=["measured", "modelled", "device_unknown"],
)
def test_the_example_in_words(changes: dict[str, Any], parts: list[str]) -> None:
    graph = explained(dataclasses.replace(PAPER_PROBLEM, **changes))
    said = words_of(dataclasses.replace(graph, mode="inference"))
    for part in parts:
        assert part in said
    assert ("of the registers" in said) == ("device" not in changes)


def test_a_single_convolution_is_pinned_for_its_memory() -> None:
    # The algorithm that is fastest alone does not fit.
    algorithms = ((GEMM, 100.0, 100 << 20), (FFT, 105.0, 5 << 20))
    plan = explained(paper_problem(algorithms, memory_budget_bytes=10 << 20))
    assert [len(planned.stage.lanes) for planned in plan.stages] == [1, 1]
    for planned in plan.stages:
        [alternative] = planned.alternatives
        expected = alternative.prediction
        assert (expected.latency_us, expected.source) == (100.0, MEASURED)
        assert expected.peak_bytes > 100 << 20
        assert "does not fit" in alternative.why_not
    assert "Stage 0: pinned for its memory: 105.0 µs" in words_of(plan)


PAIR = {"a": "", "b": ""}
TEN = {"a": 10.0, "b": 10.0}
ONE_IMAGE = {"a": "x", "b": "x"}


def problem_to_merge(merged_us: float, keys: dict[str, str]) -> PlanningProblem:
    return make_problem(
        PAIR, {"a": 10, "b": 20}, {"a b": 24}, merged={"a b": merged_us}, merge_keys=keys
    )


def test_explains_a_merged_lane() -> None:
    stage = explained_stage(problem_to_merge(20, ONE_IMAGE))
    # One after another, each with its fastest algorithm.
    assert stage.alone == (LaneAlone(30, 5, None, 30),)
    expected = StagePrediction(24, 0, 30, MEASURED, workspace_bytes=10, peak_bytes=30)
    apart = StageChoice(make_lanes("a", "b", algorithm="GEMM"), expected, "not faster")
    assert stage.alternatives == (apart,)
    said = words_of(explained(problem_to_merge(20, ONE_IMAGE)))
    assert "lane 0: a and b, merged into one wider convolution, with WINOGRAD" in said
    assert "one after another they take 30.0 µs" in said


def test_merging_is_an_alternative_if_the_image_is_the_same() -> None:
    expected = StagePrediction(26, 0, 30, MEASURED, workspace_bytes=7, peak_bytes=27)
    merged = StageChoice(make_lanes("+a b", algorithm="WINOGRAD"), expected, "not faster")
    assert explained_stage(problem_to_merge(26, ONE_IMAGE)).alternatives == (merged,)
    assert explained_stage(problem_to_merge(26, {})).alternatives == ()


def test_explains_a_lane_of_dependent_steps() -> None:
    problem = make_problem({"a": "", "b": "a", "c": ""}, dict.fromkeys("abc", 10.0), {"a>b c": 18})
    second = problem.nodes[1].configuration
    faster = (timed(second, "FFT", 8.0, 5), *problem.algorithms[second])
    problem = dataclasses.replace(problem, algorithms={**problem.algorithms, second: faster})
    # The pinned algorithms take 20 µs, the fastest ones 18 µs.
    assert explained_stage(problem).alone[0] == LaneAlone(20, 5, None, 18)
    said = words_of(explained(problem))
    assert "lane 0: a with GEMM → b with GEMM" in said
    assert "alone 20.0 µs, 18.0 µs with the fastest of each" in said


def test_shows_every_batch_size_of_a_stage() -> None:
    apart = Stage((Lane((Step("a", "GEMM"),), priority=-1), Lane((Step("b", "GEMM"),))))
    schedules = (Schedule(2, make_lanes("+a b", algorithm="GEMM")), Schedule(8, apart))
    graph = GraphPlan("f", landmarks_of("a", "b"), (PlannedStage(apart, schedules=schedules),))
    assert (
        "batch size 2: lane 0: a and b, merged into one wider convolution, with GEMM "
        "batch size 8: lane 0: a with GEMM, priority -1 lane 1: b with GEMM "
        "any other batch size: in sequence"
    ) in words_of(graph)


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
        (paper_problem(ALGORITHMS[:1]), "layer_3x3 layer_5x5", ["modelled to take as long"]),
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
def test_says_why_a_pair_is_no_stage(
    problem: PlanningProblem, pair: str, why_not: list[str]
) -> None:
    plan = explained(problem)
    [found] = [each for each in plan.rejected if " ".join(each.nodes) == pair]
    assert all(each in found.why_not for each in why_not), found
    if not plan.stages:
        which, _, rest = why_no_stage(plan).partition(", ")
        assert rest == f"{' and '.join(pair.split())}: {found.why_not}"
        assert (which == "the most promising") == found.may_win


@pytest.mark.parametrize(
    ("latencies_us", "stages", "spread_us", "first"),
    [
        # Pairs in no stage by the possible saving, then pairs with one node in a stage.
        (
            {"a": 50, "b": 50, "c": 5, "d": 20, "e": 30, "f": 1},
            {"a b": 60, "d e": 49.5},
            1,
            ["d e", "c d", "c e"],
        ),
        # Pairs that may win come before a slower one.
        ({"a": 9, "b": 8, "c": 4}, {"a b": 20, "a c": 13}, 0, ["b c", "a c", "a b"]),
    ],
)
def test_puts_the_largest_possible_saving_first(
    latencies_us: dict[str, float], stages: dict[str, float], spread_us: float, first: list[str]
) -> None:
    nodes = dict.fromkeys(latencies_us, "")
    rejected = explained(make_problem(nodes, latencies_us, stages, spread_us=spread_us)).rejected
    assert [" ".join(each.nodes) for each in rejected[:3]] == first
    assert len(rejected) <= 5


def test_names_one_of_equal_pairs_and_one_in_no_stage() -> None:
    # "p" and "q" come twice; the first "p" shares a stage with "r".
    problem = ten_each({"p": "", "q": "", "r": "", "p2": "p q r", "q2": "p q r"}, {"p r": 12})
    configuration_of = {each.name: each.configuration for each in problem.nodes}
    twice = tuple(
        dataclasses.replace(each, configuration=configuration_of[each.name.rstrip("2")])
        for each in problem.nodes
    )
    plan = explained(dataclasses.replace(problem, nodes=twice))
    assert (plan.rejected[0].nodes, plan.rejected[0].count) == (("p2", "q2"), 2)
    assert "p2 and q2 (1 more of the same costs): not measured" in words_of(plan)


def test_rejects_no_stage_and_no_dependent_pair() -> None:
    chain = explained(ten_each({"a": "", "b": "a", "c": "b"}, {}))
    assert chain.rejected == ()
    assert why_no_stage(chain) == "no two of its measured convolutions are independent"
    problem = make_problem(PAIR, TEN)
    nodes = (problem.nodes[0], dataclasses.replace(problem.nodes[1], group="GPU:1"))
    assert explained(dataclasses.replace(problem, nodes=nodes)).rejected == ()
    staged = explained(make_problem(PAIR, TEN, {"a b": 12}))
    assert staged.rejected == ()
