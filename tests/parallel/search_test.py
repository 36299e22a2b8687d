"""The search over configurations, against all choices one after another."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tf_interop.errors import PlanError
from tf_interop.parallel.search import least
from tf_interop.parallel.search import minimize as search
from tf_interop.parallel.search.minimize import SearchProblem, SearchResult, minimize

Array = np.ndarray[Any, Any]
KINDS = ("tree", "series-parallel", "dense", "apart", "complete")


def random_edges(kind: str, count: int, random: np.random.Generator) -> list[tuple[int, int]]:
    """The edges of a graph."""
    if kind == "tree":
        return [(int(random.integers(node)), node) for node in range(1, count)]
    if kind == "series-parallel":
        edges = {(0, 1)}
        for node in range(2, count):
            first, second = sorted(edges)[random.integers(len(edges))]
            if random.random() < 0.5:
                edges.remove((first, second))
            edges |= {(first, node), (second, node)}
        return sorted(edges)
    density = {"complete": 1.0, "dense": 0.7, "apart": 0.2}[kind]
    return [each for each in itertools.combinations(range(count), 2) if random.random() < density]


def random_problem(seed: int, *, devices: int = 0, whole_numbers: bool = False) -> SearchProblem:
    """A problem of up to 7 layers with up to 4 configurations each.

    In complete graphs only edges have costs, so that bounds are far from the least cost.
    """
    random = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    is_complete = kind == "complete"
    count = 6 if is_complete else int(random.integers(2, 8))
    sizes = [3] * 6 if is_complete else [int(size) for size in random.integers(1, 5, count)]

    def values(*shape: int) -> Array:
        return random.integers(0, 4, shape) * 1.0 if whole_numbers else random.random(shape)

    edges = random_edges(kind, count, random)
    memory = tuple(random.integers(0, 100, (size, devices)) for size in sizes)
    limits = random.integers(20, 70, devices) * count if devices else None
    return SearchProblem(
        tuple(np.zeros(size) if is_complete else values(size) for size in sizes),
        {(first, second): values(sizes[first], sizes[second]) for first, second in edges},
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
        yield choice, cost_of(problem, choice)


def cost_of(problem: SearchProblem, choice: tuple[int, ...]) -> float:
    """The cost of a choice."""
    return math.fsum(
        [costs[each] for costs, each in zip(problem.node_costs, choice, strict=True)]
        + [costs[choice[i], choice[j]] for (i, j), costs in problem.edge_costs.items()]
    )


def check_least(problem: SearchProblem) -> SearchResult | None:
    """Asserts that the search finds the least cost; returns None if nothing fits."""
    expected = min((cost for _, cost in every_choice(problem)), default=None)
    if expected is None:
        with pytest.raises(PlanError, match="fits into memory"):
            minimize(problem)
        return None
    result = minimize(problem)
    assert result.is_exact
    assert result.choice in dict(every_choice(problem))
    assert result.cost == pytest.approx(cost_of(problem, result.choice), rel=1e-12, abs=1e-12)
    assert result.cost == pytest.approx(expected, rel=1e-9, abs=1e-12)
    return result


# Elimination solves a problem at once, or after bounds have ruled out configurations, or its tables
# are still too large then.
ENTRIES = [(least._FEW_ENTRIES, least._MAX_ENTRIES), (0, least._MAX_ENTRIES), (40, 60)]


@pytest.mark.parametrize(("few", "most"), ENTRIES)
@pytest.mark.parametrize("devices", range(4))
@pytest.mark.parametrize("seed", range(60))
def test_nothing_that_fits_costs_less(
    seed: int, devices: int, few: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(least, "_FEW_ENTRIES", few)
    monkeypatch.setattr(least, "_MAX_ENTRIES", most)
    check_least(random_problem(seed, devices=devices))


def test_limits_of_these_problems_matter() -> None:
    problems = [random_problem(seed, devices=2) for seed in range(40)]
    found = [check_least(problem) for problem in problems]
    free = [minimize(dataclasses.replace(each, memory_limits=None)) for each in problems]
    assert any(each is None for each in found)
    pairs = zip(found, free, strict=True)
    assert any(each is not None and each.cost > its.cost for each, its in pairs)


@pytest.mark.parametrize("devices", [0, 2])
@pytest.mark.parametrize("seed", range(20))
def test_of_equal_choices_always_takes_the_same(seed: int, devices: int) -> None:
    first = random_problem(seed, devices=devices, whole_numbers=True)
    again = random_problem(seed, devices=devices, whole_numbers=True)
    if check_least(first) is not None:
        assert minimize(first) == minimize(again)


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
    with pytest.raises(PlanError, match="takes 500 bytes on device 0 with 400"):
        minimize(problem)


def test_says_how_far_an_unproven_choice_may_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((least, "_FEW_ENTRIES"), (least, "_MAX_ENTRIES"), (search, "_MAX_EFFORT")):
        monkeypatch.setattr(module, name, 0)
    random = np.random.default_rng(3)
    edges = {each: random.random((6, 6)) for each in itertools.combinations(range(6), 2)}
    problem = SearchProblem(tuple(random.random((6, 6))), edges)
    result = minimize(problem)
    expected = min(cost for _, cost in every_choice(problem))
    assert not result.is_exact
    assert result.bound <= expected <= result.cost
    assert str(result).startswith("within ")
