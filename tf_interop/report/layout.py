"""Places a network on a plane, from left to right, the convolutions of a stage below each other.

A column for each stage: no convolution stands left of one that it depends on, and those of one
stage stand in one column. It is the method of Sugiyama, Tagawa and Toda (IEEE Transactions on
Systems, Man, and Cybernetics 11, 1981): layers by the longest path, edges over several layers cut
into pieces by points that stand for them, and in each layer the order of the mean places of what is
joined to it in the layer before, to and fro some times.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import statistics
from collections.abc import Hashable, Iterable, Sequence

from tf_interop.contraction import contract

_SWEEPS = 6

Place = tuple[int, float]
"""Column and row; rows may be halves, where a column is shorter than the tallest one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is.

    Attributes:
        places: of each node.
        edges: of each dependency the places that its line goes through, from the node depended on.
        columns: how many.
        rows: how many the tallest column has.
    """

    places: tuple[Place, ...]
    edges: tuple[tuple[Place, ...], ...]
    columns: int
    rows: int


def lay_out(predecessors: Sequence[Sequence[int]], groups: Sequence[Hashable | None]) -> Layout:
    """Places nodes.

    Args:
        predecessors: for each node those that it depends on, places in this sequence. No node comes
            before one of them.
        groups: nodes of one group, such as a stage, share a column; None is of no group. Groups
            must not depend on each other in a cycle, as legal stages do not.

    Raises:
        ValueError: groups do.
    """
    own_groups: list[Hashable] = [
        ("node", node) if group is None else ("group", group) for node, group in enumerate(groups)
    ]
    cut = _Cut(predecessors, own_groups)
    for sweep in range(_SWEEPS):
        cut.order(to_the_left=bool(sweep % 2))
    rows = max(map(len, cut.layers), default=0)
    place_of: dict[int, Place] = {}
    for column, layer in enumerate(cut.layers):
        top = (rows - len(layer)) / 2
        place_of |= {point: (column, top + row) for row, point in enumerate(layer)}
    return Layout(
        places=tuple(place_of[node] for node in range(len(predecessors))),
        edges=tuple(tuple(place_of[point] for point in path) for path in cut.paths),
        columns=len(cut.layers),
        rows=rows,
    )


def lay_out_in_order(sizes: Sequence[int]) -> Layout:
    """Places nodes of which only the order is known: a column for each stage, joined in order.

    Args:
        sizes: how many nodes each has.
    """
    rows = max(sizes, default=0)
    places = [
        (column, (rows - size) / 2 + row)
        for column, size in enumerate(sizes)
        for row in range(size)
    ]
    middle = (rows - 1) / 2
    edges = [((column, middle), (column + 1, middle)) for column in range(len(sizes) - 1)]
    return Layout(tuple(places), tuple(edges), len(sizes), rows)


def _columns(predecessors: Sequence[Sequence[int]], groups: Sequence[Hashable]) -> list[int]:
    """The column of each node: as far left as its group's dependencies let it be."""
    members: dict[Hashable, list[int]] = collections.defaultdict(list)
    readers: list[list[int]] = [[] for _ in groups]
    for node, group in enumerate(groups):
        members[group].append(node)
        for each in predecessors[node]:
            readers[each].append(node)
    names = list(members)
    contraction = contract(readers, list(members.values()))
    if contraction.cycle:
        late = groups[contraction.cycle[0][0]]
        raise ValueError(f"Expected groups that depend on each other in no cycle, got one: {late}")
    column_of: dict[Hashable, int] = {}
    for unit in contraction.order:
        sources = {groups[each] for node in members[names[unit]] for each in predecessors[node]}
        columns = (column_of[source] for source in sources - {names[unit]})
        column_of[names[unit]] = 1 + max(columns, default=-1)
    return [column_of[group] for group in groups]


class _Cut:
    """The graph with a point for every column that an edge passes."""

    def __init__(self, predecessors: Sequence[Sequence[int]], groups: Sequence[Hashable]) -> None:
        columns = _columns(predecessors, groups)
        self.layers: list[list[int]] = [[] for _ in range(max(columns, default=-1) + 1)]
        self.paths: list[tuple[int, ...]] = []
        self._group = list(groups)
        self._points: dict[tuple[int, int], int] = {}
        self._left: dict[int, list[int]] = collections.defaultdict(list)
        self._right: dict[int, list[int]] = collections.defaultdict(list)
        for node, column in enumerate(columns):
            self.layers[column].append(node)
        for node, its in enumerate(predecessors):
            for each in its:
                between = range(columns[each] + 1, columns[node])
                self._join([each, *(self._point(each, column) for column in between), node])
        self._height: dict[int, float] = {}
        for layer in self.layers:
            self._note_heights(layer)

    def _join(self, path: Sequence[int]) -> None:
        self.paths.append(tuple(path))
        for left, right in itertools.pairwise(path):
            # Inside of a group nothing is left or right of another.
            if self._group[left] != self._group[right] and right not in self._right[left]:
                self._right[left].append(right)
                self._left[right].append(left)

    def _point(self, start: int, column: int) -> int:
        """Where lines from a node pass a column: one point for all, so that they run together."""
        if (start, column) not in self._points:
            self._points[start, column] = len(self._group)
            self.layers[column].append(len(self._group))
            self._group.append(("point", start, column))
        return self._points[start, column]

    def order(self, *, to_the_left: bool) -> None:
        """Orders the points of each layer so that few lines to the layer before it cross."""
        neighbours = self._right if to_the_left else self._left
        for layer in reversed(self.layers) if to_the_left else self.layers:
            wanted = {
                point: statistics.fmean(self._height[each] for each in neighbours[point] or [point])
                for point in layer
            }
            members: dict[Hashable, list[float]] = collections.defaultdict(list)
            for point in layer:
                members[self._group[point]].append(wanted[point])
            # By group first, so that a stage stays together. Ties keep their order.
            place_of = {
                group: (statistics.fmean(heights), first)
                for first, (group, heights) in enumerate(members.items())
            }
            layer.sort(key=lambda point: (place_of[self._group[point]], wanted[point]))
            self._note_heights(layer)

    def _note_heights(self, layer: Iterable[int]) -> None:
        points = list(layer)
        for row, point in enumerate(points):
            self._height[point] = row - (len(points) - 1) / 2
