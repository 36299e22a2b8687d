"""The least sum of costs of nodes and edges, by eliminating one node after another.

Jia et al., "Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks" (ICML
2018), section 5, eliminate nodes with two neighbours and add up parallel edges. Here a node may
have more: then what is left of it is a table over the choices of all its neighbours (Dechter,
"Bucket elimination", 1999), which is why its size is looked at first.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Edge = tuple[int, int]

# Larger tables are made row by row: what is read again is in the cache then.
_MAX_AT_ONCE = 1 << 15


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """An order of elimination, and what it takes.

    Attributes:
        nodes: all of them.
        entries: of all tables, over the choices of a node and of its neighbours: the work.
        largest: the entries of the largest table that is kept, over those of neighbours alone.
        width: the most neighbours of a node when it is eliminated.
    """

    nodes: tuple[int, ...]
    entries: int
    largest: int
    width: int


def restrict(
    node_costs: Sequence[Array], edge_costs: Mapping[Edge, Array], kept: Sequence[Array]
) -> tuple[list[Array], dict[Edge, Array]]:
    """The costs of those choices of each node that are kept."""
    return (
        [costs[its] for costs, its in zip(node_costs, kept, strict=True)],
        {
            (first, second): costs[np.ix_(kept[first], kept[second])]
            for (first, second), costs in edge_costs.items()
        },
    )


def find_order(sizes: Sequence[int], edges: Iterable[Edge]) -> Order:
    """An order in which the next node is always the one with the smallest table.

    Nodes with one choice are nobody's neighbours.

    Args:
        sizes: how many choices each node has.
        edges: pairs of nodes.
    """
    neighbours: list[set[int]] = [set() for _ in sizes]
    for first, second in edges:
        if sizes[first] > 1 and sizes[second] > 1:
            neighbours[first].add(second)
            neighbours[second].add(first)

    def entries(node: int) -> int:
        return sizes[node] * math.prod(sizes[each] for each in neighbours[node])

    queue = [(entries(node), node) for node in range(len(sizes))]
    heapq.heapify(queue)
    nodes: dict[int, int] = {}
    width = 0
    while queue:
        count, node = heapq.heappop(queue)
        if node in nodes or count != entries(node):
            continue  # there is a newer entry
        nodes[node] = count
        its = neighbours[node]
        width = max(width, len(its))
        for each in its:
            neighbours[each] |= its
            neighbours[each] -= {node, each}
            heapq.heappush(queue, (entries(each), each))
    return Order(
        tuple(nodes),
        sum(nodes.values()),
        max((count // sizes[node] for node, count in nodes.items()), default=1),
        width,
    )


def eliminate(
    node_costs: Sequence[Array], edge_costs: Mapping[Edge, Array], order: Order
) -> tuple[int, ...]:
    """The choice of each node with which all costs together are least.

    Args:
        node_costs: of each node by its choice.
        edge_costs: by the choices of both nodes.
        order: of elimination.
    """
    place = {node: number for number, node in enumerate(order.nodes)}
    # Axes are in order of elimination; a table is with the node of its first.
    tables: dict[int, list[tuple[tuple[int, ...], Array]]] = {
        node: [((node,), node_costs[node])] for node in order.nodes
    }
    for (first, second), costs in edge_costs.items():
        if costs.shape[0] == 1:
            tables[second].append(((second,), costs[0]))
        elif costs.shape[1] == 1:
            tables[first].append(((first,), costs[:, 0]))
        elif place[first] < place[second]:
            tables[first].append(((first, second), costs))
        else:
            tables[second].append(((second, first), np.ascontiguousarray(costs.T)))
    for node in order.nodes:
        axes = sorted({each for its, _ in tables[node] for each in its}, key=place.__getitem__)
        if len(axes) == 1:
            continue
        aligned = [
            table[tuple(slice(None) if axis in its else None for axis in axes)]
            for its, table in tables[node]
        ]
        tables[axes[1]].append((tuple(axes[1:]), _least(aligned)))
    choice: dict[int, int] = {}
    for node in reversed(order.nodes):
        total = np.zeros(len(node_costs[node]))
        for its, table in tables[node]:
            index: tuple[Any, ...] = (slice(None), *(choice[axis] for axis in its[1:]))
            total += table[index]
        choice[node] = int(np.argmin(total))
    return tuple(choice[node] for node in range(len(node_costs)))


def _least(tables: Sequence[Array]) -> Array:
    """The least of the sum of tables over their first axis."""
    shape = np.broadcast_shapes(*(table.shape for table in tables))
    ordered = sorted(tables, key=np.size)
    if math.prod(shape) <= _MAX_AT_ONCE:
        least: Array = functools.reduce(np.add, ordered).min(axis=0)
        return least
    least = np.full(shape[1:], np.inf)
    row = np.empty(shape[1:])
    for choice in range(shape[0]):
        smaller = functools.reduce(np.add, [table[choice] for table in ordered[:-1]])
        np.minimum(least, np.add(smaller, ordered[-1][choice], out=row), out=least)
    return least
