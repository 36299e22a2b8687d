"""Draws a network from left to right, the convolutions of a stage below each other.

No convolution stands left of one that it depends on, and those of one stage stand in one column.
The method is that of Sugiyama, Tagawa and Toda (IEEE Transactions on Systems, Man, and Cybernetics
11, 1981): the longest path gives the layers, points cut edges over several layers into pieces, and
each layer is sorted by the mean places of its neighbours, forward and backward several times.
"""

from __future__ import annotations

import collections
import itertools
import statistics
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from tf_interop.contraction import contract
from tf_interop.errors import PlanError

_SWEEPS = 6

NODE_WIDTH = 46
NODE_HEIGHT = 22
COLUMN_PITCH = 66
ROW_PITCH = 38
# How far a line between two convolutions of one column goes out to the right.
_BULGE = 20

_Point = int | tuple[int, int]
"""A node, or where all lines from a node pass a column: the node and the column."""


class Place(NamedTuple):
    """Where a convolution or a line is; rows may be halves, in columns shorter than the tallest."""

    column: int
    row: float

    @property
    def y(self) -> float:
        """Of the upper corner, in pixels."""
        return self.row * ROW_PITCH


def lay_out(
    predecessors: Sequence[Sequence[int]], groups: Sequence[Hashable | None]
) -> tuple[list[Place], list[list[Place]]]:
    """Places nodes.

    Args:
        predecessors: for each node those that it depends on, places in this sequence. No node comes
            before one of them.
        groups: nodes of one group, such as a stage, share a column; None is of no group.

    Returns:
        The place of each node, and of each dependency the places that its line goes through, from
        the node depended on.

    Raises:
        PlanError: groups depend on each other in a cycle, as legal stages do not.
    """
    group_of: dict[_Point, Hashable] = {
        node: ("node", node) if group is None else group for node, group in enumerate(groups)
    }
    columns = _columns(predecessors, group_of)
    paths: list[list[_Point]] = []
    # Sets that keep their order, so that a plan has one drawing.
    left: dict[_Point, dict[_Point, None]] = collections.defaultdict(dict)
    right: dict[_Point, dict[_Point, None]] = collections.defaultdict(dict)
    layers: list[dict[_Point, None]] = [{} for _ in range(max(columns, default=-1) + 1)]
    for node, column in enumerate(columns):
        layers[column][node] = None
    for node, its in enumerate(predecessors):
        for each in its:
            between = range(columns[each] + 1, columns[node])
            paths.append([each, *((each, column) for column in between), node])
            for column in between:
                layers[column][each, column] = None
            # Within a group nothing is left or right of another.
            if columns[each] < columns[node]:
                for before, after in itertools.pairwise(paths[-1]):
                    left[after][before] = right[before][after] = None

    def heights(layer: Sequence[_Point]) -> dict[_Point, float]:
        return {point: row - (len(layer) - 1) / 2 for row, point in enumerate(layer)}

    ordered = [list(layer) for layer in layers]
    height: dict[_Point, float] = {}
    for layer in ordered:
        height |= heights(layer)
    for sweep in range(_SWEEPS):
        neighbours, towards = (right, -1) if sweep % 2 else (left, 1)
        for layer in ordered[::towards]:
            wanted = {
                point: statistics.fmean(height[each] for each in neighbours[point] or [point])
                for point in layer
            }
            members = collections.defaultdict(list)
            for point in layer:
                members[group_of.get(point, point)].append(wanted[point])
            # By group first, so that a stage stays together. Ties keep their order.
            rank = {
                group: (statistics.fmean(its), first)
                for first, (group, its) in enumerate(members.items())
            }
            layer.sort(key=lambda point: (rank[group_of.get(point, point)], wanted[point]))
            height |= heights(layer)
    rows = max(map(len, ordered), default=0)
    place_of = {
        point: Place(column, height[point] + (rows - 1) / 2)
        for column, layer in enumerate(ordered)
        for point in layer
    }
    places = [place_of[node] for node in range(len(predecessors))]
    return places, [[place_of[point] for point in path] for path in paths]


def lines_of(paths: Sequence[Sequence[Place]]) -> dict[int, list[str]]:
    """The lines of dependencies, cut at the columns.

    Returns:
        For each column the `d` of SVG paths that lead over it and on to the next, each once. They
        count from the column's left.
    """
    lines: dict[int, dict[str, None]] = collections.defaultdict(dict)
    for path in paths:
        for place in path[1:-1]:
            lines[place.column][f"M0 {place.y + NODE_HEIGHT / 2:g}H{NODE_WIDTH}"] = None
        for before, after in itertools.pairwise(path):
            y, next_y = before.y + NODE_HEIGHT / 2, after.y + NODE_HEIGHT / 2
            next_x, middle = COLUMN_PITCH, (NODE_WIDTH + COLUMN_PITCH) / 2
            if after.column == before.column:
                next_x, middle = NODE_WIDTH, NODE_WIDTH + _BULGE
            line = f"M{NODE_WIDTH} {y:g}C{middle:g} {y:g} {middle:g} {next_y:g} {next_x} {next_y:g}"
            lines[before.column][line] = None
    return {column: list(its) for column, its in lines.items()}


def _columns(predecessors: Sequence[Sequence[int]], group_of: dict[_Point, Hashable]) -> list[int]:
    """The column of each node: as far left as its group's dependencies let it be."""
    members: dict[Hashable, list[int]] = collections.defaultdict(list)
    readers: list[list[int]] = [[] for _ in predecessors]
    for node, its in enumerate(predecessors):
        members[group_of[node]].append(node)
        for each in its:
            readers[each].append(node)
    names = list(members)
    contraction = contract(readers, list(members.values()))
    if contraction.cycle:
        late = names[contraction.cycle[0]]
        raise PlanError(f"Expected stages that wait for each other in no cycle, got one: {late}")
    column_of: dict[Hashable, int] = {}
    for unit in contraction.order:
        group = names[unit]
        sources = {group_of[each] for node in members[group] for each in predecessors[node]}
        column_of[group] = 1 + max((column_of[each] for each in sources - {group}), default=-1)
    return [column_of[group_of[node]] for node in range(len(predecessors))]
