"""The least sum of costs of nodes and edges, without limits, and exact where feasible.

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

from tf_interop.parallel.search.bounds import Array, Edge, find_bounds, total_cost

# Up to this number elimination is faster than bounds.
_FEW_ENTRIES = 1 << 24
# Each entry is an addition and a comparison, about a nanosecond.
_MAX_ENTRIES = 1 << 30
_MAX_TABLE = 1 << 24
# NumPy's overhead for a node.
_ENTRIES_OF_NODE = 1 << 15
# Larger tables are made row by row, so that rows stay in the cache until they are read again.
_MAX_AT_ONCE = 1 << 15


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Least:
    """The best choice found.

    Attributes:
        choice: the choice of each node.
        bound: no choice costs less.
        is_best: whether no choice costs less than `choice`.
        width: the most neighbours of a node at its elimination, even if that was not feasible.
        effort: work, in entries of tables.
    """

    choice: tuple[int, ...]
    bound: float
    is_best: bool
    width: int
    effort: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Order:
    """An order of elimination, and its work."""

    nodes: tuple[int, ...]
    entries: int  # of all tables over the choices of a node and its neighbours
    largest: int  # entries of the largest table kept, over the choices of neighbours
    width: int  # the most neighbours of a node at its elimination


def find_least(node_costs: Sequence[Array], edge_costs: Mapping[Edge, Array]) -> Least:
    """Finds the choice of each node that minimizes the sum of all costs.

    If the tables of elimination would get too large, choices whose bounds exceed the cost of a
    known solution are left out. That solution comes from an elimination with the few choices of
    each node that have the lowest bounds.
    """
    sizes = [len(costs) for costs in node_costs]
    order = _find_order(sizes, edge_costs)
    effort = _ENTRIES_OF_NODE * len(sizes)

    def solve(kept: Sequence[Array], limit: int) -> tuple[int, ...] | None:
        """The best of the kept choices; None if that is too much work."""
        nonlocal effort
        order = _find_order([len(its) for its in kept], edge_costs)
        if order.entries > limit or order.largest > _MAX_TABLE:
            return None
        effort += order.entries + _ENTRIES_OF_NODE * len(kept)
        places = _eliminate(*restrict(node_costs, edge_costs, kept), order)
        return tuple(int(its[place]) for its, place in zip(kept, places, strict=True))

    every = [np.arange(size) for size in sizes]
    choice = solve(every, _FEW_ENTRIES)
    if choice is not None:
        bound = total_cost(node_costs, edge_costs, choice)
        return Least(choice, bound, True, order.width, effort)

    bounds = find_bounds(node_costs, edge_costs)
    effort += bounds.effort
    best = bounds.cost, bounds.choice

    def consider(choice: tuple[int, ...] | None) -> None:
        nonlocal best
        if choice is not None:
            best = min(best, (total_cost(node_costs, edge_costs, choice), choice))

    for count in (8, 4, 2):
        lowest = [np.sort(np.argsort(its, kind="stable")[:count]) for its in bounds.by_choice]
        found = solve(lowest, _FEW_ENTRIES)
        consider(found)
        if found is not None:
            break
    kept = [np.flatnonzero(its < best[0]) for its in bounds.by_choice]
    is_best = not all(map(len, kept))
    if not is_best:
        found = solve(kept, _MAX_ENTRIES)
        consider(found)
        is_best = found is not None
    cost, choice = best
    return Least(choice, cost if is_best else bounds.least, is_best, order.width, effort)


def restrict(
    node_costs: Sequence[Array], edge_costs: Mapping[Edge, Array], kept: Sequence[Array]
) -> tuple[list[Array], dict[Edge, Array]]:
    """The costs of the kept choices of each node."""
    return (
        [costs[its] for costs, its in zip(node_costs, kept, strict=True)],
        {
            (first, second): costs[np.ix_(kept[first], kept[second])]
            for (first, second), costs in edge_costs.items()
        },
    )


def _find_order(sizes: Sequence[int], edges: Iterable[Edge]) -> _Order:
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
    return _Order(
        tuple(nodes),
        sum(nodes.values()),
        max((count // sizes[node] for node, count in nodes.items()), default=1),
        width,
    )


def _eliminate(
    node_costs: Sequence[Array], edge_costs: Mapping[Edge, Array], order: _Order
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
