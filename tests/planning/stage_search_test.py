"""The searches: the stages that they make and leave out, and their limits."""

from __future__ import annotations

import pytest

from tf_interop.planning.stage_costs import Choice, Lanes
from tf_interop.planning.stage_search import (
    Beam,
    ExactSearch,
    SearchTooWideError,
    Space,
    Unit,
    find_blocks,
    search_blocks,
)
from tf_interop.planning.types import StageChoice, StagePrediction, ValueSource
from tf_interop.stage import Stage, Step

# Blocks of 1, 2, 1, 5, 1, 2 and 1 nodes.
TWO_NARROW = [[], [0], [0], [1, 2], [3], [3], [3], [3], [3], [4, 5, 6, 7, 8], [9], [9], [10, 11]]


def option(lanes: Lanes, latency_us: float) -> Choice:
    """Nodes alone take 10."""
    stage = Stage.side_by_side(Step(node) for lane in lanes for node in lane)
    alone_us = 10.0 * len(stage.steps)
    return StageChoice(
        stage, StagePrediction(latency_us, 0.0, alone_us, ValueSource.MEASURED, 0, 0)
    )


def one_way(lanes: Lanes) -> list[Choice]:
    return [option(lanes, 1.0)]


def lanes_of(units: list[Unit]) -> tuple[Lanes, ...]:
    return tuple(lanes for lanes, _ in units)


@pytest.mark.parametrize(
    ("dag", "latencies_us", "width", "expected"),
    [
        # 1 fits beside 2 only, so it is kept back.
        ([[], [], [0], [1]], {((1,), (2,)): 10}, 1, (((0,),), ((1,), (2,)), ((3,),))),
        # Lanes are continued even if pairs win nothing.
        ([[], [], [0], [1]], {((0, 2), (1, 3)): 30}, 1, (((0, 2), (1, 3)),)),
        # But only with ready nodes: 3 also waits for 1. Otherwise 1 would be kept back for 4.
        (
            [[], [], [], [0, 1], [2]],
            {((0, 3), (2,)): 1, ((1,), (4,)): 1},
            8,
            (((1,),), ((0, 3), (2,)), ((4,),)),
        ),
    ],
    ids=["keeps_back", "continues", "only_with_ready_nodes"],
)
def test_the_beam(
    dag: list[list[int]],
    latencies_us: dict[Lanes, float],
    width: int,
    expected: tuple[Lanes, ...],
) -> None:
    alone = {((node,),): 10.0 for node in range(len(dag))}

    def options(lanes: Lanes) -> list[Choice]:
        latency_us = (alone | latencies_us).get(lanes)
        return [] if latency_us is None else [option(lanes, latency_us)]

    space = Space(dag, options, max_lane_length=2)
    assert lanes_of(Beam(space, range(len(dag)), width).search()) == expected


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
