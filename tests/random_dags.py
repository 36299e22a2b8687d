"""Dependency graphs drawn at random, what their nodes cost, and what a schedule has to hold."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import strategies as st

from tf_interop.plan.search.beam import Nodes, SetOptions
from tf_interop.plan.search.interface import SearchResult, StageOption

Dag = list[list[int]]


@st.composite
def dags(draw: st.DrawFn, most: int) -> Dag:
    count = draw(st.integers(1, most))
    return [[p for p in range(node) if draw(st.booleans())] for node in range(count)]


def random_options(dag: Dag, seed: int) -> SetOptions:
    def options(nodes: Nodes) -> list[StageOption]:
        chance = random.Random(f"{seed} {nodes}")
        if len(nodes) > 1 and chance.random() < 0.1:
            return []
        alone = sum(random.Random(f"{seed} {node}").randint(5, 50) for node in nodes)
        if len(nodes) == 1:
            return [StageOption(alone, 20), StageOption(alone + 5, 10)]
        latency = round(alone * chance.uniform(0.5, 1.2))
        return [StageOption(latency, 15 * len(nodes)), StageOption(latency + 3, 11 * len(nodes))]

    return options


def alive_bytes_left(dag: Dag, budget: int) -> Callable[[int], int]:
    """Each node leaves a byte alive until all that read it have run."""

    def available(done: int) -> int:
        return budget - sum(
            1
            for node in range(len(dag))
            if done >> node & 1
            and any(node in needs and not done >> other & 1 for other, needs in enumerate(dag))
        )

    return available


def check_is_schedule(dag: Dag, result: SearchResult) -> None:
    done: set[int] = set()
    for lanes in result.stages:
        for (node,) in lanes:
            assert set(dag[node]) <= done
        done |= {node for (node,) in lanes}
    assert done == set(range(len(dag)))
