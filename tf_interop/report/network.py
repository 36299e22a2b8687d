"""The network of a report: convolutions, their dependencies, and their places in the drawing.

A plan names convolutions, but not their dependencies. `report/model.py` gets these from the model.

The drawing goes from left to right. Every convolution stands to the right of its predecessors, and
the convolutions of one stage stand in one column. The method is that of Sugiyama, Tagawa and Toda
(IEEE Transactions on Systems, Man, and Cybernetics 11, 1981): longest paths determine the layers,
points cut edges over several layers into pieces, and sweeps forward and backward sort each layer
by the mean places of its neighbours.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import statistics
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from tf_interop.contraction import contract
from tf_interop.convolution import ConvolutionConfiguration, ConvolutionKind, Refusal
from tf_interop.errors import PlanError
from tf_interop.planning.types import GraphPlan
from tf_interop.structure import NOTHING, Structure

_SWEEPS = 6

NODE_WIDTH = 104
NODE_HEIGHT = 34
COLUMN_PITCH = 124
ROW_PITCH = 50
_LINE_HEIGHT = 0.1
"""In rows: many lines pass a column of a training step, from convolutions to their gradients."""
_MOST_LETTERS = 17
# How far a line between two convolutions of one column reaches to the right.
_BULGE = 20

_Point = int | tuple[int, int]
"""A node; or a node and a column, for the point where all lines from the node pass the column."""


@dataclasses.dataclass(frozen=True, slots=True)
class NetworkNode:
    """One convolution.

    Attributes:
        predecessors: places of the nodes that it depends on.
        label: its computation in a few letters; `note` describes it in words.
    """

    name: str
    predecessors: tuple[int, ...]
    label: str = ""
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Network:
    """The convolutions of one graph in a possible order of execution.

    `refusals` are those that cannot be part of a stage, and `structure` is the graph's.
    """

    nodes: tuple[NetworkNode, ...]
    refusals: tuple[Refusal, ...] = ()
    structure: Structure = NOTHING


def named_as_in(graph: GraphPlan, network: Network) -> Network:
    """Renames the convolutions as in a plan; another trace of the model may have other names."""
    planned = dict(zip(network.structure.names, graph.structure.names, strict=True))
    nodes = tuple(
        dataclasses.replace(node, name=planned.get(node.name, node.name)) for node in network.nodes
    )
    return dataclasses.replace(network, nodes=nodes)


def describe_filter(configuration: ConvolutionConfiguration) -> str:
    """A convolution in a few letters, such as `3×3`, or `3×3 ∂w` for the gradient of the filter."""
    if configuration.filter_shape is None:
        return ""
    *spatial, _, _ = configuration.filter_shape
    sizes = "×".join("?" if size is None else str(size) for size in spatial)
    gradient = {
        ConvolutionKind.FORWARD: "",
        ConvolutionKind.BACKWARD_INPUT: " ∂x",
        ConvolutionKind.BACKWARD_FILTER: " ∂w",
    }[configuration.kind]
    return sizes + gradient


def layer_of(name: str) -> str:
    """The layer's part of an operation's name, or its end if it is long."""
    *_, layer, operation = ("", *name.replace("/convolution/", "/").split("/"))
    text = layer or operation
    return text if len(text) <= _MOST_LETTERS else f"…{text[1 - _MOST_LETTERS :]}"


class Place(NamedTuple):
    """The place of a convolution or a line; a line takes only a part of a row."""

    column: int
    row: float

    @property
    def y(self) -> float:
        """The upper edge in pixels."""
        return self.row * ROW_PITCH


def lay_out(
    predecessors: Sequence[Sequence[int]], groups: Sequence[Hashable | None]
) -> tuple[list[Place], list[list[Place]]]:
    """Places nodes in columns and rows.

    Args:
        predecessors: for each node, the earlier nodes that it depends on.
        groups: nodes of one group, such as a stage, share a column; None is no group.

    Returns:
        The place of each node, and for each dependency the places that its line goes through.

    Raises:
        PlanError: groups depend on each other in a cycle, which legal stages never do.
    """
    group_of: dict[_Point, Hashable] = {
        node: ("node", node) if group is None else group for node, group in enumerate(groups)
    }
    columns = _columns(predecessors, group_of)
    paths: list[list[_Point]] = []
    # Ordered sets, so that a plan always has the same drawing.
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
            # Nodes of one group are in one column.
            if columns[each] < columns[node]:
                for before, after in itertools.pairwise(paths[-1]):
                    left[after][before] = right[before][after] = None

    def rows_of(layer: Sequence[_Point]) -> list[float]:
        return [1.0 if isinstance(point, int) else _LINE_HEIGHT for point in layer]

    def heights(layer: Sequence[_Point]) -> dict[_Point, float]:
        # Of the middles, from the middle of the column.
        sizes = rows_of(layer)
        ends = itertools.accumulate(sizes)
        return {
            point: end - size / 2 - sum(sizes) / 2
            for point, end, size in zip(layer, ends, sizes, strict=True)
        }

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
            # By group first, which keeps a stage together; ties keep their order.
            rank = {
                group: (statistics.fmean(its), first)
                for first, (group, its) in enumerate(members.items())
            }
            layer.sort(key=lambda point: (rank[group_of.get(point, point)], wanted[point]))
            height |= heights(layer)
    rows = max((sum(rows_of(layer)) for layer in ordered), default=0)
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
        For each column, the `d` of SVG paths across it and to the next one, each once, relative to
        the column's left edge.
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
    """The column of each node, as far left as its group's dependencies allow."""
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
        raise PlanError(f"Stages wait for each other in a cycle through {late}. Make a new plan.")
    column_of: dict[Hashable, int] = {}
    for unit in contraction.order:
        group = names[unit]
        sources = {group_of[each] for node in members[group] for each in predecessors[node]}
        column_of[group] = 1 + max((column_of[each] for each in sources - {group}), default=-1)
    return [column_of[group_of[node]] for node in range(len(predecessors))]
