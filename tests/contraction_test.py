"""Contraction of sets of nodes: orders, and cycles."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tf_interop.contraction import contract


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[list[int]], list[tuple[int, ...]]]:
    """Draws the readers of each node, and disjoint sets of nodes."""
    count = draw(st.integers(1, 8))
    readers = [
        [other for other in range(node + 1, count) if draw(st.integers(0, 2)) == 0]
        for node in range(count)
    ]
    places = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    sets = [tuple(n for n in range(count) if places[n] == number) for number in range(3)]
    return readers, [each for each in sets if each]


@settings(max_examples=500, deadline=None)
@given(graphs())
def test_gives_an_order_or_a_cycle(graph: tuple[list[list[int]], list[tuple[int, ...]]]) -> None:
    readers, sets = graph
    in_sets = set(itertools.chain(*sets))
    units = [*sets, *((node,) for node in range(len(readers)) if node not in in_sets)]
    unit_of = {node: number for number, nodes in enumerate(units) for node in nodes}
    contraction = contract(readers, sets)
    place = {unit: at for at, unit in enumerate(contraction.order)}
    if contraction.cycle:
        assert not place
        assert contraction.cycle[0] == contraction.cycle[-1]
        for one, other in itertools.pairwise(contraction.cycle):
            assert one != other
            assert any(unit_of[reader] == other for node in units[one] for reader in readers[node])
        return
    assert sorted(place) == list(range(len(units)))
    for node, followers in enumerate(readers):
        for reader in followers:
            one, other = unit_of[node], unit_of[reader]
            assert one == other or place[one] < place[other]


def test_a_node_that_waits_for_itself_is_a_cycle() -> None:
    assert {*contract([[0]], []).cycle} == {0}
