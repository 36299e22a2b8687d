"""The least sum of costs of nodes and edges, by eliminating one node after another.

Jia et al., "Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks" (ICML
2018), section 5, eliminate nodes with two neighbours and add parallel edges. Here a node may have
more neighbours: its elimination leaves a table over the choices of all of them (Dechter, "Bucket
elimination", 1999). So the size of the tables is computed first.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tf_interop.parallel.search.bounds import Array, Edge

# Larger tables are made row by row, so that rows stay in the cache until they are read again.
_MAX_AT_ONCE = 1 << 15


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """An order of elimination, and its work."""

    nodes: tuple[int, ...]
    entries: int  # of all tables over the choices of a node and its neighbours
    largest: int  # entries of the largest table kept, over the choices of neighbours
    width: int  # the most neighbours of a node at its elimination


def find_order(sizes: Sequence[int], edges: Iterable[Edge]) -> Order:
    """Orders nodes greedily: the one with the smallest table is next.

    Nodes with one choice do not count as neighbours.
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
    """The choices with the least sum of all costs."""
    place = {node: number for number, node in enumerate(order.nodes)}
    # A table belongs to the node of its first axis; axes are in order of elimination.
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
    """The minimum of the sum of tables along their first axis."""
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
