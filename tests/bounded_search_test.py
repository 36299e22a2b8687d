"""The bounded search: legal, never slower than sequential, exact where nothing is cut off."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_interop.decide.bounded_search import Nodes, SetLatency, search_stages_bounded
from tf_interop.decide.stage_search import SearchError, SearchResult, search_stages

Dag = list[list[int]]


@st.composite
def dags(draw: st.DrawFn, most: int) -> Dag:
    count = draw(st.integers(1, most))
    return [[p for p in range(node) if draw(st.booleans())] for node in range(count)]


def random_costs(dag: Dag, seed: int) -> tuple[list[float], SetLatency]:
    alone = [float(random.Random(f"{seed} {node}").randint(5, 50)) for node in range(len(dag))]

    def latency(nodes: Nodes) -> float | None:
        chance = random.Random(f"{seed} {nodes}")
        if chance.random() < 0.1:
            return None
        return round(sum(alone[node] for node in nodes) * chance.uniform(0.5, 1.2))

    return alone, latency


def check_is_schedule(dag: Dag, result: SearchResult) -> None:
    done: set[int] = set()
    for lanes in result.stages:
        for (node,) in lanes:
            assert set(dag[node]) <= done
        done |= {node for (node,) in lanes}
    assert done == set(range(len(dag)))


@settings(max_examples=200, deadline=None)
@given(dags(most=12), st.integers(0, 2**32), st.integers(1, 4))
def test_is_a_schedule_and_never_slower_than_sequential(dag: Dag, seed: int, width: int) -> None:
    alone, latency = random_costs(dag, seed)
    result = search_stages_bounded(dag, alone, latency, width=width)
    check_is_schedule(dag, result)
    assert result.latency_us <= sum(alone)
    stages = [tuple(node for (node,) in lanes) for lanes in result.stages]
    costs = [alone[nodes[0]] if len(nodes) == 1 else latency(nodes) for nodes in stages]
    assert result.latency_us == pytest.approx(sum(cost for cost in costs if cost is not None))


@settings(max_examples=200, deadline=None)
@given(dags(most=6), st.integers(0, 2**32))
def test_finds_what_the_exact_search_finds_where_nothing_is_cut_off(dag: Dag, seed: int) -> None:
    alone, latency = random_costs(dag, seed)
    bounded = search_stages_bounded(dag, alone, latency, width=10_000, max_lanes=6)

    def latency_of_lanes(lanes: tuple[tuple[int, ...], ...]) -> float | None:
        nodes = tuple(sorted(node for lane in lanes for node in lane))
        return alone[nodes[0]] if len(nodes) == 1 else latency(nodes)

    exact = search_stages(dag, latency_of_lanes, max_lane_length=1)
    assert bounded.latency_us == pytest.approx(exact.latency_us)


def test_keeps_a_node_back_that_fills_a_later_stage() -> None:
    # 0 -> 2, and 1 free: 1 fits beside 2, not beside 0.
    saved = {(1, 2): 10.0}
    result = search_stages_bounded([[], [], [0]], [10, 10, 10], saved.get, width=1)
    assert result.stages == (((0,),), ((1,), (2,)))
    assert result.latency_us == 20


def test_makes_no_wider_stage_than_allowed() -> None:
    result = search_stages_bounded([[]] * 5, [10] * 5, lambda nodes: 11.0, max_lanes=2)
    assert [len(stage) for stage in result.stages].count(2) == 2
    assert max(map(len, result.stages)) == 2


def test_asks_for_each_set_once_and_in_order() -> None:
    asked = []

    def latency(nodes: Nodes) -> float:
        asked.append(nodes)
        return 5.0

    search_stages_bounded([[]] * 4, [10] * 4, latency)
    assert len(asked) == len(set(asked))
    assert all(list(nodes) == sorted(nodes) for nodes in asked)


def test_same_input_same_stages_in_another_process() -> None:
    program = (
        "import random\n"
        "from tf_interop.decide.bounded_search import search_stages_bounded\n"
        "chance = random.Random(7)\n"
        "dag = [[p for p in range(n) if chance.random() < 0.2] for n in range(30)]\n"
        "result = search_stages_bounded(dag, [10] * 30, lambda nodes: 6.0 * len(nodes))\n"
        "print(result)\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_says_what_is_wrong_with_bad_input() -> None:
    with pytest.raises(SearchError, match="without a cycle"):
        search_stages_bounded([[1], [0]], [1, 1], lambda nodes: None)
    with pytest.raises(ValueError, match="each of 2 nodes, got 1"):
        search_stages_bounded([[], []], [1], lambda nodes: None)
    with pytest.raises(ValueError, match="1 or more, got 0, 4 and 8"):
        search_stages_bounded([[]], [1], lambda nodes: None, width=0)
