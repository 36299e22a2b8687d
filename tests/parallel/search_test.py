"""The search over configurations, against all choices one after another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tf_interop.errors import PlanError
from tf_interop.parallel.search import minimize as search
from tf_interop.parallel.search.minimize import SearchProblem, minimize

Array = np.ndarray[Any, Any]


def random_problem(seed: int, *, devices: int = 0) -> SearchProblem:
    """A problem with up to 7 layers and up to 4 configurations of each.

    In complete graphs only edges have costs, so that bounds are far from the least cost.
    """
    random = np.random.default_rng(seed)
    density = (0.2, 0.4, 0.7, 1.0)[seed % 4]
    is_complete = density == 1
    count = 6 if is_complete else int(random.integers(2, 8))
    sizes = [3] * 6 if is_complete else [int(size) for size in random.integers(1, 5, count)]

    def costs(*shape: int) -> Array:
        """Every third problem has many equal costs."""
        found = random.random(shape)
        return found if seed % 3 else np.floor(4 * found)

    pairs = itertools.combinations(range(count), 2)
    edges = [pair for pair in pairs if random.random() < density]
    memory = tuple(random.integers(0, 100, (size, devices)) for size in sizes)
    limits = random.integers(20, 70, devices) * count if devices else None
    return SearchProblem(
        tuple(np.zeros(size) if is_complete else costs(size) for size in sizes),
        {(first, second): costs(sizes[first], sizes[second]) for first, second in edges},
        memory,
        limits,
    )


def every_choice(problem: SearchProblem) -> Iterator[tuple[tuple[int, ...], float]]:
    """All choices that fit, with their costs."""
    for choice in itertools.product(*(range(len(costs)) for costs in problem.node_costs)):
        if problem.memory_limits is not None:
            used = sum(its[each] for its, each in zip(problem.memory, choice, strict=True))
            if (used > problem.memory_limits).any():
                continue
        yield (
            choice,
            math.fsum(
                [costs[each] for costs, each in zip(problem.node_costs, choice, strict=True)]
                + [costs[choice[i], choice[j]] for (i, j), costs in problem.edge_costs.items()]
            ),
        )


# Elimination solves a problem at once, or after bounds have ruled out configurations, or not at all
# because its tables are still too large.
ENTRIES = [(search._FEW_ENTRIES, search._MAX_ENTRIES), (0, search._MAX_ENTRIES), (40, 60)]


@pytest.mark.parametrize(("few", "most"), ENTRIES)
@pytest.mark.parametrize("devices", range(4))
@pytest.mark.parametrize("seed", range(60))
def test_nothing_that_fits_costs_less(
    seed: int, devices: int, few: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_FEW_ENTRIES", few)
    monkeypatch.setattr(search, "_MAX_ENTRIES", most)
    problem = random_problem(seed, devices=devices)
    costs = dict(every_choice(problem))
    if not costs:
        with pytest.raises(PlanError, match="fits in memory"):
            minimize(problem)
        return
    result = minimize(problem)
    assert result.is_exact
    if seed % 3 == 0:  # many choices cost the same
        assert result == minimize(problem)
    assert result.cost == pytest.approx(costs[result.choice], rel=1e-12, abs=1e-12)
    assert result.cost == pytest.approx(min(costs.values()), rel=1e-9, abs=1e-12)


def test_chooses_layers_without_edges_one_by_one() -> None:
    costs = np.random.default_rng(1).random((50, 9))
    result = minimize(SearchProblem(tuple(costs), {}))
    assert (result.choice, str(result)) == (tuple(costs.argmin(axis=1)), "exact")
    assert minimize(SearchProblem((), {})).choice == ()


def test_solves_a_long_chain_exactly() -> None:
    random = np.random.default_rng(2)
    edges = {(each, each + 1): random.random((30, 30)) for each in range(999)}
    problem = SearchProblem(tuple(random.random((1000, 30))), edges)
    least_cost = problem.node_costs[0]
    for each in range(999):
        least_cost = (least_cost[:, None] + edges[each, each + 1]).min(0)
        least_cost = least_cost + problem.node_costs[each + 1]
    result = minimize(problem)
    assert result.is_exact
    assert result.width == 1
    assert result.cost == pytest.approx(least_cost.min())


def test_a_limit_may_be_reached_exactly() -> None:
    memory = (np.array([[7], [1]]), np.array([[5], [2]]))
    costs = (np.array([0.0, 9.0]), np.array([0.0, 1.0]))
    assert minimize(SearchProblem(costs, {}, memory, np.array([12]))).choice == (0, 0)
    assert minimize(SearchProblem(costs, {}, memory, np.array([11]))).choice == (0, 1)


def test_an_error_names_the_needed_memory() -> None:
    memory = (np.array([[700, 0], [300, 300]]), np.array([[200, 500]]))
    problem = SearchProblem(
        (np.zeros(2), np.zeros(1)), {}, memory, memory_limits=np.array([400, 900])
    )
    with pytest.raises(PlanError, match="takes 500 bytes on device 0, which has 400"):
        minimize(problem)


def test_says_how_far_an_unproven_choice_may_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FEW_ENTRIES", "_MAX_ENTRIES", "_MAX_EFFORT"):
        monkeypatch.setattr(search, name, 0)
    random = np.random.default_rng(3)
    edges = {each: random.random((6, 6)) for each in itertools.combinations(range(6), 2)}
    problem = SearchProblem(tuple(random.random((6, 6))), edges)
    result = minimize(problem)
    expected = min(cost for _, cost in every_choice(problem))
    assert not result.is_exact
    assert result.bound <= expected <= result.cost
    assert str(result).startswith("within ")
