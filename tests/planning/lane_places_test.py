"""Places of a measured stage: what a merged lane and what depends on each other needs."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tf_interop.planning.lane_places import find_places
from tf_interop.stage import Lane, Stage, Step

Offered = list[tuple[str, str | None]]
Readers = list[set[int]]


def is_filled(order: tuple[int, ...], wanted: Stage[str], nodes: Offered, readers: Readers) -> bool:
    places = iter(order)
    for lane in wanted.lanes:
        of_lane = [next(places) for _ in lane.steps]
        if [nodes[place][0] for place in of_lane] != list(lane.operations):
            return False
        keys = {nodes[place][1] for place in of_lane}
        if lane.merged and (len(keys) > 1 or None in keys):
            return False
        for number, place in enumerate(of_lane):
            before = set() if lane.merged else set(of_lane[:number])
            if {other for other in order if place in readers[other]} - before:
                return False
    return True


@st.composite
def stages(draw: st.DrawFn) -> tuple[Stage[str], Offered, Readers]:
    keys = st.sampled_from([None, "x", "y"])
    nodes = draw(st.lists(st.tuples(st.sampled_from("ab"), keys), min_size=1, max_size=5))
    lanes: list[list[str]] = []
    for kind, _ in draw(st.permutations(nodes)):
        if lanes and draw(st.booleans()):
            lanes[-1].append(kind)
        else:
            lanes.append([kind])
    stage = Stage(
        tuple(
            Lane(tuple(map(Step, lane)), merged=len(lane) > 1 and draw(st.booleans()))
            for lane in lanes
        )
    )
    readers: Readers = [
        {other for other in range(node + 1, len(nodes)) if draw(st.integers(0, 3)) == 0}
        for node in range(len(nodes))
    ]
    return stage, nodes, readers


@settings(max_examples=500, deadline=None)
@given(stages())
def test_finds_places_wherever_there_are_any(case: tuple[Stage[str], Offered, Readers]) -> None:
    wanted, nodes, readers = case
    placed = find_places(wanted, nodes, readers)
    if placed is None:
        orders = itertools.permutations(range(len(nodes)))
        assert not any(is_filled(order, wanted, nodes, readers) for order in orders)
    else:
        assert sorted(placed.operations) == list(range(len(nodes)))
        assert is_filled(placed.operations, wanted, nodes, readers)
        assert placed.map(lambda place: nodes[place][0]) == wanted


def test_tries_keys_that_are_alike_once() -> None:
    """In every order of the keys this would take longer than anyone waits."""
    lanes = [Lane((Step("a"),) * 2, merged=True)] * 19
    wanted = Stage((*lanes, Lane((Step("a"),) * 3, merged=True)))
    nodes: Offered = [("a", str(number // 2)) for number in range(40)]
    assert find_places(wanted, [*nodes, ("a", "alone")]) is None
    assert find_places(wanted, [*nodes, ("a", "19")]) is not None
