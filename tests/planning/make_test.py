"""The planner: optimal on every small problem, never slower than sequential, within its memory."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pathlib
import subprocess
import sys

import pytest
from checked_plan import checked_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_values import least_latency_us, make_problem, problems, problems_to_model

from tf_interop.errors import PlanError
from tf_interop.planning.make import PlanOptions, make_plan
from tf_interop.planning.problem import Candidate, ConvolutionCosts, PlanningProblem, ProblemNode
from tf_interop.planning.stage_costs import find_places
from tf_interop.stage import Lane, Stage, Step

EXACT = PlanOptions(max_measured_lanes=0)
# So wide that nothing is cut off; of lanes with several nodes it may still miss some.
WIDE = PlanOptions(max_transitions=0, width=100_000, max_measured_lanes=0, max_lane_length=1)
NARROW = PlanOptions(max_transitions=0, width=1)

ROOT = pathlib.Path(__file__).resolve().parents[2]


optimal_searches = st.builds(
    dataclasses.replace,
    st.sampled_from([EXACT, dataclasses.replace(EXACT, max_lane_length=1), WIDE]),
    max_lanes=st.integers(2, 4),
)


@settings(max_examples=700, deadline=None)
@given(problems(), optimal_searches)
def test_is_optimal_on_every_small_problem(problem: PlanningProblem, options: PlanOptions) -> None:
    least_us = least_latency_us(problem, options.max_lanes, options.max_lane_length)
    if least_us == math.inf:
        with pytest.raises(PlanError, match=r"Convolution 'n\d'"):
            make_plan(problem, options)
        return
    plan = checked_plan(problem, options)
    assert plan.prediction.latency_us == pytest.approx(least_us)
    assert plan.prediction.search.startswith("exact") == bool(options.max_transitions)


@pytest.mark.parametrize("options", [PlanOptions(), PlanOptions(max_transitions=0)])
@pytest.mark.parametrize(("six_us", "lanes"), [(15.0, [6]), (59.0, [2])])
def test_takes_as_many_lanes_as_were_measured_together_if_they_win(
    options: PlanOptions, six_us: float, lanes: list[int]
) -> None:
    names = dict.fromkeys("abcdef", "")
    stages = {"a b c d e f": six_us, "a b": 12.0}
    plan = checked_plan(make_problem(names, dict.fromkeys(names, 10.0), stages), options)
    assert [len(each.stage.lanes) for each in plan.stages] == lanes


def check_stages_win(problem: PlanningProblem, options: PlanOptions) -> float:
    plan = checked_plan(problem, options)
    for stage in plan.stages:
        if len(stage.nodes) > 1:
            slowest_us = stage.prediction.latency_us + stage.prediction.spread_us
            assert slowest_us < stage.prediction.sequential_us
    return plan.prediction.latency_us


@settings(max_examples=200, deadline=None)
@given(problems_to_model())
def test_with_a_model_it_is_no_slower_than_the_best_of_what_was_measured(
    problem: PlanningProblem,
) -> None:
    least_us = least_latency_us(problem, EXACT.max_lanes)
    if least_us < math.inf:
        assert check_stages_win(problem, EXACT) <= least_us + 1e-9


# What is too wide for a few transitions goes to the beam; other parts of the graph do not.
any_options = st.builds(
    PlanOptions,
    max_lane_length=st.sampled_from([1, 3]),
    max_transitions=st.integers(0, 20),
    width=st.integers(1, 4),
)


@settings(max_examples=400, deadline=None)
@given(problems(most=12), any_options)
def test_within_bounds_it_follows_from_its_problem_and_is_never_slower_than_sequential(
    problem: PlanningProblem, options: PlanOptions
) -> None:
    with contextlib.suppress(PlanError):
        check_stages_win(problem, options)


def test_tries_keys_that_are_alike_once() -> None:
    """In every order of the keys this would take longer than anyone waits."""
    lanes = [Lane((Step("a"),) * 2, merged=True)] * 19
    wanted = Stage((*lanes, Lane((Step("a"),) * 3, merged=True)))
    nodes: list[tuple[str, str | None]] = [("a", str(number // 2)) for number in range(40)]
    assert find_places(wanted, [*nodes, ("a", "alone")]) is None
    assert find_places(wanted, [*nodes, ("a", "19")]) is not None


def test_a_plan_without_stages_needs_the_memory_of_one_after_another() -> None:
    # The search comes by `b` first, which needs less; but nothing makes TensorFlow run it first.
    costs = tuple(
        ConvolutionCosts(name, size, (Candidate(None, 1, 40),))
        for name, size in (("a", 10), ("b", 60), ("c", 1))
    )
    problem = PlanningProblem(
        costs,
        (ProblemNode("a", "a"), ProblemNode("b", "b"), ProblemNode("c", "c", ("b",))),
    )
    plan = make_plan(problem)
    assert not plan.stages
    assert [each.node for each in plan.unstaged] == ["a", "b", "c"]
    assert plan.prediction.peak_bytes == plan.prediction.sequential_peak_bytes == 111


def test_says_what_memory_would_be_enough() -> None:
    problem = make_problem({"a": "", "b": "a"}, {"a": 1, "b": 1}, memory_budget_bytes=24)
    with pytest.raises(PlanError, match=r"Convolution 'b'.*Give 25 bytes"):
        make_plan(problem)
    make_plan(dataclasses.replace(problem, memory_budget_bytes=25))


def test_tells_how_far_it_is() -> None:
    problem = make_problem({"a": "", "b": "a", "c": "b"}, dict.fromkeys("abc", 1.0))
    for options in (EXACT, NARROW):
        told: list[str] = []
        make_plan(problem, options, on_progress=told.append)
        assert told == [f"{count} of 3 convolutions" for count in (1, 2, 3)]


PROGRAM = """
import pathlib, sys
from planning_values import make_problem
from tf_interop.planning.explain import explain_plan
from tf_interop.planning.stage_costs import find_places
from tf_interop.planning.make import PlanOptions, make_plan
from tf_interop.planning.types import Plan
from tf_interop.planning.types import save_plan

names = [f"n{i}" for i in range(12)]
nodes = {name: names[i - 4] if i > 3 else "" for i, name in enumerate(names)}
stages = {f"{a} {b}": 15.0 for a in names for b in names if a < b}
merged = {f"{a} {b}": 14.0 for a, b in zip(names[1:], names[2:])}
problem = make_problem(
    nodes,
    dict.fromkeys(names, 10.0),
    stages,
    merged=merged,
    merge_keys={name: f"level {i // 4}" for i, name in enumerate(names)},
    memory_budget_bytes=500,
)
plans = tuple(
    explain_plan(problem, make_plan(problem, PlanOptions(max_transitions=most)))
    for most in (0, 200_000)
)
for number, plan in enumerate(plans):
    save_plan(Plan((plan,)), pathlib.Path(sys.argv[1]) / f"{number}.json")
"""


def test_equal_problems_give_equal_bytes_in_every_process(tmp_path: pathlib.Path) -> None:
    contents = []
    for seed in ("1", "2", "3"):
        folder = tmp_path / seed
        folder.mkdir()
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(folder)],
            check=True,
            cwd=ROOT / "tests",
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        )
        contents.append([(folder / f"{number}.json").read_bytes() for number in (0, 1)])
    assert contents[0] == contents[1] == contents[2]
    assert b'"merged": true' in contents[0][0]
    assert b'"rejected": [' in contents[0][0]
