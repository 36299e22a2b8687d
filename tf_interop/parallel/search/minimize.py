"""Chooses a configuration for every layer: the least total cost that fits in memory.

Without memory limits, eliminating one layer after another finds the best choice (`elimination`). If
the tables for that would get too large, lower bounds of the cost first rule out configurations
(`bounds`). If the tables are still too large, the search divides the configurations of one layer
into two halves. Each half is a subproblem that is solved in the same way: branch and bound.

A memory limit makes each layer depend on all others. So memory gets a price on each device, which
is added to the costs of the layers that use it (Lagrange multipliers). For any prices, the least
cost minus the price of all available memory is a lower bound for every choice that fits. The search
raises the prices where a choice uses too much, which raises the bound (Held and Karp's
subgradients). Branch and bound does the rest.

The search stops after a limited effort, with the best choice so far and its bound.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from tf_interop.errors import PlanError
from tf_interop.parallel.search.bounds import Array, Edge, Messages, find_bounds, total_cost
from tf_interop.parallel.search.elimination import eliminate, find_order

# Costs with a smaller relative difference count as equal, because sums are rounded.
_ROUNDING = 1e-10
# Up to this number of entries elimination is faster than bounds.
_FEW_ENTRIES = 1 << 24
# Each entry is an addition and a comparison, about a nanosecond.
_MAX_ENTRIES = 1 << 30
_MAX_TABLE = 1 << 24
# NumPy's overhead for a node.
_ENTRIES_OF_NODE = 1 << 15
# The configurations of each layer that are tried to find a good choice: those of the lowest bounds.
_FEW = 4
# The limit for all subproblems together, a few seconds.
_MAX_EFFORT = 1 << 32
# The search for prices ends after this many attempts in a row that each close less than this share
# of the gap between the bound and the best cost.
_MAX_IN_VAIN = 8
_LEAST_PROGRESS = 0.01
_MAX_FRUGAL = 300


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class SearchProblem:
    """The configurations and their costs.

    Attributes:
        node_costs: for each layer, seconds by configuration.
        edge_costs: for pairs of layers, the lower number first, seconds by both configurations.
        memory: for each layer, bytes by configuration and device; only read with limits.
        memory_limits: bytes by device; None for no limits.
    """

    node_costs: tuple[Array, ...]
    edge_costs: Mapping[Edge, Array]
    memory: tuple[Array, ...] = ()
    memory_limits: Array | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class SearchResult:
    """The choice.

    Attributes:
        choice: the configuration of each layer.
        cost: seconds of all layers and edges.
        bound: no choice that fits costs less. Equal to the cost if that is proven to be least.
        width: the most neighbours of a layer at its elimination; wide problems are hard.
    """

    choice: tuple[int, ...]
    cost: float
    bound: float
    width: int

    @property
    def is_exact(self) -> bool:
        """Whether no choice costs less, apart from rounding."""
        return self.bound >= self.cost

    def __str__(self) -> str:
        """Such as `exact` or `within 0.3% of the least`."""
        if self.is_exact:
            return "exact"
        return f"within {(self.cost - self.bound) / abs(self.bound or 1):.1%} of the least"


def minimize(problem: SearchProblem) -> SearchResult:
    """Finds the cheapest configurations. Ties are always broken the same way.

    Raises:
        PlanError: the search found no choice within the memory limits.
    """
    return _Search(problem).run()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Subproblem:
    """A subset of the configurations, with initial prices of memory."""

    kept: tuple[Array, ...]  # the configurations of each layer, ascending
    prices: Array  # of all memory of each device


class _Search:
    """The open subproblems, and the best choice so far."""

    def __init__(self, problem: SearchProblem) -> None:
        self._node_costs = problem.node_costs
        self._edge_costs = problem.edge_costs
        self._edges_of: list[list[tuple[int, Array]]] = [[] for _ in problem.node_costs]
        for (first, second), costs in problem.edge_costs.items():
            self._edges_of[first].append((second, costs.T))
            self._edges_of[second].append((first, costs))
        self._limits: Array = np.zeros(0)
        self._bytes = tuple(np.zeros((len(its), 0)) for its in problem.node_costs)
        if problem.memory_limits is not None:
            self._limits, self._bytes = problem.memory_limits, problem.memory
        self._shares = [its / np.maximum(self._limits, 1) for its in self._bytes]
        self._choice: tuple[int, ...] | None = None
        self._cost = np.inf
        self._queue: list[tuple[float, int, _Subproblem]] = []
        self._numbers = itertools.count()
        self._effort = 0
        self._width = 0

    def run(self) -> SearchResult:
        every = tuple(np.arange(len(costs)) for costs in self._node_costs)
        free = np.zeros(len(self._limits))
        bound, choice, kept = self._least(every, free)
        if choice is not None and self._consider(choice):
            return self._result(bound)
        if len(self._limits):
            self._consider(self._frugal())
        self._add(bound, _Subproblem(kept, free))
        while self._queue and self._effort <= _MAX_EFFORT and self._queue[0][0] < self._enough:
            bound, _, subproblem = heapq.heappop(self._queue)
            self._solve(bound, subproblem)
        return self._result(self._queue[0][0] if self._queue else np.inf)

    def _result(self, bound: float) -> SearchResult:
        if self._choice is None:
            raise self._nothing_fits()
        if bound >= self._enough:
            bound = self._cost
        return SearchResult(self._choice, self._cost, bound, self._width)

    @property
    def _enough(self) -> float:
        """A subproblem with at least this bound has no better choice."""
        return self._cost if self._choice is None else self._cost - _ROUNDING * abs(self._cost)

    def _add(self, bound: float, subproblem: _Subproblem) -> None:
        heapq.heappush(self._queue, (bound, next(self._numbers), subproblem))

    def _used(self, choice: Sequence[int]) -> Array:
        """The bytes of a choice on each device."""
        used = np.zeros(len(self._limits))
        for its, each in zip(self._bytes, choice, strict=True):
            used += its[each]
        return used

    def _consider(self, choice: Sequence[int]) -> bool:
        """Keeps a choice if it fits and is the best so far. Returns whether it fits."""
        used = self._used(choice)
        if (used > self._limits).any():
            return False
        cost = total_cost(self._node_costs, self._edge_costs, choice)
        if cost < self._enough:
            self._choice, self._cost = tuple(choice), cost
            if len(self._limits):
                self._improve()
        return True

    def _improve(self) -> None:
        """Improves the best choice layer by layer, within the memory."""
        choice = list(self._choice or ())
        used = self._used(choice)
        for node, costs in enumerate(self._node_costs):
            total = costs.copy()
            for other, table in self._edges_of[node]:
                total += table[choice[other]]
            others = used - self._bytes[node][choice[node]]
            total[(others + self._bytes[node] > self._limits).any(axis=1)] = np.inf
            choice[node] = int(np.argmin(total))
            used = others + self._bytes[node][choice[node]]
        self._consider(choice)

    def _solve(self, bound: float, subproblem: _Subproblem) -> None:
        """Solves a subproblem, rules it out, or divides it."""
        kept = subproblem.kept
        least_used = [
            memory[its].min(axis=0) for memory, its in zip(self._bytes, kept, strict=True)
        ]
        if (np.sum(least_used, axis=0) > self._limits).any():
            return
        bound, prices = self._find_prices(bound, subproblem)
        if bound >= self._enough:
            return
        its_bound, choice, kept = self._least(kept, prices)
        bound = max(bound, its_bound)
        fits = choice is not None and self._consider(choice)
        if choice is not None and fits:
            unused = self._limits - self._used(choice)
            if not prices @ unused:
                return  # the prices add nothing, so the choice is the best
        if bound < self._enough:
            self._divide(bound, _Subproblem(kept, prices), None if fits else choice)

    def _find_prices(self, bound: float, subproblem: _Subproblem) -> tuple[float, Array]:
        """The best bound found, and its prices."""
        kept, prices = subproblem.kept, subproblem.prices
        best = prices
        if not len(prices):
            return bound, best
        node_costs, edge_costs = self._costs(kept, prices)
        messages = Messages(node_costs, edge_costs)
        step = 1.0
        in_vain = 0
        while in_vain < _MAX_IN_VAIN and bound < self._enough:
            messages.sweep()
            choice = _take(kept, messages.choose())
            self._consider(choice)
            self._effort += messages.effort_of_sweep
            its_bound = messages.least() - prices.sum()
            in_vain += 1
            if its_bound > bound:
                if its_bound - bound > _LEAST_PROGRESS * (self._cost - bound):
                    in_vain = 0
                bound, best = its_bound, prices
            else:
                step *= 0.8
            missing = self._used(choice) / np.maximum(self._limits, 1) - 1
            missing[(prices <= 0) & (missing < 0)] = 0
            if not missing.any():
                break
            # Polyak's step, towards prices whose bound is the best cost.
            goal = self._cost if self._choice is not None else bound + abs(bound)
            raised = prices + step * (goal - its_bound) / (missing @ missing) * missing
            raised = np.maximum(raised, 0.0)
            messages.add(
                [self._shares[each][its] @ (raised - prices) for each, its in enumerate(kept)]
            )
            prices = raised
        return bound, best

    def _least(
        self, kept: tuple[Array, ...], prices: Array
    ) -> tuple[float, tuple[int, ...] | None, tuple[Array, ...]]:
        """Finds the least cost with prices.

        Returns:
            A bound of the cost; the best choice, or None if finding it is too much work; and the
            configurations that a better choice than the best so far may have.
        """
        choice = self._eliminate(kept, prices, _FEW_ENTRIES)
        if choice is None:
            bounds = find_bounds(*self._costs(kept, prices))
            self._effort += bounds.effort
            self._consider(_take(kept, bounds.choice))
            lowest = tuple(
                its[np.sort(np.argsort(by_choice, kind="stable")[:_FEW])]
                for its, by_choice in zip(kept, bounds.by_choice, strict=True)
            )
            good = self._eliminate(lowest, prices, _FEW_ENTRIES)
            if good is not None:
                self._consider(good)
            kept = tuple(
                its[by_choice - prices.sum() < self._enough]
                for its, by_choice in zip(kept, bounds.by_choice, strict=True)
            )
            if not all(map(len, kept)):
                return np.inf, None, kept
            choice = self._eliminate(kept, prices, _MAX_ENTRIES)
            if choice is None:
                return bounds.least - prices.sum(), None, kept
        cost = total_cost(self._node_costs, self._edge_costs, choice)
        used = self._used(choice) / np.maximum(self._limits, 1)
        return cost + float(prices @ (used - 1)), choice, kept

    def _eliminate(
        self, kept: Sequence[Array], prices: Array, limit: int
    ) -> tuple[int, ...] | None:
        """The best of the kept configurations with prices; None if that is too much work."""
        order = find_order([len(its) for its in kept], self._edge_costs)
        self._width = max(self._width, order.width)
        if order.entries > limit or order.largest > _MAX_TABLE:
            return None
        self._effort += order.entries + _ENTRIES_OF_NODE * len(kept)
        return _take(kept, eliminate(*self._costs(kept, prices), order))

    def _costs(self, kept: Sequence[Array], prices: Array) -> tuple[list[Array], dict[Edge, Array]]:
        """The costs of the kept configurations with prices."""
        layers = zip(self._node_costs, self._shares, kept, strict=True)
        node_costs = [costs[its] + shares[its] @ prices for costs, shares, its in layers]
        edge_costs = {
            (first, second): costs[np.ix_(kept[first], kept[second])]
            for (first, second), costs in self._edge_costs.items()
        }
        return node_costs, edge_costs

    def _divide(
        self, bound: float, subproblem: _Subproblem, too_much: tuple[int, ...] | None
    ) -> None:
        """Divides the configurations of one layer between two subproblems.

        Both leave out the configurations that no better choice can have. `too_much` is the best
        choice with the subproblem's prices, if that does not fit.
        """
        prices = subproblem.prices
        bounds = find_bounds(*self._costs(subproblem.kept, prices))
        is_better = [its - prices.sum() < self._enough for its in bounds.by_choice]
        kept = tuple(its[better] for its, better in zip(subproblem.kept, is_better, strict=True))
        if not all(map(len, kept)):
            return
        weights = [shares[its] @ prices for shares, its in zip(self._shares, kept, strict=True)]
        node = self._node_to_divide(kept, weights, too_much)
        if len(kept[node]) == 1:
            self._consider(_take(kept, [0] * len(kept)))
            return
        by_choice = bounds.by_choice[node][is_better[node]] - prices.sum()
        # Separates by memory if it has a price, otherwise by bounds.
        apart = weights[node] if np.ptp(weights[node]) else by_choice
        is_low = np.zeros(len(apart), bool)
        is_low[np.argsort(apart, kind="stable")[: len(apart) // 2]] = True
        for half in (is_low, ~is_low):
            its = (*kept[:node], kept[node][half], *kept[node + 1 :])
            self._add(max(bound, float(by_choice[half].min())), _Subproblem(its, prices))

    def _node_to_divide(
        self, kept: Sequence[Array], weights: Sequence[Array], too_much: tuple[int, ...] | None
    ) -> int:
        """The layer that makes the subproblem hard."""

        # First a layer where the best choice so far differs from the one that uses too much, then
        # one with a large effect on memory, then one with large tables.
        def rank(node: int) -> tuple[bool, bool, float, int, int]:
            size = len(kept[node])
            differs = bool(too_much and self._choice and too_much[node] != self._choice[node])
            spread = float(np.ptp(weights[node]))
            return size > 1, differs, spread, size * len(self._edges_of[node]), -node

        return max(range(len(kept)), key=rank)

    def _frugal(self) -> tuple[int, ...]:
        """A choice that fits, or one that exceeds the limits by little.

        Each layer takes the configuration with the least weighted use of memory. Then fuller
        devices get a larger weight, and so on (Arora, Hazan and Kale, "The Multiplicative Weights
        Update Method", 2012).
        """
        weights = np.ones(len(self._limits))
        ends = np.cumsum([len(its) for its in self._shares])
        shares = np.concatenate(self._shares)
        best: tuple[float, tuple[int, ...]] = np.inf, ()
        for _ in range(_MAX_FRUGAL):
            weighted = np.split(shares @ weights, ends[:-1])
            choice = tuple(int(its.argmin()) for its in weighted)
            used = self._used(choice) / np.maximum(self._limits, 1)
            best = min(best, (float(used.max()), choice))
            if best[0] <= 1:
                break
            weights *= np.exp(0.1 * (used / used.max() - 1))
        return best[1]

    def _nothing_fits(self) -> PlanError:
        used = self._used(self._frugal())
        device = int(np.argmax(used / np.maximum(self._limits, 1)))
        return PlanError(
            "No division of the layers fits in memory: the smallest found takes "
            f"{used[device]:.0f} bytes on device {device}, which has {self._limits[device]:.0f}. "
            "Raise the limit, use more devices or a smaller batch."
        )


def _take(kept: Sequence[Array], places: Sequence[int]) -> tuple[int, ...]:
    """The kept configurations at these places."""
    return tuple(int(its[place]) for its, place in zip(kept, places, strict=True))
