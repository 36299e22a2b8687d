"""Where convolutions are drawn: legality, recomputed here."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_interop.report.layout import Layout, lay_out, lay_out_in_order


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[list[int]], list[int | None]]:
    """A DAG, and groups as stages are: of one depth, so that they are in no cycle."""
    count = draw(st.integers(0, 14))
    predecessors: list[list[int]] = []
    depths: list[int] = []
    for node in range(count):
        its = [each for each in range(node) if draw(st.integers(0, 3)) == 0]
        predecessors.append(its)
        depths.append(1 + max((depths[each] for each in its), default=0))
    groups: list[int | None] = [depth if draw(st.booleans()) else None for depth in depths]
    return predecessors, groups


def _check(layout: Layout, predecessors: list[list[int]], groups: list[int | None]) -> None:
    assert len(set(layout.places)) == len(layout.places)
    for node, its in enumerate(predecessors):
        for each in its:
            assert layout.places[each][0] < layout.places[node][0]
    for group in set(groups) - {None}:
        places = sorted(
            place for place, its in zip(layout.places, groups, strict=True) if its == group
        )
        assert len({column for column, _ in places}) == 1
        # Nothing stands between them.
        assert places[-1][1] - places[0][1] == len(places) - 1
    for column, row in layout.places:
        assert 0 <= column < layout.columns and 0 <= row <= layout.rows - 1


@settings(deadline=None)
@given(graphs())
def test_dependencies_go_right_and_groups_stand_together(
    graph: tuple[list[list[int]], list[int | None]],
) -> None:
    predecessors, groups = graph
    layout = lay_out(predecessors, groups)
    _check(layout, predecessors, groups)
    assert len(layout.edges) == sum(map(len, predecessors))
    taken = set(layout.places)
    for edge in layout.edges:
        assert edge[0] in taken and edge[-1] in taken
        # A line passes every column between, and never over a convolution.
        assert [column for column, _ in edge] == list(range(edge[0][0], edge[-1][0] + 1))
        assert not taken & set(edge[1:-1])
    assert lay_out(predecessors, groups) == layout


def test_branches_that_are_swapped_are_put_in_the_order_of_what_they_read() -> None:
    layout = lay_out([[], [], [1], [0]], [None] * 4)
    rows = [row for _, row in layout.places]
    assert (rows[0] < rows[1]) == (rows[3] < rows[2])


def test_a_group_may_hold_what_depends_on_each_other() -> None:
    layout = lay_out([[], [0]], ["lane", "lane"])
    assert [column for column, _ in layout.places] == [0, 0]
    assert layout.edges == (layout.places,)


def test_refuses_groups_that_wait_for_each_other() -> None:
    with pytest.raises(ValueError, match="in no cycle"):
        lay_out([[], [0], [], [2]], ["a", "b", "b", "a"])


def test_without_dependencies_each_step_is_a_column() -> None:
    layout = lay_out_in_order([1, 3, 2])
    assert [column for column, _ in layout.places] == [0, 1, 1, 1, 2, 2]
    assert [row for _, row in layout.places] == [1, 0, 1, 2, 0.5, 1.5]
    assert layout.edges == (((0, 1), (1, 1)), ((1, 1), (2, 1)))
    assert lay_out_in_order([]) == Layout((), (), 0, 0)
