"""The exact search, against published counts and against every schedule of small graphs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_interop.plan.search.exact import LaneRule, search_stages
from tf_interop.plan.search.interface import (
    Lanes,
    SearchError,
    SearchProgress,
    SearchResult,
    SearchTooWideError,
    StageOption,
    StageOptions,
)

Dag = list[list[int]]


class DagBuilder:
    def __init__(self) -> None:
        self.predecessors: Dag = []

    def add(self, *predecessors: int) -> int:
        self.predecessors.append(list(predecessors))
        return len(self.predecessors) - 1

    def add_chain(self, length: int, *predecessors: int) -> int:
        node = self.add(*predecessors)
        for _ in range(length - 1):
            node = self.add(node)
        return node


def fire_block_with_bypass() -> Dag:
    dag = DagBuilder()
    squeeze = dag.add()
    expanded = dag.add(dag.add(squeeze), dag.add(squeeze))
    dag.add(expanded, dag.add())
    return dag.predecessors


def inception_e() -> Dag:
    dag = DagBuilder()
    branch1 = dag.add()
    branch2 = dag.add()
    branch2_ends = dag.add(branch2), dag.add(branch2)
    branch3 = dag.add_chain(2)
    branch3_ends = dag.add(branch3), dag.add(branch3)
    branch4 = dag.add_chain(2)
    dag.add(branch1, *branch2_ends, *branch3_ends, branch4)
    return dag.predecessors


def nasnet_a_first_cell() -> Dag:
    """The first cell of a stack: a reduced previous input, five separable pairs, three poolings."""
    dag = DagBuilder()
    previous = dag.add(dag.add(), dag.add())
    current = dag.add()
    ends = [dag.add_chain(2, source) for source in (current, current, previous, previous, current)]
    ends += [dag.add(current), dag.add(previous), dag.add(previous)]
    dag.add(*ends)
    return dag.predecessors


def taking(latency: Callable[[Lanes], float | None]) -> StageOptions:
    """One way to run each stage, with this latency."""

    def options(lanes: Lanes) -> list[StageOption]:
        latency_us = latency(lanes)
        return [] if latency_us is None else [StageOption(latency_us)]

    return options


def number_of_nodes(lanes: Lanes) -> list[StageOption]:
    return [StageOption(float(sum(map(len, lanes))))]


@pytest.mark.parametrize(
    ("dag", "states", "transitions"),
    [
        (fire_block_with_bypass(), 12, 51),
        (inception_e(), 180, 4_871),
        (nasnet_a_first_cell(), 2_200, 307_841),
    ],
    ids=["SqueezeNet fire", "Inception-E", "NASNet-A"],
)
def test_visits_what_the_authors_of_ios_report(dag: Dag, states: int, transitions: int) -> None:
    result = search_stages(dag, number_of_nodes, rule=LaneRule.SINGLE_HEAD, cut_into_blocks=False)
    assert (result.states, result.transitions) == (states, transitions)


def every_schedule(dag: Dag, rule: LaneRule) -> list[list[Lanes]]:
    """All sequences of stages, by trying every subset of what is ready, apart from the search."""
    everything = frozenset(range(len(dag)))

    def lanes_of(stage: frozenset[int]) -> Lanes | None:
        parts: list[set[int]] = []
        for node in sorted(stage):
            joined = {node}
            for part in [p for p in parts if any(a in dag[node] or node in dag[a] for a in p)]:
                parts.remove(part)
                joined |= part
            parts.append(joined)
        if rule is LaneRule.SINGLE_HEAD:
            for part in parts:
                if sum(1 for node in part if not part & set(dag[node])) != 1:
                    return None
        return tuple(sorted(tuple(sorted(part)) for part in parts))

    def extend(done: frozenset[int]) -> list[list[Lanes]]:
        if done == everything:
            return [[]]
        schedules = []
        rest = sorted(everything - done)
        for size in range(1, len(rest) + 1):
            for chosen in itertools.combinations(rest, size):
                after = done | set(chosen)
                if any(not set(dag[node]) <= after for node in chosen):
                    continue
                lanes = lanes_of(frozenset(chosen))
                if lanes is not None:
                    schedules += [[lanes, *others] for others in extend(after)]
        return schedules

    return extend(frozenset())


@st.composite
def small_dags(draw: st.DrawFn) -> Dag:
    count = draw(st.integers(1, 5))
    return [[p for p in range(node) if draw(st.booleans())] for node in range(count)]


@settings(max_examples=300, deadline=None)
@given(small_dags(), st.sampled_from(LaneRule), st.booleans(), st.integers(0, 2**32))
def test_is_optimal_on_every_small_graph(
    dag: Dag, rule: LaneRule, cut_into_blocks: bool, seed: int
) -> None:
    def latency(lanes: Lanes) -> float:
        names = sorted(tuple(sorted(lane)) for lane in lanes)
        return random.Random(f"{seed} {names}").randint(1, 20)

    cut_after = blocks_of(dag) if cut_into_blocks else []
    allowed = [
        schedule
        for schedule in every_schedule(dag, rule)
        if all(crosses_no_cut(stage, cut_after) for stage in schedule)
    ]
    expected = min(sum(map(latency, schedule)) for schedule in allowed)
    result = search_stages(dag, taking(latency), rule=rule, cut_into_blocks=cut_into_blocks)
    assert result.latency_us == expected
    assert sum(map(latency, result.stages)) == expected
    check_is_schedule(dag, result)


def blocks_of(dag: Dag) -> list[frozenset[int]]:
    """Sets of nodes that everything else depends on as a whole."""
    ancestors: list[set[int]] = []
    for predecessors in dag:
        ancestors.append(set(predecessors).union(*(ancestors[p] for p in predecessors)))
    nodes = range(len(dag))
    return [
        frozenset(first)
        for size in nodes
        for first in itertools.combinations(nodes, size)
        if all(set(first) <= ancestors[node] for node in nodes if node not in first)
    ]


def crosses_no_cut(stage: Lanes, cuts: list[frozenset[int]]) -> bool:
    nodes = {node for lane in stage for node in lane}
    return all(nodes <= cut or not nodes & cut for cut in cuts)


def check_is_schedule(dag: Dag, result: SearchResult) -> None:
    done: set[int] = set()
    for lanes in result.stages:
        for lane in lanes:
            before = set(done)
            for node in lane:
                assert set(dag[node]) <= before
                before.add(node)
        done |= {node for lane in lanes for node in lane}
    assert done == set(range(len(dag)))


def test_runs_independent_nodes_together_where_that_is_faster() -> None:
    result = search_stages([[], []], taking(lambda lanes: max(len(lane) for lane in lanes)))
    assert result.stages == (((0,), (1,)),)
    assert result.latency_us == 1


def test_runs_them_one_after_another_where_it_is_not() -> None:
    result = search_stages([[], []], taking(lambda lanes: float(len(lanes) ** 2)))
    assert result.stages == (((0,),), ((1,),))


def test_makes_no_stage_that_is_ruled_out() -> None:
    result = search_stages([[], [], []], taking(lambda lanes: None if len(lanes) == 3 else 1.0))
    assert len(result.stages) == 2


@pytest.mark.parametrize("limit", ["max_lanes", "max_lane_length"])
def test_keeps_limits(limit: str) -> None:
    dag = [[], [0], [], [2]]
    result = search_stages(dag, taking(lambda lanes: 1.0), **{limit: 1})
    longest = max(len(lane) for stage in result.stages for lane in stage)
    widest = max(len(stage) for stage in result.stages)
    assert (widest, longest) == ((1, 2) if limit == "max_lanes" else (2, 1))


def test_says_which_nodes_are_a_cycle() -> None:
    with pytest.raises(SearchError, match=r"cycle, got .*1 -> .*2|2 -> .*1"):
        search_stages([[], [2], [1]], number_of_nodes)


def test_says_which_nodes_have_no_schedule() -> None:
    with pytest.raises(SearchError, match=r"nodes \(0, 1\), got none"):
        search_stages([[], []], taking(lambda lanes: None))


def test_gives_up_over_the_limit_of_transitions() -> None:
    with pytest.raises(SearchTooWideError, match="at most 100 transitions, got more, with 10"):
        search_stages([[] for _ in range(10)], number_of_nodes, max_transitions=100)


@pytest.mark.parametrize("max_lane_length", [1, 2])
def test_gives_up_soon_where_hardly_any_ending_is_allowed(max_lane_length: int) -> None:
    # A trillion endings, of which those of more than one lane are ruled out.
    with pytest.raises(SearchTooWideError):
        search_stages(
            [[] for _ in range(40)],
            number_of_nodes,
            max_lanes=1 if max_lane_length == 2 else 2,
            max_lane_length=max_lane_length,
            max_transitions=1000,
        )


@settings(max_examples=100, deadline=None)
@given(small_dags(), st.integers(1, 3), st.integers(0, 2**32))
def test_stages_of_single_nodes_are_optimal_too(dag: Dag, max_lanes: int, seed: int) -> None:
    def latency(lanes: Lanes) -> float:
        names = sorted(tuple(sorted(lane)) for lane in lanes)
        return random.Random(f"{seed} {names}").randint(1, 20)

    expected = min(
        sum(map(latency, schedule))
        for schedule in every_schedule(dag, LaneRule.ANY)
        if all(len(stage) <= max_lanes and max(map(len, stage)) == 1 for stage in schedule)
    )
    result = search_stages(dag, taking(latency), max_lanes=max_lanes, max_lane_length=1)
    assert result.latency_us == expected
    check_is_schedule(dag, result)


def test_tells_how_far_it_is() -> None:
    told: list[SearchProgress] = []
    search_stages([[], [0], [0], [1, 2]], number_of_nodes, on_progress=told.append)
    assert told == [SearchProgress(1, 4, 1), SearchProgress(3, 4, 4), SearchProgress(4, 4, 5)]


def test_takes_the_fastest_option_that_fits_beside_what_is_alive() -> None:
    # Node 0 leaves 60 of 100 bytes alive until node 1 has run.
    options = {
        ((0,),): [StageOption(5, 60)],
        ((1,),): [StageOption(1, 50), StageOption(3, 40)],
    }

    def available(done: int) -> int:
        return 40 if done == 0b1 else 100

    result = search_stages([[], [0]], options.__getitem__, available_bytes=available)
    assert result.options == (0, 1)
    assert result.latency_us == 8


def test_what_has_run_is_told_by_the_callers_numbers() -> None:
    told = set()

    def available(done: int) -> int:
        told.add(done)
        return 1

    # Node 1 runs before node 0.
    search_stages([[1], []], number_of_nodes, available_bytes=available)
    assert told == {0, 0b10}
