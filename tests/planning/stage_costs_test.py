"""Costs of stages: measurements come before the model, which is trusted as far as it was right."""

from __future__ import annotations

import dataclasses

import pytest
from plan_values import make_lanes
from planning_values import H200, named, problem_of, timed, timed_stage
from profile_values import KERNEL

from tf_interop.planning.problem import PlanningProblem, ProblemNode
from tf_interop.planning.stage_costs import Choice, StageCosts
from tf_interop.planning.stage_model import UNCALIBRATED_SPREAD, StageModel
from tf_interop.planning.types import ValueSource
from tf_interop.profile.entries import AlgorithmMeasurement, StageMeasurement

# Two such kernels run on different SMs, and take no longer than one.
SMALL = dataclasses.replace(KERNEL, grid=(60, 1, 1))
# It fills all SMs, so another kernel gains nothing.
LARGE = dataclasses.replace(SMALL, grid=(13200, 1, 1), block=(1024, 1, 1))


def small(name: str, latency_us: float = 10.0, workspace_bytes: int = 0) -> AlgorithmMeasurement:
    return timed(named(name), "GEMM", latency_us, workspace_bytes, SMALL)


def large(name: str) -> AlgorithmMeasurement:
    return timed(named(name), "GEMM", 10.0, 0, LARGE)


def gpu_problem(
    *algorithms: AlgorithmMeasurement, stages: tuple[StageMeasurement, ...] = ()
) -> PlanningProblem:
    """A node for each of the convolutions; all read one image."""
    nodes = [
        ProblemNode(each.op, each, merge_key="x")
        for each in dict.fromkeys(its.configuration for its in algorithms)
    ]
    return problem_of(nodes, algorithms, stages, device=H200)


def measured(lanes: str, latency_us: float, sequential_us: float = 20.0) -> StageMeasurement:
    return timed_stage(
        make_lanes(*lanes.split(), algorithm="GEMM").map(named), latency_us, sequential_us
    )


def stage_costs(problem: PlanningProblem, max_modelled: int = 1000) -> StageCosts:
    return StageCosts(problem, max_modelled=max_modelled)


def choices(costs: StageCosts, lanes: str) -> tuple[Choice, ...]:
    """The choices for lanes of nodes `a`, `b`, `c`, …, such as `a b>c`."""
    numbers = [[ord(name) - ord("a") for name in lane.split(">")] for lane in lanes.split()]
    return costs.choices(tuple(map(tuple, numbers)))


PAIR = gpu_problem(small("a"), small("b"))
MERGED = timed_stage(make_lanes("+a:GEMM b:GEMM").map(named), 19, 20)


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ((), [(10, ValueSource.MODELLED)]),
        ((measured("a b", 15),), [(15, ValueSource.MEASURED)]),
        # A measured loss is not modelled in another order.
        ((measured("a b", 21),), []),
        ((measured("b a", 21),), []),
        # A pair that loses merged may win side by side.
        ((MERGED,), [(10, ValueSource.MODELLED)]),
    ],
)
def test_a_measured_stage_comes_before_the_model(
    stages: tuple[StageMeasurement, ...], expected: list[tuple[float, ValueSource]]
) -> None:
    found = choices(stage_costs(dataclasses.replace(PAIR, stages=stages)), "a b")
    its = [each.prediction for each in found]
    assert [(pytest.approx(each.latency_us), each.source) for each in its] == expected


@pytest.mark.parametrize(("measured_us", "expected"), [(12.4, ["GEMM"]), (14.0, ["FFT"])])
def test_the_model_must_beat_a_measured_stage_by_more_than_its_error(
    measured_us: float, expected: list[str]
) -> None:
    # Modelled with FFT for "a", the stage takes 11 ± 2.2 µs.
    fft = timed(named("a"), "FFT", 11, 0, SMALL)
    problem = gpu_problem(large("a"), fft, small("b"), stages=(measured("a b", measured_us),))
    algorithms = [
        step.algorithm
        for choice in choices(stage_costs(problem), "a b")
        for step in choice.stage.steps
        if step.operation == problem.number_of[named("a")]
    ]
    assert algorithms == expected


