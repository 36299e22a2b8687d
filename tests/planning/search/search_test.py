"""The searches: exact where that is within reach, never slower than sequential anywhere."""

from __future__ import annotations

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

from tf_interop.planning.search.beam import search_in_bounds
from tf_interop.planning.search.blocks import SearchBounds, find_blocks, search_blocks
from tf_interop.planning.search.exact import search_exactly
from tf_interop.planning.search.space import (
    Lanes,
    SearchError,
    SearchResult,
    SearchTooWideError,
    Space,
    StageOption,
)

# Three nodes between a first and a last one, twice, with five between the two.
TWO_NARROW = [[], [0], [0], [1, 2], [3], [3], [3], [3], [3], [4, 5, 6, 7, 8], [9], [9], [10, 11]]


def search(space: Space, most: int) -> SearchResult:
    return search_blocks(space, SearchBounds(most, width=8))


def one_way(lanes: Lanes) -> list[StageOption]:
    return [StageOption(1.0)]


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


@settings(max_examples=200, deadline=None)
@given(dags(most=6), st.integers(0, 2**32), st.sampled_from([None, 25, 40, 80]))
def test_the_beam_finds_what_the_exact_search_finds_where_nothing_is_cut_off(
    dag: Dag, seed: int, budget: int | None
) -> None:
    space = random_space(dag, seed, budget=budget, max_lanes=6)
    bounded = search_in_bounds(space, width=10_000)
    assert bounded.latency_us == search_exactly(space).latency_us


@settings(max_examples=200, deadline=None)
@given(
    dags(most=12),
    st.integers(0, 2**32),
    st.integers(1, 4),
    st.sampled_from([1, 3]),
    st.sampled_from([None, 25, 50]),
)
def test_the_beam_is_a_schedule_and_never_slower_than_sequential(
    dag: Dag, seed: int, width: int, max_lane_length: int, budget: int | None
) -> None:
    space = random_space(dag, seed, budget=budget, max_lane_length=max_lane_length)
    result = search_in_bounds(space, width=width)
    check_is_schedule(dag, result, seed, budget)
    if budget is None:
        assert result.latency_us <= one_after_another_us(dag, seed)


def fixed(latencies: dict[Lanes, float]) -> Space:
    """Chains of two: 0 and 2, 1 and 3; and stages of them, beside nodes alone, with 10 each."""

    def options(lanes: Lanes) -> list[StageOption]:
        latency_us = latencies.get(lanes, 10.0 if lanes == (lanes[0][:1],) else None)
        return [] if latency_us is None else [StageOption(latency_us)]

    return Space([[], [], [0], [1]], options, max_lane_length=2)


def test_keeps_a_node_back_that_fills_a_later_stage() -> None:
    # 1 fits beside 2, not beside 0.
    result = search_in_bounds(fixed({((1,), (2,)): 10.0}), width=1)
    assert result.stages == (((0,),), ((1,), (2,)), ((3,),))


def test_goes_on_with_lanes_where_pairs_win_nothing() -> None:
    result = search_in_bounds(fixed({((0, 2), (1, 3)): 30.0}), width=1)
    assert result.stages == (((0, 2), (1, 3)),)


def test_makes_no_wider_stage_than_allowed() -> None:
    space = Space([[]] * 5, lambda lanes: [StageOption(10.0 + len(lanes))], max_lanes=2)
    assert sorted(map(len, search_in_bounds(space, width=32).stages)) == [1, 2, 2]


def test_one_wide_block_leaves_the_exact_search_to_the_others() -> None:
    space = random_space(TWO_NARROW, seed=1)
    assert [len(block) for block in find_blocks(space)] == [1, 2, 1, 5, 1, 2, 1]
    # Two nodes side by side have 5 transitions, five have more.
    result = search(space, most=5)
    assert result.exact_nodes == 8


class _Ways(list[StageOption]):
    """A list that can be seen to be gone."""


def test_a_block_that_was_searched_leaves_nothing_behind() -> None:
    asked: list[weakref.ref[_Ways]] = []

    def options(lanes: Lanes) -> _Ways:
        ways = _Ways(random_options(1)(lanes))
        asked.append(weakref.ref(ways))
        return ways

    bounds = SearchBounds(5, width=8)
    search_blocks(Space(TWO_NARROW, options), bounds)
    assert asked
    assert not any(each() is not None for each in asked)


def test_a_lane_holds_what_may_follow_alone() -> None:
    dag = [[], [0], [], [2]]
    for follows, expected in ((dag, (((0, 1), (2, 3)),)), ([[], [0], [], []], None)):
        space = Space(dag, one_way, follows=follows, max_lane_length=2)
        result = search_exactly(space)
        assert len(result.stages) == (1 if expected else 2)
        assert expected in (None, result.stages)


def test_a_stage_leaves_nothing_out_between_two_of_its_nodes() -> None:
    # 2 may follow 0, but 1 is between them too.
    space = Space([[], [0], [0, 1]], one_way, max_lane_length=3)
    assert space.lanes(0b101) is None
    assert space.lanes(0b111) == ((0, 1, 2),)


def test_says_that_no_schedule_is_allowed() -> None:
    with pytest.raises(SearchError):
        search_exactly(Space([[], []], lambda lanes: []))
    space = Space([[]], one_way, available_bytes=lambda done: -1)
    for search_so in (search_exactly, lambda space: search_in_bounds(space, width=1)):
        with pytest.raises(SearchError):
            search_so(space)


@pytest.mark.parametrize(("max_lanes", "max_lane_length"), [(2, 1), (1, 2), (4, 1)])
def test_gives_up_over_the_limit_of_transitions(max_lanes: int, max_lane_length: int) -> None:
    space = Space(
        [[] for _ in range(40)],
        one_way,
        max_lanes=max_lanes,
        max_lane_length=max_lane_length,
    )
    with pytest.raises(SearchTooWideError):
        search_exactly(space, max_transitions=1000)


def test_takes_the_fastest_option_that_fits_beside_what_is_alive() -> None:
    # Node 0 leaves 60 of 100 bytes alive until node 1 has run.
    options = {
        ((0,),): [StageOption(5, 60)],
        ((1,),): [StageOption(1, 50), StageOption(3, 40)],
    }
    space = Space(
        [[], [0]], options.__getitem__, available_bytes=lambda done: 40 if done == 0b1 else 100
    )
    result = search_exactly(space)
    assert (result.options, result.latency_us) == ((0, 1), 8)
