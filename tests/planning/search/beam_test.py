"""The bounded search: legal, never slower than sequential, exact where nothing is cut off."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_dags import Dag, check_is_schedule, dags, one_after_another_us, random_space

from tf_interop.planning.search.beam import search_in_bounds
from tf_interop.planning.search.exact import search_exactly
from tf_interop.planning.search.space import Lanes, SearchError, Space, StageOption


@settings(max_examples=200, deadline=None)
@given(
    dags(most=12),
    st.integers(0, 2**32),
    st.integers(1, 4),
    st.sampled_from([1, 3]),
    st.sampled_from([None, 25, 50]),
)
def test_is_a_schedule_and_never_slower_than_sequential(
    dag: Dag, seed: int, width: int, max_lane_length: int, budget: int | None
) -> None:
    space = random_space(dag, seed, budget=budget, max_lane_length=max_lane_length)
    result = search_in_bounds(space, width=width)
    check_is_schedule(dag, result, seed, budget)
    if budget is None:
        assert result.latency_us <= one_after_another_us(dag, seed)


@settings(max_examples=200, deadline=None)
@given(dags(most=6), st.integers(0, 2**32), st.sampled_from([None, 25, 40, 80]))
def test_finds_what_the_exact_search_finds_where_nothing_is_cut_off(
    dag: Dag, seed: int, budget: int | None
) -> None:
    space = random_space(dag, seed, budget=budget, max_lanes=6)
    bounded = search_in_bounds(space, width=10_000)
    assert bounded.latency_us == search_exactly(space).latency_us


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


def test_asks_for_each_stage_once() -> None:
    asked = []

    def options(lanes: Lanes) -> list[StageOption]:
        asked.append(lanes)
        return [StageOption(5.0)]

    search_in_bounds(Space([[]] * 4, options), width=32)
    assert len(asked) == len(set(asked))


def test_says_that_memory_is_short() -> None:
    space = Space([[]], lambda lanes: [StageOption(1.0)], available_bytes=lambda done: -1)
    with pytest.raises(SearchError):
        search_in_bounds(space, width=1)
