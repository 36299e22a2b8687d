"""Joining after the bounded search: finds what a beam forgets, and is never worse than before."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_dags import Dag, check_is_schedule, dags, random_options, random_space

from tf_interop.planning.search import join as joining
from tf_interop.planning.search.beam import search_in_bounds
from tf_interop.planning.search.join import join_stages
from tf_interop.planning.search.space import Lanes, SearchResult, Space, StageOption, StageOptions

Nodes = tuple[int, ...]


def fixed(latencies: Mapping[Nodes, float], spread_us: float = 0.0) -> StageOptions:
    """A node alone takes 10 us; of larger sets those that are named can be made."""

    def options(lanes: Lanes) -> list[StageOption]:
        nodes = nodes_of(lanes)
        if len(nodes) == 1:
            return [StageOption(10.0)]
        return [StageOption(latencies[nodes], 0, spread_us)] if nodes in latencies else []

    return options


def nodes_of(lanes: Lanes) -> Nodes:
    return tuple(sorted(itertools.chain(*lanes)))


def steps_of(result: SearchResult) -> list[Nodes]:
    return list(map(nodes_of, result.stages))


def join(
    dag: Dag,
    steps: Sequence[Nodes],
    options: StageOptions,
    *,
    max_orders: int = 100,
    max_lanes: int = 4,
    max_lane_length: int = 1,
) -> SearchResult:
    space = Space(dag, options, max_lanes=max_lanes, max_lane_length=max_lane_length)
    return join_stages(space, in_steps(space, steps), max_orders=max_orders)


def in_steps(space: Space, steps: Sequence[Nodes]) -> SearchResult:
    return space.result([(sum(1 << node for node in step), 0) for step in steps], 1, 1)


FREE: Dag = [[]] * 5
# 2 is after 0, and 3 after 1: with 1 and 2 in a stage, 0 runs before 3. 4 is free.
CROSSED: Dag = [[], [], [0], [1], []]


@pytest.mark.parametrize(
    ("dag", "steps", "latencies", "expected"),
    [
        pytest.param(
            [[], [0], [1], [2], []],
            [(0,), (1,), (2,), (3,), (4,)],
            {(1, 4): 12},
            [(0,), (1, 4), (2,), (3,)],
            id="two_that_are_alone_and_far_from_each_other",
        ),
        pytest.param(
            FREE[:3],
            [(0, 1), (2,)],
            {(0, 1): 12, (0, 1, 2): 14},
            [(0, 1, 2)],
            id="one_that_is_alone_and_a_stage_with_room",
        ),
        pytest.param(
            FREE,
            [(0, 1, 2), (3, 4)],
            {(0, 1, 2): 25, (1, 2): 14, (3, 4): 15, (0, 3, 4): 16},
            [(0, 3, 4), (1, 2)],
            id="a_node_moves_to_another_stage",
        ),
        pytest.param(
            FREE[:4],
            [(0, 1, 2), (3,)],
            {(0, 1, 2): 28, (0, 3): 11},
            [(0, 3), (1,), (2,)],
            id="what_is_left_is_no_stage",
        ),
        pytest.param(
            FREE[:4],
            [(0, 1, 2), (3,)],
            {(0, 1, 2): 28, (0, 3): 11, (1, 2): 22},
            [(0, 3), (1,), (2,)],
            id="what_is_left_is_a_slow_stage",
        ),
        pytest.param(
            FREE[:4],
            [(0,), (1,), (2,), (3,)],
            {(0, 1): 12, (1, 2): 11, (2, 3): 12},
            [(0,), (1, 2), (3,)],
            id="first_what_saves_most",
        ),
        pytest.param(
            FREE[:4],
            [(0,), (1,), (2,), (3,)],
            {(2, 3): 15, (0, 2, 3): 16},
            [(0, 2, 3), (1,)],
            id="a_change_makes_way_for_another",
        ),
        pytest.param(
            CROSSED,
            [(0,), (1, 2), (3,), (4,)],
            {(1, 2): 11, (0, 3): 11.5},
            [(0,), (1, 2), (3,), (4,)],
            id="not_what_would_wait_for_itself_by_way_of_a_stage",
        ),
        pytest.param(
            CROSSED,
            [(0, 4), (1, 2), (3,)],
            {(1, 2): 11, (0, 4): 19, (0, 3): 11.5},
            [(0, 4), (1, 2), (3,)],
            id="nor_a_node_that_moves",
        ),
        pytest.param(
            # In order 1 and 2 run before 3; 1 waits for 0, and 3 for 2.
            [[], [0], [], [2]],
            [(0,), (1,), (2,), (3,)],
            {(0, 3): 12},
            [(2,), (0, 3), (1,)],
            id="what_waits_for_the_earlier_one_runs_after_both",
        ),
    ],
)
def test_joins(
    dag: Dag, steps: list[Nodes], latencies: dict[Nodes, float], expected: list[Nodes]
) -> None:
    found = join(dag, steps, fixed(latencies))
    assert sorted(steps_of(found)) == sorted(expected)
    done: set[int] = set()
    for step in steps_of(found):
        assert done.issuperset(itertools.chain(*(dag[node] for node in step)))
        done.update(step)
    assert found.latency_us == sum(latencies.get(step, 10.0) for step in expected)


def test_puts_a_node_after_another_in_its_lane() -> None:
    # Chains of 0 and 2, 1 and 3.
    dag: Dag = [[], [], [0], [1]]
    options = fixed({(0, 1): 18, (0, 1, 2): 22, (0, 1, 2, 3): 24})
    steps = [(0,), (1,), (2,), (3,)]
    result = join(dag, steps, options, max_lane_length=2)
    assert result.stages == (((0, 2), (1, 3)),)
    assert steps_of(join(dag, steps, options)) == [(0, 1), (2,), (3,)]


@pytest.mark.parametrize(("spread_us", "expected"), [(7.9, [(0, 1, 2)]), (8, [(0, 1), (2,)])])
def test_changes_only_what_wins_by_more_than_the_spread(
    spread_us: float, expected: list[Nodes]
) -> None:
    options = fixed({(0, 1): 12, (0, 1, 2): 14}, spread_us)
    assert steps_of(join(FREE[:3], [(0, 1), (2,)], options)) == expected


def test_does_not_count_how_far_a_single_node_may_be_off() -> None:
    def options(lanes: Lanes) -> list[StageOption]:
        nodes = nodes_of(lanes)
        if len(nodes) == 1:
            return [StageOption(10.0, 0, spread_us=100.0)]
        return [StageOption(18.0 if nodes == (0, 1) else 12.0)] if nodes[0] == 0 else []

    found = join(FREE[:3], [(0, 1), (2,)], options, max_lanes=2)
    assert steps_of(found) == [(1,), (0, 2)]


UNCHANGED = ([(0,), (1,), (2,)], (0, 0, 0))


@pytest.mark.parametrize(
    ("available", "spread_us", "expected"),
    [
        # At the place of the later one, at that of the earlier one, and with less, more slowly.
        ({0b010: 20}, 0, ([(1,), (0, 2)], (0, 0))),
        ({0b000: 20}, 0, ([(0, 2), (1,)], (0, 0))),
        ({0b010: 15}, 0, ([(1,), (0, 2)], (0, 1))),
        ({}, 0, UNCHANGED),
        # For the pair there is enough, but none for what comes after it.
        ({0b000: 20, 0b101: 4}, 0, UNCHANGED),
        # The pair saves 8 us, or 6 in less memory; then the other takes 5 us more.
        ({0b000: 20, 0b101: 5}, 0, ([(0, 2), (1,)], (0, 1))),
        ({0b000: 15, 0b101: 5}, 0.9, ([(0, 2), (1,)], (1, 1))),
        ({0b000: 15, 0b101: 5}, 1, UNCHANGED),
    ],
)
def test_joins_where_there_is_memory_for_all(
    available: dict[int, int], spread_us: float, expected: tuple[list[Nodes], tuple[int, ...]]
) -> None:
    def options(lanes: Lanes) -> list[StageOption]:
        if len(lanes) == 1:
            return [StageOption(10.0, 10), StageOption(15.0, 5)]
        together = [StageOption(12.0, 20), StageOption(14.0, 15, spread_us)]
        return together if nodes_of(lanes) == (0, 2) else []

    space = Space([[], [], []], options, available_bytes=lambda done: available.get(done, 10))
    found = join_stages(space, in_steps(space, [(0,), (1,), (2,)]), max_orders=100)
    assert (steps_of(found), found.options) == expected


def test_keeps_to_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    options = fixed({(0, 1): 12, (2, 3): 12})
    steps = [(0,), (1,), (2,), (3,)]
    result = join(FREE[:4], steps, options, max_orders=0)
    assert (result.changes, result.is_complete) == (0, False)
    result = join(FREE[:4], steps, options, max_orders=1)
    assert (result.changes, result.is_complete) == (1, False)
    monkeypatch.setattr(joining, "_MOST_ASKED", 1)
    assert join(FREE[:4], steps, options).is_complete is False


@settings(max_examples=300, deadline=None)
@given(
    dags(most=12),
    st.integers(0, 2**32),
    st.integers(2, 4),
    st.sampled_from([1, 3]),
    st.sampled_from([None, 25, 50]),
    st.sampled_from([0.0, 0.05]),
)
def test_is_a_schedule_within_memory_and_never_worse(
    dag: Dag, seed: int, max_lanes: int, max_lane_length: int, budget: int | None, spread: float
) -> None:
    space = random_space(
        dag,
        seed,
        budget=budget,
        max_lanes=max_lanes,
        max_lane_length=max_lane_length,
        spread=spread,
    )
    before = search_in_bounds(space, width=1)
    result = join_stages(space, before, max_orders=200)
    check_is_schedule(dag, result, seed, budget)
    assert max(map(len, result.stages)) <= max_lanes
    if result.changes:
        assert result.latency_us < before.latency_us
    else:
        assert result.stages == before.stages


@settings(max_examples=200, deadline=None)
@given(dags(most=10), st.integers(0, 2**32), st.sampled_from([0.0, 0.05]), st.sampled_from([1, 3]))
def test_leaves_no_two_steps_apart_that_would_win_by_more_than_the_spread(
    dag: Dag, seed: int, spread: float, max_lane_length: int
) -> None:
    space = random_space(dag, seed, spread=spread, max_lane_length=max_lane_length)
    result = join_stages(space, search_in_bounds(space, width=1), max_orders=1000)
    assert result.is_complete
    options = random_options(seed, spread)
    steps = result.stages
    for one, other in itertools.combinations(steps, 2):
        together = space.lanes(sum(1 << node for node in nodes_of(one) + nodes_of(other)))
        won = options(together) if together is not None else []
        rest = [nodes_of(step) for step in steps if step not in (one, other)]
        if won and has_an_order(dag, [*rest, nodes_of(one) + nodes_of(other)]):
            apart_us = options(one)[0].latency_us + options(other)[0].latency_us
            assert won[0].latency_us + won[0].spread_us >= apart_us - 1e-6


def has_an_order(dag: Dag, steps: Sequence[Nodes]) -> bool:
    done: set[int] = set()
    left = list(steps)
    while left:
        ready = [
            step
            for step in left
            if done.union(step) >= set(itertools.chain(*(dag[n] for n in step)))
        ]
        if not ready:
            return False
        done.update(itertools.chain(*ready))
        left = [step for step in left if step not in ready]
    return True
