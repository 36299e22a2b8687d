"""The search by blocks: exact where it is within reach, whatever the other blocks are like."""

from __future__ import annotations

import random
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_dags import (
    Dag,
    check_is_schedule,
    dags,
    one_after_another_us,
    random_options,
    random_space,
)

from tf_interop.planning.search.blocks import (
    SearchBounds,
    find_blocks,
    search_blocks,
)
from tf_interop.planning.search.exact import search_exactly
from tf_interop.planning.search.space import (
    Lanes,
    SearchResult,
    Space,
    StageOption,
)

# Three nodes between a first and a last one, twice, with five between the two.
TWO_NARROW = [[], [0], [0], [1, 2], [3], [3], [3], [3], [3], [4, 5, 6, 7, 8], [9], [9], [10, 11]]


def search(space: Space, most: int, max_orders: int = 100) -> SearchResult:
    return search_blocks(space, SearchBounds(most, width=8, max_orders=max_orders))


@st.composite
def chained_dags(draw: st.DrawFn) -> Dag:
    """Several DAGs one after the other."""
    dag: Dag = []
    for block in draw(st.lists(dags(most=4), min_size=1, max_size=3)):
        before = list(range(len(dag)))
        dag += [[*before, *(len(before) + each for each in needs)] for needs in block]
    return dag


@settings(max_examples=200, deadline=None)
@given(
    chained_dags(), st.integers(0, 2**32), st.sampled_from([None, 25, 50]), st.sampled_from([1, 3])
)
def test_finds_what_the_exact_search_of_the_whole_graph_finds(
    dag: Dag, seed: int, budget: int | None, max_lane_length: int
) -> None:
    space = random_space(dag, seed, budget=budget, max_lane_length=max_lane_length)
    result = search(space, most=10**6)
    check_is_schedule(dag, result, seed, budget)
    assert result.latency_us == pytest.approx(search_exactly(space).latency_us)
    assert result.exact_nodes == len(dag)


@settings(max_examples=200, deadline=None)
@given(chained_dags(), st.integers(0, 2**32), st.integers(0, 20), st.sampled_from([1, 3]))
def test_any_mixture_is_a_schedule_and_never_slower_than_sequential(
    dag: Dag, seed: int, most: int, max_lane_length: int
) -> None:
    result = search(random_space(dag, seed, max_lane_length=max_lane_length), most)
    check_is_schedule(dag, result, seed)
    assert result.latency_us <= one_after_another_us(dag, seed)


def test_one_wide_block_leaves_the_exact_search_to_the_others() -> None:
    space = random_space(TWO_NARROW, seed=1)
    assert [len(block) for block in find_blocks(space)] == [1, 2, 1, 5, 1, 2, 1]
    # Two nodes side by side have 5 transitions, five have more.
    result = search(space, most=5)
    assert result.exact_nodes == 8
    exact = search(space, most=10**6)
    assert _narrow(result) == _narrow(exact)


def _narrow(result: SearchResult) -> list[Lanes]:
    return [
        stage
        for stage in result.stages
        if not any(4 <= node <= 8 for lane in stage for node in lane)
    ]


def test_blocks_hold_every_node_once_and_after_all_before() -> None:
    chance = random.Random(3)
    for _ in range(50):
        count = chance.randint(1, 10)
        dag = [[p for p in range(node) if chance.random() < 0.6] for node in range(count)]
        space = random_space(dag, seed=0)
        blocks = find_blocks(space)
        assert [node for block in blocks for node in block] == list(range(count))
        for node in range(1, count):
            everything_before = (1 << node) - 1
            is_cut = all(
                space.ancestors[later] & everything_before == everything_before
                for later in range(node, count)
            )
            assert is_cut == any(block.start == node for block in blocks)


def test_tells_how_far_it_is_in_the_whole_graph() -> None:
    told: list[str] = []
    space = random_space(TWO_NARROW, 1)
    search_blocks(space, SearchBounds(5, width=8, max_orders=100), on_progress=told.append)
    searched = [int(words.split(" of 13")[0]) for words in told if "of 13 convolutions" in words]
    # The block of five in bounds, the others at once.
    assert searched == [1, 3, 4, *range(5, 10), 10, 12, 13]
    assert set(told[len(searched) :]) == {"joining stages, 0 changes made"}


class _Ways(list[StageOption]):
    """A list that can be seen to be gone."""


def test_a_block_that_was_searched_leaves_nothing_behind() -> None:
    asked: list[weakref.ref[_Ways]] = []
    left: list[int] = []

    def options(lanes: Lanes) -> _Ways:
        ways = _Ways(random_options(1)(lanes))
        asked.append(weakref.ref(ways))
        return ways

    def note(words: str) -> None:
        if "joining" in words:
            left.append(sum(each() is not None for each in asked))

    bounds = SearchBounds(5, width=8, max_orders=100)
    search_blocks(Space(TWO_NARROW, options), bounds, on_progress=note)
    assert asked
    assert left[0] == 0
