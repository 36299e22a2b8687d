"""The bounded search: legal, never slower than sequential, exact where nothing is cut off."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_dags import Dag, alive_bytes_left, check_is_schedule, dags, random_options

from tf_interop.plan.search.beam import Nodes, SetOptions, search_stages_bounded
from tf_interop.plan.search.exact import search_stages
from tf_interop.plan.search.interface import SearchError, StageOption


@settings(max_examples=200, deadline=None)
@given(dags(most=12), st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([None, 25, 50]))
def test_is_a_schedule_and_never_slower_than_sequential(
    dag: Dag, seed: int, width: int, budget: int | None
) -> None:
    options = random_options(dag, seed)
    available = None if budget is None else alive_bytes_left(dag, budget)
    result = search_stages_bounded(dag, options, width=width, available_bytes=available)
    check_is_schedule(dag, result)

    def cost(stages: list[Nodes], chosen: list[int] | None) -> float:
        total, done = 0.0, 0
        for place, nodes in enumerate(stages):
            fitting = [
                option
                for option in options(nodes)
                if available is None or option.memory_bytes <= available(done)
            ]
            total += fitting[0].latency_us
            if chosen is not None:
                assert options(nodes)[chosen[place]] in fitting
            done |= sum(1 << node for node in nodes)
        return total

    stages = [tuple(node for (node,) in lanes) for lanes in result.stages]
    assert result.latency_us == cost(stages, list(result.options))
    assert result.latency_us <= cost([(node,) for node in range(len(dag))], None)


@settings(max_examples=200, deadline=None)
@given(dags(most=6), st.integers(0, 2**32), st.sampled_from([None, 25, 40, 80]))
def test_finds_what_the_exact_search_finds_where_nothing_is_cut_off(
    dag: Dag, seed: int, budget: int | None
) -> None:
    options = random_options(dag, seed)
    available = None if budget is None else alive_bytes_left(dag, budget)
    bounded = search_stages_bounded(
        dag, options, width=10_000, max_lanes=6, available_bytes=available
    )
    exact = search_stages(
        dag,
        lambda lanes: options(tuple(sorted(node for lane in lanes for node in lane))),
        max_lane_length=1,
        available_bytes=available,
    )
    assert bounded.latency_us == exact.latency_us


def fixed(latencies: dict[Nodes, float], alone_us: float = 10.0) -> SetOptions:
    def options(nodes: Nodes) -> list[StageOption]:
        if len(nodes) == 1:
            return [StageOption(alone_us)]
        return [StageOption(latencies[nodes])] if nodes in latencies else []

    return options


def test_keeps_a_node_back_that_fills_a_later_stage() -> None:
    # 0 -> 2, and 1 free: 1 fits beside 2, not beside 0.
    result = search_stages_bounded([[], [], [0]], fixed({(1, 2): 10.0}), width=1)
    assert result.stages == (((0,),), ((1,), (2,)))
    assert result.latency_us == 20


def test_makes_no_wider_stage_than_allowed() -> None:
    result = search_stages_bounded(
        [[]] * 5, lambda nodes: [StageOption(10.0 + len(nodes))], max_lanes=2
    )
    assert [len(stage) for stage in result.stages].count(2) == 2
    assert max(map(len, result.stages)) == 2


def test_asks_for_each_set_once_and_in_order() -> None:
    asked = []

    def options(nodes: Nodes) -> list[StageOption]:
        asked.append(nodes)
        return [StageOption(5.0)]

    search_stages_bounded([[]] * 4, options)
    assert len(asked) == len(set(asked))
    assert all(list(nodes) == sorted(nodes) for nodes in asked)


def test_same_input_same_stages_in_another_process() -> None:
    program = (
        "import random\n"
        "from tf_interop.plan.search.beam import search_stages_bounded\n"
        "from tf_interop.plan.search.interface import StageOption\n"
        "chance = random.Random(7)\n"
        "dag = [[p for p in range(n) if chance.random() < 0.2] for n in range(30)]\n"
        "def options(nodes):\n"
        "    return [StageOption(10.0 if len(nodes) == 1 else 6.0 * len(nodes))]\n"
        "result = search_stages_bounded(dag, options)\n"
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
        search_stages_bounded([[1], [0]], fixed({}))
    with pytest.raises(ValueError, match="run node 1 alone, got none"):
        search_stages_bounded([[], []], lambda nodes: [StageOption(1.0)] if 0 in nodes else [])
    with pytest.raises(ValueError, match="1 or more, got 0 and 4"):
        search_stages_bounded([[]], fixed({}), width=0)


def test_says_that_memory_is_short() -> None:
    with pytest.raises(SearchError, match="Give more memory"):
        search_stages_bounded([[]], fixed({}), available_bytes=lambda done: -1)
