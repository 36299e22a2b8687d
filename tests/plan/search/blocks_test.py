"""The search by blocks: exact where it is within reach, whatever the other blocks are like."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_dags import Dag, alive_bytes_left, check_is_schedule, dags, random_options

from tf_interop.plan.search.bit_graph import find_blocks
from tf_interop.plan.search.blocks import BlockSearchResult, search_blocks
from tf_interop.plan.search.exact import search_stages
from tf_interop.plan.search.interface import SearchError, SearchProgress

# Three nodes between a first and a last one, twice, with five between the two.
TWO_NARROW = [[], [0], [0], [1, 2], [3], [3], [3], [3], [3], [4, 5, 6, 7, 8], [9], [9], [10, 11]]


def search(dag: Dag, seed: int, most: int, budget: int | None = None) -> BlockSearchResult:
    return search_blocks(
        dag,
        random_options(dag, seed),
        available_bytes=None if budget is None else alive_bytes_left(dag, budget),
        max_lanes=4,
        max_transitions=most,
        width=8,
        max_orders=100,
    )


@st.composite
def chained_dags(draw: st.DrawFn) -> Dag:
    """Several DAGs one behind the other, numbered in any order."""
    dag: Dag = []
    for block in draw(st.lists(dags(most=4), min_size=1, max_size=3)):
        before = list(range(len(dag)))
        dag += [[*before, *(len(before) + each for each in needs)] for needs in block]
    order = draw(st.permutations(range(len(dag))))
    return [[order.index(need) for need in dag[node]] for node in order]


@settings(max_examples=200, deadline=None)
@given(chained_dags(), st.integers(0, 2**32), st.sampled_from([None, 25, 50]))
def test_finds_what_the_exact_search_of_the_whole_graph_finds(
    dag: Dag, seed: int, budget: int | None
) -> None:
    options = random_options(dag, seed)
    whole = search_stages(
        dag,
        lambda lanes: options(tuple(sorted(node for lane in lanes for node in lane))),
        available_bytes=None if budget is None else alive_bytes_left(dag, budget),
        max_lanes=4,
        max_lane_length=1,
        cut_into_blocks=False,
    )
    result = search(dag, seed, most=10**6, budget=budget)
    check_is_schedule(dag, result.found)
    assert result.found.latency_us == pytest.approx(whole.latency_us)
    assert result.exact_nodes == len(dag)


@settings(max_examples=200, deadline=None)
@given(chained_dags(), st.integers(0, 2**32), st.integers(0, 20))
def test_any_mixture_is_a_schedule_and_never_slower_than_sequential(
    dag: Dag, seed: int, most: int
) -> None:
    result = search(dag, seed, most)
    check_is_schedule(dag, result.found)
    options = random_options(dag, seed)
    assert result.found.latency_us <= sum(
        options((node,))[0].latency_us for node in range(len(dag))
    )


def test_one_wide_block_leaves_the_exact_search_to_the_others() -> None:
    assert [len(block) for block in find_blocks(TWO_NARROW)] == [1, 2, 1, 5, 1, 2, 1]
    # Two nodes side by side have 5 transitions, five have more.
    result = search(TWO_NARROW, seed=1, most=5)
    assert result.exact_nodes == 8
    exact = search(TWO_NARROW, seed=1, most=10**6)
    narrow = [stage for stage in exact.found.stages if not _is_wide(stage)]
    assert [stage for stage in result.found.stages if not _is_wide(stage)] == narrow


def _is_wide(stage: tuple[tuple[int, ...], ...]) -> bool:
    return any(4 <= node <= 8 for lane in stage for node in lane)


def test_blocks_hold_every_node_once_and_behind_all_before() -> None:
    chance = random.Random(3)
    for _ in range(50):
        count = chance.randint(1, 10)
        dag = [[p for p in range(node) if chance.random() < 0.6] for node in range(count)]
        blocks = find_blocks(dag)
        assert sorted(node for block in blocks for node in block) == list(range(count))
        ancestors: list[set[int]] = []
        for needs in dag:
            ancestors.append(set(needs).union(*(ancestors[each] for each in needs)))
        before: set[int] = set()
        for block in blocks:
            assert all(before <= ancestors[node] for node in block)
            before |= set(block)


def test_tells_how_far_it_is_in_the_whole_graph() -> None:
    told: list[SearchProgress] = []
    search_blocks(
        TWO_NARROW,
        random_options(TWO_NARROW, 1),
        max_lanes=4,
        max_transitions=5,
        width=8,
        max_orders=100,
        on_progress=told.append,
    )
    assert [each.nodes_done for each in told] == sorted(each.nodes_done for each in told)
    assert told[-1].nodes_done == 13
    assert {each.nodes for each in told} == {13}


def test_says_that_there_is_a_cycle() -> None:
    with pytest.raises(SearchError, match="without a cycle"):
        search([[1], [0]], seed=1, most=5)
