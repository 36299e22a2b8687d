"""The exact search, against published counts and against every schedule of small graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from random_dags import Dag

from tf_interop.planning.search.exact import search_exactly
from tf_interop.planning.search.space import (
    Lanes,
    SearchError,
    SearchTooWideError,
    Space,
    StageOption,
    StageOptions,
)

FIRE_WITH_BYPASS: Dag = [[], [0], [0], [1, 2], [], [3, 4]]
INCEPTION_E: Dag = [[], [], [1], [1], [], [4], [5], [5], [], [8], [0, 2, 3, 6, 7, 9]]
# The first cell of a stack: a reduced previous input, five separable pairs, three poolings.
NASNET_A: Dag = [[], [], [0, 1], []]
for source in (3, 3, 2, 2, 3):
    NASNET_A += [[source], [len(NASNET_A)]]
NASNET_A += [[3], [2], [2], [5, 7, 9, 11, 13, 14, 15, 16]]


def taking(latency: Callable[[Lanes], float | None]) -> StageOptions:
    """One way to run each stage, with this latency."""

    def options(lanes: Lanes) -> list[StageOption]:
        latency_us = latency(lanes)
        return [] if latency_us is None else [StageOption(latency_us)]

    return options


@pytest.mark.parametrize(
    ("dag", "states", "transitions"),
    [(FIRE_WITH_BYPASS, 12, 51), (INCEPTION_E, 180, 4_871), (NASNET_A, 2_200, 307_841)],
    ids=["SqueezeNet fire", "Inception-E", "NASNet-A"],
)
def test_visits_what_the_authors_of_ios_report(dag: Dag, states: int, transitions: int) -> None:
    space = Space(
        dag,
        taking(lambda lanes: float(sum(map(len, lanes)))),
        max_lanes=len(dag),
        max_lane_length=len(dag),
        single_head=True,
    )
    result = search_exactly(space)
    assert (result.states, result.transitions) == (states, transitions)


@pytest.mark.parametrize(
    ("latency", "expected"),
    [
        (lambda lanes: float(len(lanes) + 1), (((0,), (1,)),)),
        (lambda lanes: float(len(lanes) ** 2), (((0,),), ((1,),))),
        (lambda lanes: None if len(lanes) > 1 else 1.0, (((0,),), ((1,),))),
    ],
    ids=["faster", "slower", "ruled out"],
)
def test_runs_together_what_is_faster_so(
    latency: Callable[[Lanes], float | None], expected: tuple[Lanes, ...]
) -> None:
    result = search_exactly(Space([[], []], taking(latency)))
    assert tuple(sorted(result.stages)) == expected


def test_a_lane_holds_what_may_follow_alone() -> None:
    dag = [[], [0], [], [2]]
    for follows, expected in ((dag, (((0, 1), (2, 3)),)), ([[], [0], [], []], None)):
        space = Space(dag, taking(lambda lanes: 1.0), follows=follows, max_lane_length=2)
        result = search_exactly(space)
        assert len(result.stages) == (1 if expected else 2)
        assert expected in (None, result.stages)


def test_a_stage_leaves_nothing_out_between_two_of_its_nodes() -> None:
    # 2 may follow 0, but 1 is between them too.
    space = Space([[], [0], [0, 1]], taking(lambda lanes: 1.0), max_lane_length=3)
    assert space.lanes(0b101) is None
    assert space.lanes(0b111) == ((0, 1, 2),)


def test_says_that_no_schedule_is_allowed() -> None:
    with pytest.raises(SearchError):
        search_exactly(Space([[], []], taking(lambda lanes: None)))


@pytest.mark.parametrize(("max_lanes", "max_lane_length"), [(2, 1), (1, 2), (4, 1)])
def test_gives_up_over_the_limit_of_transitions(max_lanes: int, max_lane_length: int) -> None:
    space = Space(
        [[] for _ in range(40)],
        taking(lambda lanes: 1.0),
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
