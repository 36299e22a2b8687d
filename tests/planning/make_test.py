"""The planner: optimal on every small problem, never slower than sequential, within its memory."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pathlib
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_values import (
    alive,
    least_latency_us,
    make_problem,
    may_run,
    named,
    problem_of,
    problems,
    problems_to_model,
    timed,
)

from tf_interop.convolution import output_bytes
from tf_interop.errors import PlanError
from tf_interop.planning.make import PlanOptions, make_plan
from tf_interop.planning.problem import PlanningProblem, ProblemNode
from tf_interop.planning.types import GraphPlan, PlannedStage
from tf_interop.stage import Stage, Step

EXACT = PlanOptions(max_measured_lanes=0)
# Wide enough to cut nothing off. With several nodes in a lane it may still miss some.
WIDE = PlanOptions(max_transitions=0, width=100_000, max_measured_lanes=0, max_lane_length=1)
NARROW = PlanOptions(max_transitions=0, width=1)

ROOT = pathlib.Path(__file__).resolve().parents[2]


def checked_plan(problem: PlanningProblem, options: PlanOptions | None = None) -> GraphPlan:
    """Plans, then plays the plan through step by step and recomputes every prediction.

    It shares no code with the planner. `least_latency_us` judges the times of stages.
    """
    plan = make_plan(problem, options)
    prediction = plan.prediction
    assert (plan.structure, plan.batch_size) == (problem.structure, problem.batch_size)
    assert prediction.memory_budget_bytes == problem.memory_budget_bytes
    place_of = {node.name: place for place, node in enumerate(problem.nodes)}
    bytes_of = [output_bytes(node.configuration) for node in problem.nodes]
    done: list[int] = []
    latency_us = 0.0
    peaks = [0]
    before = [each.before_stage for each in plan.unstaged]
    assert before == sorted(before)
    assert all(0 <= each <= len(plan.stages) for each in before)
    for _, step in plan.in_order:
        if isinstance(step, PlannedStage):
            stage, expected = step.stage, step.prediction
            step_us, workspace_bytes = expected.latency_us, expected.workspace_bytes
        else:
            stage = Stage.in_sequence([Step(step.node, step.algorithm)])
            configuration = problem.nodes[place_of[step.node]].configuration
            alone = problem.alone[Step(configuration, step.algorithm)]
            step_us, workspace_bytes = alone.latency_us, alone.workspace_bytes
            assert step.latency_us == pytest.approx(step_us)
        of_places = stage.map(place_of.__getitem__)
        assert may_run(problem.nodes, of_places, done)
        assert not set(done) & set(of_places.operations)
        kept = (*alive(problem.nodes, done), *of_places.operations)
        peaks.append(sum(bytes_of[node] for node in kept) + workspace_bytes)
        if isinstance(step, PlannedStage):
            assert expected.peak_bytes == peaks[-1]
        latency_us += step_us
        done += of_places.operations
    assert sorted(done) == list(range(len(problem.nodes)))
    assert prediction.latency_us == pytest.approx(latency_us)
    assert prediction.peak_bytes == max(peaks)
    budget = math.inf
    if problem.memory_budget_bytes is None:
        alone_us = sum(min(each.latency_us for each in its) for its in problem.node_algorithms)
        assert prediction.sequential_us == pytest.approx(alone_us)
    else:
        budget = problem.memory_budget_bytes
    assert max(peaks) <= budget
    if prediction.sequential_peak_bytes <= budget:
        assert latency_us <= prediction.sequential_us * (1 + 1e-9)
    return plan


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
def test_takes_more_lanes_if_a_measured_stage_wins(
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
def test_a_model_makes_no_plan_slower(problem: PlanningProblem) -> None:
    least_us = least_latency_us(problem, EXACT.max_lanes)
    if least_us < math.inf:
        assert check_stages_win(problem, EXACT) <= least_us + 1e-9


# Parts of the graph that are too wide for a few transitions go to the beam.
any_options = st.builds(
    PlanOptions,
    max_lane_length=st.sampled_from([1, 3]),
    max_transitions=st.integers(0, 20),
    width=st.integers(1, 4),
)


@settings(max_examples=400, deadline=None)
@given(problems(most=12), any_options)
def test_bounds_make_no_plan_illegal_or_slower_than_sequential(
    problem: PlanningProblem, options: PlanOptions
) -> None:
    with contextlib.suppress(PlanError):
        check_stages_win(problem, options)


def test_a_plan_without_stages_keeps_the_order_of_the_graph() -> None:
    # The bounded search takes `b` first, because it makes `c` ready. TensorFlow would not.
    a, b, c = (named(name, size) for name, size in (("a", 10), ("b", 60), ("c", 2)))
    nodes = (ProblemNode("a", a), ProblemNode("b", b), ProblemNode("c", c, (1,)))
    plan = make_plan(problem_of(nodes, [timed(each, "GEMM", 1, 40) for each in (a, b, c)]), NARROW)
    assert not plan.stages
    assert [each.node for each in plan.unstaged] == ["a", "b", "c"]
    assert plan.prediction.peak_bytes == plan.prediction.sequential_peak_bytes == 112


def test_names_the_memory_that_would_be_enough() -> None:
    problem = make_problem({"a": "", "b": "a"}, {"a": 1, "b": 1}, memory_budget_bytes=24)
    with pytest.raises(PlanError, match=r"Convolution 'b'.*Raise the budget to 25 bytes"):
        make_plan(problem)
    make_plan(dataclasses.replace(problem, memory_budget_bytes=25))


@pytest.mark.parametrize("options", [EXACT, NARROW])
def test_reports_its_progress(options: PlanOptions) -> None:
    problem = make_problem({"a": "", "b": "a", "c": "b"}, dict.fromkeys("abc", 1.0))
    told: list[str] = []
    make_plan(problem, options, on_progress=told.append)
    assert told == [f"{count} of 3 convolutions" for count in (1, 2, 3)]


PROGRAM = """
import sys
from planning_values import make_problem
from tf_interop.planning.explain import explain_plan
from tf_interop.planning.make import PlanOptions, make_plan
from tf_interop.planning.types import Plan, save_plan

names = [f"n{i}" for i in range(12)]
problem = make_problem(
    {name: names[i - 4] if i > 3 else "" for i, name in enumerate(names)},
    dict.fromkeys(names, 10.0),
    {f"{a} {b}": 15.0 for a in names for b in names if a < b},
    merged={f"{a} {b}": 14.0 for a, b in zip(names[1:], names[2:])},
    merge_keys={name: f"level {i // 4}" for i, name in enumerate(names)},
    memory_budget_bytes=500,
)
for most, path in zip((0, 200_000), sys.argv[1:]):
    plan = explain_plan(problem, make_plan(problem, PlanOptions(max_transitions=most)))
    save_plan(Plan((plan,)), path)
"""


def test_equal_problems_give_equal_bytes_in_every_process(tmp_path: pathlib.Path) -> None:
    contents = []
    for seed in ("1", "2", "3"):
        paths = [tmp_path / f"{seed}_{name}.json" for name in ("beam", "exact")]
        subprocess.run(
            [sys.executable, "-c", PROGRAM, *map(str, paths)],
            check=True,
            cwd=ROOT / "tests",
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        )
        contents.append([path.read_bytes() for path in paths])
    assert contents[0] == contents[1] == contents[2]
    assert b'"merged": true' in contents[0][0]
    assert b'"rejected": [' in contents[0][0]
