"""Lower bounds for the costs of nodes and edges, in total and for each choice of each node.

Costs move between edges and their nodes until little changes. Then the minima of all nodes and
edges add up to a bound of the total (sequential reweighted message passing: Kolmogorov, "A New Look
at Reweighted Message Passing", PAMI 2015; on edges it is his TRW-S). The time is proportional to
the entries of the tables, so this is feasible where elimination is too wide.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Edge = tuple[int, int]

_MAX_SWEEPS = 30
# Sweeps continue while they close this share of the gap between the bound and the best cost.
_LEAST_PROGRESS = 0.02
# NumPy's overhead for an edge, in both directions.
_ENTRIES_OF_MESSAGES = 1 << 15


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Lower bounds, and a good choice found on the way.

    Attributes:
        least: bound of all choices.
        by_choice: bounds for each node, by its choice.
        choice: the good choice of each node.
        cost: the cost of `choice`.
        effort: work, in table entries that elimination would compute in the same time.
    """

    least: float
    by_choice: tuple[Array, ...]
    choice: tuple[int, ...]
    cost: float
    effort: int


def find_bounds(node_costs: Sequence[Array], edge_costs: Mapping[Edge, Array]) -> Bounds:
    """Finds bounds of the least cost.

    Args:
        node_costs: for each node, its cost by its choice.
        edge_costs: for each edge, its cost by the choices of its two nodes, the lower number first.
    """
    messages = Messages(node_costs, edge_costs)
    least, cost = -np.inf, np.inf
    choice: tuple[int, ...] = ()
    effort = 0
    for _ in range(_MAX_SWEEPS):
        effort += messages.effort_of_sweep
        before = least
        messages.sweep()
        least = messages.least()
        found = messages.choose()
        its_cost = total_cost(node_costs, edge_costs, found)
        if its_cost < cost:
            choice, cost = found, its_cost
        if least - before <= _LEAST_PROGRESS * (cost - least):
            break
    return Bounds(least, messages.by_choice(), choice, cost, effort)


def total_cost(
    node_costs: Sequence[Array], edge_costs: Mapping[Edge, Array], choice: Sequence[int]
) -> float:
    """The cost of a choice."""
    of_nodes = sum(costs[each] for costs, each in zip(node_costs, choice, strict=True))
    of_edges = sum(float(costs[choice[i], choice[j]]) for (i, j), costs in edge_costs.items())
    return float(of_nodes + of_edges)


class Messages:
    """The costs that edges have passed to their nodes; each edge keeps the rest.

    Attributes:
        effort_of_sweep: work, as in `Bounds`.
    """

    def __init__(self, node_costs: Sequence[Array], edge_costs: Mapping[Edge, Array]) -> None:
        self._node_costs = list(node_costs)
        self._costs = [costs.copy() for costs in node_costs]
        self.effort_of_sweep = sum(
            3 * costs.size + _ENTRIES_OF_MESSAGES for costs in edge_costs.values()
        )
        count = len(node_costs)
        # For each node: the other node, and costs by [the other's choice, its own choice].
        self._before: list[list[tuple[int, Array]]] = [[] for _ in range(count)]
        self._after: list[list[tuple[int, Array]]] = [[] for _ in range(count)]
        self._given: dict[tuple[int, int], Array] = {}  # by (to, from)
        for (first, second), costs in sorted(edge_costs.items(), key=lambda each: each[0]):
            self._before[second].append((first, costs))
            self._after[first].append((second, np.ascontiguousarray(costs.T)))
            self._given[first, second] = np.zeros(len(node_costs[first]))
            self._given[second, first] = np.zeros(len(node_costs[second]))

    def add(self, more: Sequence[Array]) -> None:
        """Adds to the costs of nodes."""
        for node, costs in enumerate(more):
            self._node_costs[node] = self._node_costs[node] + costs
            self._costs[node] = self._costs[node] + costs

    def sweep(self) -> None:
        """Sweeps forward and back. Afterwards no edge can pass more to its first node."""
        count = len(self._costs)
        for node in range(count):
            self._take(node, self._before[node])
            self._share(node, self._after[node])
        for node in reversed(range(count)):
            self._take(node, self._after[node])
            self._share(node, self._before[node])

    def _take(self, node: int, edges: Sequence[tuple[int, Array]]) -> None:
        """Takes as much from edges as they can pass for every choice."""
        for other, costs in edges:
            given = self._left(node, other, costs)
            self._costs[node] += given - self._given[node, other]
            self._given[node, other] = given

    def _left(self, node: int, other: int, costs: Array) -> Array:
        left: Array = (costs - self._given[other, node][:, np.newaxis]).min(axis=0)
        return left

    def _share(self, node: int, edges: Sequence[tuple[int, Array]]) -> None:
        """Returns equal shares of the costs to edges."""
        if not edges:
            return
        share = self._costs[node] / max(len(self._before[node]), len(self._after[node]))
        for other, _ in edges:
            self._given[node, other] = self._given[node, other] - share
        self._costs[node] = self._costs[node] - share * len(edges)

    def least(self) -> float:
        """The bound, after a sweep."""
        return float(sum(costs.min() for costs in self._costs))

    def by_choice(self) -> tuple[Array, ...]:
        """The bounds for each choice, after a sweep."""
        least = self.least()
        bounds = []
        for node, costs in enumerate(self._costs):
            more = costs - costs.min()
            for other, table in self._before[node]:
                more += self._left(node, other, table) - self._given[node, other]
            bounds.append(least + more)
        return tuple(bounds)

    def choose(self) -> tuple[int, ...]:
        """The best choice of each node, given those of its neighbours, after a sweep."""
        choice: list[int] = []
        for node, costs in enumerate(self._node_costs):
            total = costs.copy()
            for other, table in self._before[node]:
                total += table[choice[other]]
            for other, _ in self._after[node]:
                total += self._given[node, other]
            choice.append(int(np.argmin(total)))
        for node, costs in enumerate(self._node_costs):
            total = costs.copy()
            for other, table in (*self._before[node], *self._after[node]):
                total += table[choice[other]]
            choice[node] = int(np.argmin(total))
        return tuple(choice)
