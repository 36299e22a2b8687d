"""The searches: the stages that they make and leave out, and their limits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tf_interop.planning.stage_costs import Choice, Lanes
from tf_interop.planning.stage_search import (
    Beam,
    ExactSearch,
    Schedule,
    SearchTooWideError,
    Space,
    State,
    find_blocks,
    search_blocks,
)
from tf_interop.planning.types import StageChoice, StagePrediction, ValueSource
from tf_interop.stage import Stage, Step

# Blocks of 1, 2, 1, 5, 1, 2 and 1 nodes.
TWO_NARROW = [[], [0], [0], [1, 2], [3], [3], [3], [3], [3], [4, 5, 6, 7, 8], [9], [9], [10, 11]]

FIRE_WITH_BYPASS: list[list[int]] = [[], [0], [0], [1, 2], [], [3, 4]]
INCEPTION_E: list[list[int]] = [[], [], [1], [1], [], [4], [5], [5], [], [8], [0, 2, 3, 6, 7, 9]]
# The first cell of a stack: a reduced previous input, five separable pairs, three poolings.
NASNET_A: list[list[int]] = [[], [], [0, 1], []]
for source in (3, 3, 2, 2, 3):
    NASNET_A += [[source], [len(NASNET_A)]]
NASNET_A += [[3], [2], [2], [5, 7, 9, 11, 13, 14, 15, 16]]


def option(lanes: Lanes, latency_us: float) -> Choice:
    stage = Stage.side_by_side(Step(lane[0]) for lane in lanes)
    return StageChoice(stage, StagePrediction(latency_us, 0.0, 10.0, ValueSource.MEASURED, 0, 0))


def one_way(lanes: Lanes) -> list[Choice]:
    return [option(lanes, 1.0)]


def stages_of(schedule: Schedule) -> tuple[Lanes, ...]:
    return tuple(lanes for lanes, _ in schedule)


def fixed(latencies: dict[Lanes, float]) -> Space:
    """The chains 0, 2 and 1, 3, with these stages. Nodes alone take 10."""

    def options(lanes: Lanes) -> list[Choice]:
        latency_us = latencies.get(lanes, 10.0 if lanes == (lanes[0][:1],) else None)
        return [] if latency_us is None else [option(lanes, latency_us)]

    return Space([[], [], [0], [1]], options, max_lane_length=2)


@pytest.mark.parametrize(
    ("dag", "states", "transitions"),
    [
        (FIRE_WITH_BYPASS, 12, 51),
        (INCEPTION_E, 180, 4_871),
        pytest.param(NASNET_A, 2_200, 307_841, marks=pytest.mark.slow),
    ],
    ids=["SqueezeNet fire", "Inception-E", "NASNet-A"],
)
def test_visits_what_the_authors_of_ios_report(
    dag: list[list[int]], states: int, transitions: int
) -> None:
    def has_single_heads(lanes: Lanes) -> bool:  # In IOS no lane joins two others.
        return all(sum(not {*dag[node]} & {*lane} for node in lane) == 1 for lane in lanes)

    def options(lanes: Lanes) -> list[Choice]:
        return [option(lanes, float(len(lanes)))] if has_single_heads(lanes) else []

    visited: list[int] = []

    class Counting(ExactSearch):
        def _stages(self, state: State) -> Iterator[int]:
            counted = 0
            for stage in super()._stages(state):
                counted += has_single_heads(space.lanes(stage) or ((),))
                yield stage
            visited.append(counted)

    space = Space(dag, options, max_lanes=len(dag), max_lane_length=len(dag))
    Counting(space, range(len(dag)), 1_000_000, True).search()
    assert (len(visited), sum(visited)) == (states, transitions)


def test_keeps_a_node_back_for_a_later_stage() -> None:
    # 1 fits beside 2 only.
    result = Beam(fixed({((1,), (2,)): 10.0}), range(4), 1).search()
    assert stages_of(result) == (((0,),), ((1,), (2,)), ((3,),))


def test_continues_lanes_even_if_pairs_win_nothing() -> None:
    result = Beam(fixed({((0, 2), (1, 3)): 30.0}), range(4), 1).search()
    assert stages_of(result) == (((0, 2), (1, 3)),)


def test_continues_a_lane_only_with_ready_nodes() -> None:
    # 3 also waits for 1. Otherwise 1 would be kept back for 4.
    latencies_us: dict[Lanes, float] = {((node,),): 10.0 for node in range(5)}
    latencies_us |= {((0, 3), (2,)): 1.0, ((1,), (4,)): 1.0}

    def options(lanes: Lanes) -> list[Choice]:
        return [option(lanes, latencies_us[lanes])] if lanes in latencies_us else []

    space = Space([[], [], [], [0, 1], [2]], options, max_lane_length=2)
    expected = (((1,),), ((0, 3), (2,)), ((4,),))
    assert stages_of(Beam(space, range(5), 8).search()) == expected


def test_a_wide_block_leaves_the_exact_search_to_the_others() -> None:
    space = Space(TWO_NARROW, one_way)
    assert [len(block) for block in find_blocks(space)] == [1, 2, 1, 5, 1, 2, 1]
    # Two independent nodes have 5 transitions, five have more.
    _, exact_nodes = search_blocks(space, max_transitions=5, width=8)
    assert exact_nodes == 8


@pytest.mark.parametrize(
    ("dag", "max_lane_length", "transitions"),
    [
        # Two chains whose lanes must have one node each.
        ([[], [], [0], [1]], 1, 16),
        # The last node is in the next block.
        ([[], [], [], [], [0, 1, 2, 3]], 2, 56),
    ],
)
def test_searches_long_lanes_only_where_they_are_possible(
    dag: list[list[int]], max_lane_length: int, transitions: int
) -> None:
    space = Space(dag, one_way, max_lanes=2, max_lane_length=max_lane_length)
    _, exact_nodes = search_blocks(space, max_transitions=transitions, width=8)
    assert exact_nodes == len(dag)


@pytest.mark.parametrize(("max_lanes", "max_lane_length"), [(2, 1), (1, 2), (4, 1)])
def test_gives_up_beyond_the_limit_of_transitions(max_lanes: int, max_lane_length: int) -> None:
    space = Space([[]] * 40, one_way, max_lanes=max_lanes, max_lane_length=max_lane_length)
    with pytest.raises(SearchTooWideError):
        ExactSearch(space, range(40), 1000, max_lane_length > 1).search()
