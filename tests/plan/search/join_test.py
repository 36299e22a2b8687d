"""Joining behind the bounded search: finds what a beam forgets, and is never worse than before."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_values import make_problem, problems, problems_to_model
from random_dags import Dag, alive_bytes_left, check_is_schedule, dags, random_options

from tf_interop.errors import PlanError
from tf_interop.plan.make import PlanOptions, make_plan
from tf_interop.plan.problem import PlanningProblem
from tf_interop.plan.search import join as joining
from tf_interop.plan.search.beam import Nodes, SetOptions, search_stages_bounded
from tf_interop.plan.search.blocks import search_blocks
from tf_interop.plan.search.interface import SearchResult, StageOption
from tf_interop.plan.search.join import JoinResult, join_stages
from tf_interop.plan.types import GraphPlan, LaneOptions

NARROW = PlanOptions(max_transitions=0, width=1)
BEAM_ALONE = dataclasses.replace(NARROW, max_orders=0)

ROOT = pathlib.Path(__file__).resolve().parents[2]


def fixed(latencies: Mapping[Nodes, float], spread_us: float = 0.0) -> SetOptions:
    """A node alone takes 10 us; of larger sets those that are named can be made."""

    def options(nodes: Nodes) -> list[StageOption]:
        if len(nodes) == 1:
            return [StageOption(10.0)]
        return [StageOption(latencies[nodes], 0, spread_us)] if nodes in latencies else []

    return options


def in_steps(steps: Sequence[Nodes], options: SetOptions) -> SearchResult:
    return SearchResult(
        tuple(tuple((node,) for node in step) for step in steps),
        (0,) * len(steps),
        sum(options(step)[0].latency_us for step in steps),
        states=1,
        transitions=1,
    )


def join(
    dag: Sequence[Sequence[int]],
    steps: Sequence[Nodes],
    options: SetOptions,
    max_lanes: int = 4,
    max_orders: int = 100,
) -> JoinResult:
    return join_stages(
        dag, in_steps(steps, options), options, max_lanes=max_lanes, max_orders=max_orders
    )


def steps_of(result: SearchResult) -> list[Nodes]:
    return [tuple(node for (node,) in lanes) for lanes in result.stages]


def test_joins_two_that_are_alone_and_far_from_each_other() -> None:
    # A chain, and a node that nothing waits for.
    dag = [[], [0], [1], [2], []]
    result = join(dag, [(0,), (1,), (2,), (3,), (4,)], fixed({(1, 4): 12}))
    assert steps_of(result.found) == [(0,), (1, 4), (2,), (3,)]
    assert (result.changes, result.found.latency_us, result.is_complete) == (1, 42, True)


def test_takes_one_that_is_alone_into_a_stage_with_room() -> None:
    options = fixed({(0, 1): 12, (0, 1, 2): 14})
    assert steps_of(join([[]] * 3, [(0, 1), (2,)], options).found) == [(0, 1, 2)]
    result = join([[]] * 3, [(0, 1), (2,)], options, max_lanes=2)
    assert (steps_of(result.found), result.changes) == ([(0, 1), (2,)], 0)


def test_moves_a_node_from_one_stage_to_another() -> None:
    options = fixed({(0, 1, 2): 25, (1, 2): 14, (3, 4): 15, (0, 3, 4): 16})
    result = join([[]] * 5, [(0, 1, 2), (3, 4)], options)
    assert sorted(steps_of(result.found)) == [(0, 3, 4), (1, 2)]
    assert (result.changes, result.found.latency_us) == (1, 30)


def test_takes_a_stage_apart_where_what_is_left_does_not_win() -> None:
    # Without 0 the others are no stage at all, or a slow one.
    slow: dict[Nodes, float] = {(1, 2): 22}
    for left in ({}, slow):
        options = fixed({(0, 1, 2): 28, (0, 3): 11, **left})
        result = join([[]] * 4, [(0, 1, 2), (3,)], options)
        assert sorted(steps_of(result.found)) == [(0, 3), (1,), (2,)]
        assert result.found.latency_us == 31


def test_makes_first_what_saves_most() -> None:
    options = fixed({(0, 1): 12, (1, 2): 11, (2, 3): 12})
    # The pair in the middle saves more than either other, though not more than both.
    assert steps_of(join([[]] * 4, [(0,), (1,), (2,), (3,)], options).found) == [
        (0,),
        (1, 2),
        (3,),
    ]


def test_a_change_makes_way_for_others() -> None:
    # No pair of 0, 1 and 2 wins, but 2 wins with 3, and all that with 0.
    options = fixed({(2, 3): 15, (0, 2, 3): 16})
    result = join([[]] * 4, [(0,), (1,), (2,), (3,)], options)
    assert sorted(steps_of(result.found)) == [(0, 2, 3), (1,)]
    assert result.changes == 2


# 2 is behind 0, and 3 behind 1: with 1 and 2 in a stage, 0 runs before 3.
CROSSED = [[], [], [0], [1]]


def test_joins_nothing_that_waits_for_itself_by_way_of_a_stage() -> None:
    options = fixed({(1, 2): 11, (0, 3): 11.5})
    result = join(CROSSED, [(0,), (1, 2), (3,)], options)
    assert steps_of(result.found) == [(0,), (1, 2), (3,)]


def test_moves_nothing_that_would_wait_for_itself_by_way_of_a_stage() -> None:
    # 4 is free, so that 0 is in a stage that it could leave for 3.
    options = fixed({(1, 2): 11, (0, 4): 19, (0, 3): 11.5})
    result = join([*CROSSED, []], [(0, 4), (1, 2), (3,)], options)
    assert steps_of(result.found) == [(0, 4), (1, 2), (3,)]


def test_what_waits_for_the_earlier_of_two_runs_behind_both() -> None:
    # In order 1 and 2 run before 3; 1 waits for 0, and 3 for 2.
    result = join([[], [0], [], [2]], [(0,), (1,), (2,), (3,)], fixed({(0, 3): 12}))
    assert steps_of(result.found) == [(2,), (0, 3), (1,)]


@pytest.mark.parametrize(("spread_us", "expected"), [(7.9, [(0, 1, 2)]), (8, [(0, 1), (2,)])])
def test_changes_only_what_wins_by_more_than_the_spread(
    spread_us: float, expected: list[Nodes]
) -> None:
    options = fixed({(0, 1): 12, (0, 1, 2): 14}, spread_us)
    assert steps_of(join([[]] * 3, [(0, 1), (2,)], options).found) == expected


def test_does_not_count_how_far_a_single_node_may_be_off() -> None:
    def options(nodes: Nodes) -> list[StageOption]:
        if len(nodes) == 1:
            return [StageOption(10.0, 0, spread_us=100.0)]
        return [StageOption(18.0 if nodes == (0, 1) else 12.0)] if nodes[0] == 0 else []

    assert steps_of(join([[]] * 3, [(0, 1), (2,)], options, max_lanes=2).found) == [(1,), (0, 2)]


def with_memory(
    available: Mapping[int, int], spread_us: float = 0.0
) -> tuple[list[Nodes], tuple[int, ...]]:
    """Joins 0 and 2 of three that depend on nothing, if there is memory behind what ran.

    Args:
        available: by what ran; 10 behind all else.
        spread_us: of the slower way to run the two.

    Returns:
        The steps and which option each has.
    """

    def options(nodes: Nodes) -> list[StageOption]:
        if len(nodes) == 1:
            return [StageOption(10.0, 10), StageOption(15.0, 5)]
        together = [StageOption(12.0, 20), StageOption(14.0, 15, spread_us)]
        return together if nodes == (0, 2) else []

    result = join_stages(
        [[], [], []],
        in_steps([(0,), (1,), (2,)], options),
        options,
        available_bytes=lambda done: available.get(done, 10),
        max_lanes=4,
        max_orders=100,
    )
    assert result.found.latency_us == sum(
        options(step)[option].latency_us
        for step, option in zip(steps_of(result.found), result.found.options, strict=True)
    )
    return steps_of(result.found), result.found.options


def test_joins_where_there_is_memory() -> None:
    # At the place of the later one, at that of the earlier one, and with less, more slowly.
    assert with_memory({0b010: 20}) == ([(1,), (0, 2)], (0, 0))
    assert with_memory({0b000: 20}) == ([(0, 2), (1,)], (0, 0))
    assert with_memory({0b010: 15}) == ([(1,), (0, 2)], (0, 1))


def test_joins_nothing_for_which_there_is_no_memory() -> None:
    unchanged = ([(0,), (1,), (2,)], (0, 0, 0))
    assert with_memory({}) == unchanged
    # For the pair there is enough, but none for what comes behind it.
    assert with_memory({0b000: 20, 0b101: 4}) == unchanged


def test_counts_what_others_lose_by_having_less_memory() -> None:
    # The pair saves 8 us, or 6 in less memory; then the other takes 5 us more.
    assert with_memory({0b000: 20, 0b101: 5}) == ([(0, 2), (1,)], (0, 1))
    assert with_memory({0b000: 15, 0b101: 5}, spread_us=0.9) == ([(0, 2), (1,)], (1, 1))
    assert with_memory({0b000: 15, 0b101: 5}, spread_us=1) == ([(0,), (1,), (2,)], (0, 0, 0))


def test_keeps_to_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    options = fixed({(0, 1): 12, (2, 3): 12})
    steps = [(0,), (1,), (2,), (3,)]
    unchanged = in_steps(steps, options)
    assert join([[]] * 4, steps, options, max_orders=0) == JoinResult(unchanged, 0, False)
    result = join([[]] * 4, steps, options, max_orders=1)
    assert (result.changes, result.is_complete) == (1, False)
    monkeypatch.setattr(joining, "_MOST_ASKED", 1)
    assert join([[]] * 4, steps, options).is_complete is False


def test_tells_how_many_changes_it_has_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_ASKED_PER_REPORT", 1)
    options = fixed({(0, 1): 12, (2, 3): 12})
    told: list[int] = []
    result = join_stages(
        [[]] * 4,
        in_steps([(0,), (1,), (2,), (3,)], options),
        options,
        max_lanes=4,
        max_orders=100,
        on_progress=told.append,
    )
    assert result.changes == 2
    assert sorted(told) == told
    assert set(told) == {0, 1, 2}


def with_spread(options: SetOptions, share: float) -> SetOptions:
    return lambda nodes: [
        dataclasses.replace(option, spread_us=share * option.latency_us)
        for option in options(nodes)
    ]


@settings(max_examples=300, deadline=None)
@given(
    dags(most=12),
    st.integers(0, 2**32),
    st.integers(2, 4),
    st.sampled_from([None, 25, 50]),
    st.sampled_from([0.0, 0.05]),
)
def test_is_a_schedule_within_memory_and_never_worse(
    dag: Dag, seed: int, max_lanes: int, budget: int | None, share: float
) -> None:
    options = with_spread(random_options(dag, seed), share)
    available = None if budget is None else alive_bytes_left(dag, budget)
    before = search_stages_bounded(
        dag, options, width=1, max_lanes=max_lanes, available_bytes=available
    )
    result = join_stages(
        dag, before, options, available_bytes=available, max_lanes=max_lanes, max_orders=200
    )
    check_is_schedule(dag, result.found)
    total_us, done = 0.0, 0
    for step, option in zip(steps_of(result.found), result.found.options, strict=True):
        assert len(step) <= max_lanes
        chosen = options(step)[option]
        assert available is None or chosen.memory_bytes <= available(done)
        total_us += chosen.latency_us
        done |= sum(1 << node for node in step)
    assert result.found.latency_us == pytest.approx(total_us)
    if result.changes:
        assert result.found.latency_us < before.latency_us
    else:
        assert result.found is before


@settings(max_examples=200, deadline=None)
@given(dags(most=10), st.integers(0, 2**32), st.sampled_from([0.0, 0.05]))
def test_leaves_no_two_steps_apart_that_would_win_by_more_than_the_spread(
    dag: Dag, seed: int, share: float
) -> None:
    options = with_spread(random_options(dag, seed), share)
    before = search_stages_bounded(dag, options, width=1)
    result = join_stages(dag, before, options, max_lanes=4, max_orders=1000)
    assert result.is_complete
    steps = steps_of(result.found)
    for one, other in itertools.combinations(steps, 2):
        together = tuple(sorted(one + other))
        won = options(together) if len(together) <= 4 else []
        rest = [step for step in steps if step not in (one, other)]
        if won and has_an_order(dag, [*rest, together]):
            apart_us = options(one)[0].latency_us + options(other)[0].latency_us
            assert won[0].latency_us + won[0].spread_us >= apart_us - 1e-6


def has_an_order(dag: Dag, steps: Sequence[Nodes]) -> bool:
    done: set[int] = set()
    left = list(steps)
    while left:
        ready = [step for step in left if all(done.issuperset(dag[node]) for node in step)]
        if not ready:
            return False
        done.update(*ready)
        left = [step for step in left if step not in ready]
    return True


def test_asks_for_nothing_before_all_searches_are_done() -> None:
    # Five nodes side by side are too wide; behind them comes what is not.
    dag = [[], [0], [0], [0], [0], [0], [1, 2, 3, 4, 5], [6], [6], [7, 8]]

    def asked_for(max_orders: int) -> list[Nodes]:
        asked: list[Nodes] = []

        def options(nodes: Nodes) -> Sequence[StageOption]:
            asked.append(nodes)
            return random_options(dag, 5)(nodes)

        result = search_blocks(
            dag, options, max_lanes=2, max_transitions=5, width=1, max_orders=max_orders
        )
        assert result.exact_nodes == 5
        return asked

    searching = asked_for(max_orders=0)
    asked = asked_for(max_orders=100)
    assert len(asked) > len(searching)
    assert asked[: len(searching)] == searching


def stages_of(plan: GraphPlan) -> list[set[str]]:
    return [{pinned.node for pinned in stage.convolutions} for stage in plan.stages]


# "s" opens the way for many, so that the beam runs it at once; "w", for which nothing waits, is
# never among the most urgent before.
_ROOTS = [f"r{number}" for number in range(20)]
FORGOTTEN = {"s": "", **dict.fromkeys(_ROOTS, ""), "w": ""} | {f"{r}'": f"s {r}" for r in _ROOTS}


def test_a_plan_has_a_pair_that_the_beam_never_looks_at() -> None:
    problem = make_problem(FORGOTTEN, dict.fromkeys(FORGOTTEN, 10.0), {"s w": 12})
    before = make_plan(problem, PlanOptions(max_transitions=0, max_orders=0))
    assert stages_of(before) == []
    plan = make_plan(problem, PlanOptions(max_transitions=0))
    assert stages_of(plan) == [{"s", "w"}]
    assert plan.prediction is not None
    assert plan.prediction.latency_us == plan.prediction.sequential_us - 8
    assert plan.prediction.search.startswith(
        "bounded, width 32, then joined 1, for stages of up to 4 convolutions"
    )
    assert before.prediction is not None
    assert "then joined 0 until a bound was reached, for stages" in before.prediction.search


@pytest.mark.parametrize(("merge_key", "expected"), [("x", 1), ("y", 0)])
def test_merges_only_what_reads_one_image(merge_key: str, expected: int) -> None:
    problem = make_problem(
        FORGOTTEN,
        dict.fromkeys(FORGOTTEN, 10.0),
        merged={"s w": 12},
        merge_keys={"s": "x", "w": merge_key},
    )
    plan = make_plan(problem, PlanOptions(max_transitions=0))
    assert [stage.lane_options for stage in plan.stages] == [(LaneOptions(merged=True),)] * expected


def test_joins_nothing_of_different_groups() -> None:
    problem = make_problem(FORGOTTEN, dict.fromkeys(FORGOTTEN, 10.0), {"s w": 12})
    nodes = tuple(
        dataclasses.replace(node, group="GPU:1") if node.name == "w" else node
        for node in problem.nodes
    )
    plan = make_plan(dataclasses.replace(problem, nodes=nodes), PlanOptions(max_transitions=0))
    assert plan.stages == ()


@settings(max_examples=300, deadline=None)
@given(problems() | problems_to_model(), st.integers(2, 4))
def test_a_plan_is_never_worse_than_what_was_found_in_bounds(
    problem: PlanningProblem, max_lanes: int
) -> None:
    try:
        before = make_plan(problem, dataclasses.replace(BEAM_ALONE, max_lanes=max_lanes))
    except PlanError:
        return
    # `make_plan` has each plan checked: legality, memory and every figure.
    plan = make_plan(problem, dataclasses.replace(NARROW, max_lanes=max_lanes))
    assert plan.prediction is not None
    assert before.prediction is not None
    assert plan.prediction.latency_us <= before.prediction.latency_us + 1e-9


@settings(max_examples=100, deadline=None)
@given(problems())
def test_an_exact_plan_stays_as_it_is(problem: PlanningProblem) -> None:
    try:
        before = make_plan(problem, PlanOptions(max_orders=0))
    except PlanError:
        return
    assert make_plan(problem) == before
    assert before.prediction is not None
    assert "joined" not in before.prediction.search


PROGRAM = """
import random
from tf_interop.plan.search.join import join_stages
from tf_interop.plan.search.interface import SearchResult, StageOption
chance = random.Random(7)
dag = [[p for p in range(n) if chance.random() < 0.06] for n in range(60)]
def options(nodes):
    # Many that are equal.
    share = random.Random(f"{[node % 5 for node in nodes]}").choice([0.6, 0.8, 1.1])
    return [StageOption(10.0 if len(nodes) == 1 else 10 * share * len(nodes))]
alone = SearchResult(tuple(((node,),) for node in range(60)), (0,) * 60, 600.0, 0, 0)
print(join_stages(dag, alone, options, max_lanes=4, max_orders=500))
"""


def test_same_input_same_stages_in_another_process() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
    assert "changes=0" not in outputs.pop()
