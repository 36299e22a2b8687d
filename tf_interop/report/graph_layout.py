"""Places a network on a plane, from left to right, the convolutions of a stage below each other.

A column for each step: no convolution stands left of one that it depends on, and those of one stage
stand in one column. It is the method of Sugiyama, Tagawa and Toda (IEEE Transactions on Systems,
Man, and Cybernetics 11, 1981): layers by the longest path, edges over several layers cut into
pieces by points that stand for them, and in each layer the order of the mean places of what is
joined to it in the layer before, to and fro some times.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import statistics
from collections.abc import Hashable, Iterable, Sequence

_SWEEPS = 6

Place = tuple[int, float]
"""Column and row; rows may be halves, where a column is shorter than the tallest one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is.

    Attributes:
        places: of each node.
        edges: of each dependency between columns the places that its line goes through, from the
            node depended on.
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
            must not depend on each other in a circle, as legal stages do not.

    Raises:
        ValueError: groups do.
    """
    columns = _columns(predecessors, groups)
    cut = _Cut(predecessors, columns, groups)
    cut.order()
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


def lay_out_in_order(steps: Iterable[int]) -> Layout:
    """Places nodes of which only the order is known: a column for each step, joined in order.

    Args:
        steps: how many nodes each step has.
    """
    sizes = list(steps)
    rows = max(sizes, default=0)
    places = [
        (column, (rows - size) / 2 + row)
        for column, size in enumerate(sizes)
        for row in range(size)
    ]
    middle = (rows - 1) / 2
    edges = [((column, middle), (column + 1, middle)) for column in range(len(sizes) - 1)]
    return Layout(tuple(places), tuple(edges), len(sizes), rows)


def _columns(predecessors: Sequence[Sequence[int]], groups: Sequence[Hashable | None]) -> list[int]:
    """The column of each node: as far left as its group's dependencies let it be."""
    names: list[Hashable] = [
        ("node", node) if group is None else ("group", group) for node, group in enumerate(groups)
    ]
    before: dict[Hashable, set[Hashable]] = {name: set() for name in names}
    for node, its in enumerate(predecessors):
        before[names[node]] |= {names[each] for each in its} - {names[node]}
    after: dict[Hashable, list[Hashable]] = collections.defaultdict(list)
    waits = {}
    for name, sources in before.items():
        waits[name] = len(sources)
        for source in sources:
            after[source].append(name)
    column_of: dict[Hashable, int] = {}
    ready = collections.deque(name for name in dict.fromkeys(names) if not waits[name])
    while ready:
        name = ready.popleft()
        column_of[name] = 1 + max((column_of[source] for source in before[name]), default=-1)
        for reader in after[name]:
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)
    if len(column_of) < len(before):
        late = next(name for name in before if name not in column_of)
        raise ValueError(f"Expected groups that depend on each other in no circle, got one: {late}")
    return [column_of[name] for name in names]


class _Cut:
    """The graph with a point for every column that an edge passes."""

    def __init__(
        self,
        predecessors: Sequence[Sequence[int]],
        columns: Sequence[int],
        groups: Sequence[Hashable | None],
    ) -> None:
        self.layers: list[list[int]] = [[] for _ in range(max(columns, default=-1) + 1)]
        self.paths: list[tuple[int, ...]] = []
        self._group: list[Hashable] = []
        self._points: dict[tuple[int, int], int] = {}
        self._left: dict[int, list[int]] = collections.defaultdict(list)
        self._right: dict[int, list[int]] = collections.defaultdict(list)
        for node, column in enumerate(columns):
            self._group.append(("node", node) if groups[node] is None else ("group", groups[node]))
            self.layers[column].append(node)
        for node, its in enumerate(predecessors):
            for each in its:
                self._join(each, node, columns)

    def _join(self, start: int, end: int, columns: Sequence[int]) -> None:
        if columns[start] == columns[end]:
            return  # inside of a group
        path = [start]
        path += (self._point(start, column) for column in range(columns[start] + 1, columns[end]))
        path.append(end)
        for left, right in itertools.pairwise(path):
            if right not in self._right[left]:
                self._right[left].append(right)
                self._left[right].append(left)
        self.paths.append(tuple(path))

    def _point(self, start: int, column: int) -> int:
        """Where lines from a node pass a column: one point for all, so that they run together."""
        if (start, column) not in self._points:
            self._points[start, column] = len(self._group)
            self.layers[column].append(len(self._group))
            self._group.append(("point", start))
        return self._points[start, column]

    def order(self) -> None:
        """Orders the points of each layer so that few lines cross."""
        height: dict[int, float] = {}
        for layer in self.layers:
            _note_heights(layer, height)
        for sweep in range(_SWEEPS):
            neighbours = self._right if sweep % 2 else self._left
            for layer in reversed(self.layers) if sweep % 2 else self.layers:
                self._order_layer(layer, neighbours, height)

    def _order_layer(
        self, layer: list[int], neighbours: dict[int, list[int]], height: dict[int, float]
    ) -> None:
        wanted = {
            point: statistics.fmean(height[each] for each in neighbours[point])
            if neighbours[point]
            else height[point]
            for point in layer
        }
        members: dict[Hashable, list[float]] = collections.defaultdict(list)
        for point in layer:
            members[self._group[point]].append(wanted[point])
        mean = {group: statistics.fmean(heights) for group, heights in members.items()}
        first = {group: place for place, group in enumerate(members)}
        # By group first, so that a stage stays together. Ties keep their order.
        layer.sort(
            key=lambda point: (
                mean[self._group[point]],
                first[self._group[point]],
                wanted[point],
            )
        )
        _note_heights(layer, height)


def _note_heights(layer: Sequence[int], height: dict[int, float]) -> None:
    for row, point in enumerate(layer):
        height[point] = row - (len(layer) - 1) / 2
