"""The least sum of costs of nodes and edges, with no limit: exactly where that is within reach."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from tf_interop.parallel.search.bounds import find_bounds, total_cost
from tf_interop.parallel.search.elimination import Array, Edge, eliminate, find_order, restrict

# Elimination up to here is quicker than bounds are found.
_FEW_ENTRIES = 1 << 24
# Each is an addition and a comparison, about a nanosecond.
_MAX_ENTRIES = 1 << 30
_MAX_TABLE = 1 << 24
# What NumPy takes to be called for a node.
_ENTRIES_OF_NODE = 1 << 15


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Least:
    """The best choice that was found.

    Attributes:
        choice: of each node.
        bound: no choice costs less.
        by_choice: bounds of each node by its choice; None where `choice` is the best.
        width: the most neighbours that a node had when it was eliminated, or would have had.
        effort: what finding it took, in entries of tables.
    """

    choice: tuple[int, ...]
    bound: float
    by_choice: tuple[Array, ...] | None
    width: int
    effort: int


def find_least(node_costs: Sequence[Array], edge_costs: Mapping[Edge, Array]) -> Least:
    """Finds the choice of each node with which all costs together are least.

    Where tables of elimination would get too large, choices are left out that bounds show to be
    in no choice better than a known one. It is known from an elimination with few choices of each
    node, those with the lowest bounds.

    Args:
        node_costs: of each node by its choice.
        edge_costs: by the choices of both nodes; the lower number is first.
    """
    sizes = [len(costs) for costs in node_costs]
    order = find_order(sizes, edge_costs)
    effort = _ENTRIES_OF_NODE * len(sizes)

    def solve(kept: Sequence[Array], limit: int) -> tuple[int, ...] | None:
        """The best of the choices that are kept; None where it takes too much."""
        nonlocal effort
        order = find_order([len(its) for its in kept], edge_costs)
        if order.entries > limit or order.largest > _MAX_TABLE:
            return None
        effort += order.entries + _ENTRIES_OF_NODE * len(kept)
        places = eliminate(*restrict(node_costs, edge_costs, kept), order)
        return tuple(int(its[place]) for its, place in zip(kept, places, strict=True))

    every = [np.arange(size) for size in sizes]
    choice = solve(every, _FEW_ENTRIES)
    if choice is not None:
        bound = total_cost(node_costs, edge_costs, choice)
        return Least(choice, bound, None, order.width, effort)

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
    if is_best:
        return Least(choice, cost, None, order.width, effort)
    return Least(choice, bounds.least, bounds.by_choice, order.width, effort)
