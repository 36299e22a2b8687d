"""Places of convolutions in the drawing, checked independently."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_interop.errors import PlanError
from tf_interop.report.network import lay_out


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[list[int]], list[int | None]]:
    """A DAG with groups of equal depth, which like stages form no cycle."""
    count = draw(st.integers(0, 14))
    predecessors: list[list[int]] = []
    depths: list[int] = []
    for node in range(count):
        its = [each for each in range(node) if draw(st.integers(0, 3)) == 0]
        predecessors.append(its)
        depths.append(1 + max((depths[each] for each in its), default=0))
    groups: list[int | None] = [depth if draw(st.booleans()) else None for depth in depths]
    return predecessors, groups


@settings(deadline=None)
@given(graphs())
def test_dependencies_go_right_and_groups_stand_together(
    graph: tuple[list[list[int]], list[int | None]],
) -> None:
    predecessors, groups = graph
    places, edges = lay_out(predecessors, groups)
    taken = set(places)
    assert len(taken) == len(places)
    for node, its in enumerate(predecessors):
        assert all(places[each].column < places[node].column for each in its)
    for group in set(groups) - {None}:
        together = sorted(place for place, its in zip(places, groups, strict=True) if its == group)
        assert len({place.column for place in together}) == 1
        # No other node stands between them.
        assert together[-1].row - together[0].row == pytest.approx(len(together) - 1)
    assert len(edges) == sum(map(len, predecessors))
    for edge in edges:
        assert edge[0] in taken and edge[-1] in taken
        # A line passes every column between, and never over a convolution.
        assert [place.column for place in edge] == list(range(edge[0].column, edge[-1].column + 1))
        assert not taken & set(edge[1:-1])
    assert lay_out(predecessors, groups) == (places, edges)


def test_many_lines_past_a_column_take_little_room() -> None:
    # As in a training step: each gradient reads its convolution, in the reverse order.
    count = 60
    forward = [[each - 1] if each else [] for each in range(count)]
    backward = [[count + each - 1, count - 1 - each] for each in range(count)]
    places, edges = lay_out(forward + backward, [None] * 2 * count)
    rows = [place.row for edge in edges for place in edge]
    assert max(rows) - min(rows) < 0.2 * count
    assert len(set(places)) == 2 * count


def test_swaps_branches_into_the_order_of_their_inputs() -> None:
    places, _ = lay_out([[], [], [1], [0]], [None] * 4)
    assert (places[0].row < places[1].row) == (places[3].row < places[2].row)


def test_refuses_groups_that_wait_for_each_other() -> None:
    with pytest.raises(PlanError, match="in a cycle through "):
        lay_out([[], [0], [], [2]], ["a", "b", "b", "a"])
