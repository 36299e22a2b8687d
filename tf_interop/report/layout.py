"""Draws a network from left to right, the convolutions of a stage below each other.

A column for each stage: no convolution stands left of one that it depends on, and those of one
stage stand in one column. It is the method of Sugiyama, Tagawa and Toda (IEEE Transactions on
Systems, Man, and Cybernetics 11, 1981): layers by the longest path, edges over several layers cut
into pieces by points that stand for them, and in each layer the order of the mean places of what is
joined to it in the layer before, to and fro some times.
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
_COLUMN_PITCH = 66
_ROW_PITCH = 38
_MARGIN = 14
# How far a line between two convolutions of one column goes out to the right.
_BULGE = 20

_Point = int | tuple[int, int]
"""A node, or where all lines from a node pass a column: the node and the column."""


class Place(NamedTuple):
    """Where a convolution or a line is; rows may be halves, in columns shorter than the tallest."""

    column: int
    row: float

    @property
    def x(self) -> float:
        """Of the left corner, in pixels."""
        return _MARGIN + self.column * _COLUMN_PITCH

    @property
    def y(self) -> float:
        """Of the upper corner, in pixels."""
        return _MARGIN + self.row * _ROW_PITCH


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
            # Inside of a group nothing is left or right of another.
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


def line_through(places: Sequence[Place]) -> str:
    """The `d` of an SVG path, from the right of the first place to the left of the last.

    It is level at every place. Within a column it goes to the right of the last.
    """
    x, y = places[0].x + NODE_WIDTH, places[0].y + NODE_HEIGHT / 2
    words = [f"M{x:g} {y:g}"]
    for place in places[1:]:
        next_x, next_y = place.x, place.y + NODE_HEIGHT / 2
        middle = (x + next_x) / 2
        if place.column == places[0].column:
            next_x, middle = x, x + _BULGE
        words.append(f"C{middle:g} {y:g} {middle:g} {next_y:g} {next_x:g} {next_y:g}")
        if place is not places[-1]:
            next_x += NODE_WIDTH
            words.append(f"H{next_x:g}")
        x, y = next_x, next_y
    return "".join(words)


def _columns(predecessors: Sequence[Sequence[int]], group_of: dict[_Point, Hashable]) -> list[int]:
    """The column of each node: as far left as its group's dependencies let it be."""
    members: dict[Hashable, list[int]] = collections.defaultdict(list)
    readers: list[list[int]] = [[] for _ in predecessors]
    for node, its in enumerate(predecessors):
        members[group_of[node]].append(node)
        for each in its:
            readers[each].append(node)
    contraction = contract(readers, list(members.values()))
    if contraction.cycle:
        late = group_of[contraction.cycle[0][0]]
        raise PlanError(f"Expected stages that wait for each other in no cycle, got one: {late}")
    names = list(members)
    column_of: dict[Hashable, int] = {}
    for unit in contraction.order:
        group = names[unit]
        sources = {group_of[each] for node in members[group] for each in predecessors[node]}
        column_of[group] = 1 + max((column_of[each] for each in sources - {group}), default=-1)
    return [column_of[group_of[node]] for node in range(len(predecessors))]
