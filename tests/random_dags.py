"""Dependency graphs drawn at random, what their stages cost, and what a schedule has to hold."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

from hypothesis import strategies as st

from tf_interop.planning.search.space import Lanes, SearchResult, Space, StageOption

Dag = list[list[int]]


@st.composite
def dags(draw: st.DrawFn, most: int) -> Dag:
    count = draw(st.integers(1, most))
    return [[p for p in range(node) if draw(st.booleans())] for node in range(count)]


def random_follows(dag: Dag, seed: int) -> Dag:
    """Most of what each node depends on."""
    chance = random.Random(seed)
    return [[each for each in needs if chance.random() < 0.8] for needs in dag]


def random_options(seed: int) -> Callable[[Lanes], list[StageOption]]:
    """Ways to run stages; none where there is a single lane of several nodes."""

    def options(lanes: Lanes) -> list[StageOption]:
        nodes = sorted(itertools.chain(*lanes))
        alone = sum(random.Random(f"{seed} {node}").randint(5, 50) for node in nodes)
        if len(nodes) == 1:
            return [StageOption(alone, 20), StageOption(alone + 5, 10)]
        chance = random.Random(f"{seed} {lanes}")
        if len(lanes) == 1 or chance.random() < 0.1:
            return []
        latency = round(alone * chance.uniform(0.5, 1.2))
        return [
            StageOption(latency, 15 * len(nodes)),
            StageOption(latency + 3, 11 * len(nodes)),
        ]

    return options


def random_space(
    dag: Dag,
    seed: int,
    *,
    budget: int | None = None,
    max_lanes: int = 4,
    max_lane_length: int = 1,
) -> Space:
    """A space of a DAG with stages that cost at random; the same seed gives the same."""
    return Space(
        dag,
        random_options(seed),
        follows=random_follows(dag, seed),
        available_bytes=None if budget is None else _alive_bytes_left(dag, budget),
        max_lanes=max_lanes,
        max_lane_length=max_lane_length,
    )


def _alive_bytes_left(dag: Dag, budget: int) -> Callable[[int], int]:
    """Each node leaves a byte alive until all that read it have run."""

    def available(done: int) -> int:
        return budget - sum(
            1
            for node in range(len(dag))
            if done >> node & 1
            and any(node in needs and not done >> other & 1 for other, needs in enumerate(dag))
        )

    return available


def one_after_another_us(dag: Dag, seed: int) -> float:
    options = random_options(seed)
    return sum(options(((node,),))[0].latency_us for node in range(len(dag)))


def check_is_schedule(
    dag: Dag, result: SearchResult, seed: int = 0, budget: int | None = None
) -> None:
    """Checks the order, the lanes, what was chosen, and the sum of a random space's result."""
    options = random_options(seed)
    follows = random_follows(dag, seed)
    available = None if budget is None else _alive_bytes_left(dag, budget)
    done: set[int] = set()
    latency_us = 0.0
    for lanes, number in zip(result.stages, result.options, strict=True):
        for lane in lanes:
            for place, node in enumerate(lane):
                inside = set(dag[node]) - done
                assert inside <= set(lane[:place])
                assert inside <= set(follows[node])
        option = options(lanes)[number]
        mask = sum(1 << node for node in done)
        assert available is None or option.memory_bytes <= available(mask)
        latency_us += option.latency_us
        done |= set(itertools.chain(*lanes))
    assert done == set(range(len(dag)))
    assert abs(result.latency_us - latency_us) < 1e-6