def test_models_three_lanes_only_if_two_of_them_win() -> None:
    assert choices(stage_costs(gpu_problem(*map(large, "abc"))), "a b c") == ()
    three = gpu_problem(*map(small, "abc"))
    assert choices(stage_costs(three), "a b c")[0].prediction.latency_us == pytest.approx(20)
    # Measured as fast as modelled, but with a large error, so the bound alone would allow it.
    losing = tuple(
        dataclasses.replace(measured(pair, 10), spread_us=15) for pair in ("a b", "a c", "b c")
    )
    assert choices(stage_costs(dataclasses.replace(three, stages=losing)), "a b c") == ()


def test_models_no_more_than_it_may_and_says_so() -> None:
    costs = stage_costs(gpu_problem(*map(small, "abc")), max_modelled=1)
    assert choices(costs, "a b")
    assert choices(costs, "a c") == choices(costs, "b c") == ()
    assert choices(costs, "a b")
    assert "2 sets left out after the limit of 1 modelled" in costs.describe()


def known_pairs(*latencies_us: float) -> PlanningProblem:
    """Measured pairs of small kernels, which the model expects to take 10 µs."""
    names = [f"c{number}" for number in range(2 * len(latencies_us))]
    pairs = zip(names[::2], names[1::2], latencies_us, strict=True)
    stages = tuple(measured(f"{first} {second}", us) for first, second, us in pairs)
    return gpu_problem(*map(small, names), stages=stages)


def learned(problem: PlanningProblem) -> tuple[float, float, int]:
    model = StageModel(problem)
    return model.factor, model.spread, model.measured_count


def test_calibrates_with_the_median_ratio_and_its_scatter() -> None:
    problem = known_pairs(11, 12, 15)
    assert learned(problem) == pytest.approx((1.2, 15 / 12 - 1, 3))
    assert learned(known_pairs(11, 12)) == (1.0, UNCALIBRATED_SPREAD, 0)
    merged = timed_stage(make_lanes("+c0:GEMM c1:GEMM").map(named), 40, 20)  # does not count
    more = (*problem.stages, *[merged] * 3)
    assert learned(dataclasses.replace(problem, stages=more)) == learned(problem)


def test_a_calibrated_stage_takes_no_less_than_its_longest_convolution() -> None:
    problem = known_pairs(5, 5, 5)
    assert learned(problem)[0] == pytest.approx(0.5)
    (choice,) = stage_costs(problem).choices(((0,), (2,)))
    assert choice.prediction.latency_us == 10


# "b" may follow "a".
CHAIN = dataclasses.replace(
    gpu_problem(small("a", 10, 1), small("b", 10, 20), small("c", 20, 300)),
    nodes=(
        ProblemNode("a", named("a")),
        ProblemNode("b", named("b"), (0,), (0,)),
        ProblemNode("c", named("c")),
    ),
)


def test_models_the_steps_of_a_lane_one_after_another() -> None:
    (choice,) = choices(stage_costs(CHAIN), "a>b c")
    expected = choice.prediction
    assert expected.source is ValueSource.MODELLED
    assert expected.latency_us == pytest.approx(20)
    assert sorted(lane.operations for lane in choice.stage.lanes) == [(0, 1), (2,)]
    # The steps of a lane share a workspace.
    assert expected.workspace_bytes == 320


@pytest.mark.parametrize(
    ("lanes", "source"), [("a>b c", ValueSource.MEASURED), ("a b>c", ValueSource.MODELLED)]
)
def test_only_a_measured_stage_with_the_same_lanes_counts(lanes: str, source: ValueSource) -> None:
    costs = stage_costs(dataclasses.replace(CHAIN, stages=(measured(lanes, 25, 40),)))
    (choice,) = choices(costs, "a>b c")
    assert choice.prediction.source is source
