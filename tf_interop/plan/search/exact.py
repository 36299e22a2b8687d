"""The best stages of a DAG, exactly: dynamic programming over what is left to run.

Ding et al., "IOS: Inter-Operator Scheduler for CNN Acceleration" (MLSys 2021), section 4. A *state*
is a set of nodes that can be what is left to schedule from the front: with a node it holds all that
the node depends on. An *ending* of a state is a set of its nodes that nothing else in it depends
on; taking one as the last stage leaves a smaller state. With

    latency(S) = min over endings E of S of  latency(S without E) + stage_latency(E)

each state is solved once. Connected parts of an ending are its lanes: they run at the same time,
and the nodes of one lane in order.

This module knows neither convolutions nor profiles: nodes are numbers, and what a stage costs is
asked of the caller. There may be several ways to run a stage, faster ones with more memory; then a
state takes the fastest that fits beside what is alive. (What is alive depends on what has run, not
on how, so states stay as they are.)
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Iterator, Sequence

from tf_interop.plan.search.bit_graph import BitGraph, bits_of
from tf_interop.plan.search.interface import (
    AvailableBytes,
    Lanes,
    OnProgress,
    SearchError,
    SearchProgress,
    SearchResult,
    SearchTooWideError,
    StageOption,
    StageOptions,
)

_STATES_PER_REPORT = 256


class LaneRule(enum.Enum):
    """Which connected parts of an ending may be lanes."""

    SINGLE_HEAD = "single head"
    """All nodes of a lane depend on one of them, its head: a lane never joins what others began."""
    ANY = "any"
    """Every connected part."""


def search_stages(
    predecessors: Sequence[Sequence[int]],
    stage_options: StageOptions,
    *,
    available_bytes: AvailableBytes | None = None,
    rule: LaneRule = LaneRule.SINGLE_HEAD,
    max_lanes: int | None = None,
    max_lane_length: int | None = None,
    max_transitions: int | None = None,
    cut_into_blocks: bool = True,
    on_progress: OnProgress | None = None,
) -> SearchResult:
    """Finds the stages with the least latency.

    Where all later nodes depend on all earlier ones the DAG can be cut into blocks, each searched
    on its own. No stage goes over a cut then; stages of one node to a lane never could.

    Args:
        predecessors: for each node the nodes that it depends on.
        stage_options: asked once for each distinct set of lanes.
        available_bytes: of the options of a stage the fastest is taken that needs no more; None
            where memory does not matter.
        rule: which lanes there may be.
        max_lanes: endings with more lanes are not looked at; None for no limit.
        max_lane_length: nor are those with a longer lane.
        max_transitions: gives up where a block has more, those with endings that the rule and the
            limits forbid included, which have to be looked at too; None for no limit.
        cut_into_blocks: whether to cut.
        on_progress: told how far the search is.

    Returns:
        The stages and what was visited. Where several schedules take the same time, the one whose
        last stage is found first: the same input gives the same stages in every process.

    Raises:
        SearchTooWideError: a block has more than `max_transitions`.
        SearchError: the graph has a cycle (named), or no schedule is allowed.
    """
    graph = BitGraph.of(predecessors)
    limits = _Limits(rule, max_lanes, max_lane_length, max_transitions)
    stages: list[tuple[Lanes, int]] = []
    latency_us = 0.0
    states = transitions = done = 0
    for block in graph.blocks() if cut_into_blocks else graph.whole():
        search = _BlockSearch(graph, block, done, stage_options, available_bytes, limits)
        for solved in search.solve():
            if on_progress is not None and solved % _STATES_PER_REPORT == 0:
                on_progress(SearchProgress(done.bit_count(), len(predecessors), states + solved))
        latency_us += search.latency_us()
        stages += search.stages()
        states += search.states
        transitions += search.transitions
        done |= block
        if on_progress is not None:
            on_progress(SearchProgress(done.bit_count(), len(predecessors), states))
    return SearchResult(
        tuple(lanes for lanes, _ in stages),
        tuple(option for _, option in stages),
        latency_us,
        states,
        transitions,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Limits:
    """What endings there may be; the arguments of `search_stages`."""

    rule: LaneRule
    max_lanes: int | None
    max_lane_length: int | None
    max_transitions: int | None


class _BlockSearch:
    """The dynamic program over one block."""

    def __init__(
        self,
        graph: BitGraph,
        block: int,
        done: int,
        stage_options: StageOptions,
        available_bytes: AvailableBytes | None,
        limits: _Limits,
    ) -> None:
        self._graph = graph
        self._block = block
        self._done = done
        self._stage_options = stage_options
        self._available_bytes = available_bytes
        self._limits = limits
        self._lanes: dict[int, Lanes | None] = {}
        self._options: dict[int, Sequence[StageOption]] = {}
        # For each solved state its latency, the ending that gives it and the option of that; None
        # where there is none.
        self._best: dict[int, tuple[float, int, int] | None] = {0: (0.0, 0, 0)}
        self.transitions = 0

    @property
    def states(self) -> int:
        return len(self._best) - 1

    def solve(self) -> Iterator[int]:
        """Solves one state after the other; yields how many have been."""
        for state in self._reachable():
            self._best[state] = self._solve_state(state)
            yield self.states

    def latency_us(self) -> float:
        best = self._best[self._block]
        if best is None:
            raise SearchError(
                f"Expected a schedule for the nodes {self._nodes(self._block)}, got none: every "
                "stage that holds some of them is ruled out."
            )
        return best[0]

    def stages(self) -> list[tuple[Lanes, int]]:
        backwards = []
        state = self._block
        while state:
            best = self._best[state]
            assert best is not None
            lanes = self._lanes_of(best[1])
            assert lanes is not None
            backwards.append((lanes, best[2]))
            state &= ~best[1]
        return backwards[::-1]

    def _reachable(self) -> list[int]:
        """All states that come up, smaller ones first."""
        most = self._limits.max_transitions
        found = {self._block}
        waiting = [self._block]
        seen = 0
        while waiting:
            state = waiting.pop()
            for ending in self._endings(state):
                seen += 1
                if most is not None and seen > most:
                    raise SearchTooWideError(
                        f"Expected a block of at most {most} transitions, got more, with "
                        f"{self._block.bit_count()} nodes. Set limits on lanes, or use the bounded "
                        "search."
                    )
                rest = state & ~ending
                if rest and rest not in found and self._can_be_stage(ending):
                    found.add(rest)
                    waiting.append(rest)
        return sorted(found, key=lambda state: (state.bit_count(), state))

    def _solve_state(self, state: int) -> tuple[float, int, int] | None:
        best: tuple[float, int, int] | None = None
        for ending in self._endings(state):
            if not self._can_be_stage(ending):
                continue
            self.transitions += 1
            before = self._best[state & ~ending]
            if before is None:
                continue
            available = None
            if self._available_bytes is not None:
                done = self._done | state & ~ending
                available = self._available_bytes(self._graph.to_nodes(done))
            for place, option in enumerate(self._options_of(ending)):
                if available is None or option.memory_bytes <= available:
                    latency = before[0] + option.latency_us
                    if best is None or latency < best[0]:
                        best = latency, ending, place
                    break
        return best

    def _endings(self, state: int) -> Iterator[int]:
        """Endings of a state, each once: all that are allowed, and perhaps others."""
        if self._limits.max_lane_length == 1:
            return self._endings_of_single_nodes(state)
        return self._endings_of_any_length(state)

    def _endings_of_any_length(self, state: int) -> Iterator[int]:
        ancestors = self._graph.ancestors
        undecided = [(state, 0)]
        while undecided:
            candidates, ending = undecided.pop()
            if not candidates:
                if ending:
                    yield ending
                continue
            # The last candidate in topological order: all that depends on it has been taken. With
            # it left out, nothing that it depends on can be in the ending either.
            bit = candidates.bit_length() - 1
            without = candidates & ~(1 << bit)
            undecided.append((without & ~ancestors[bit], ending))
            undecided.append((without, ending | 1 << bit))

    def _endings_of_single_nodes(self, state: int) -> Iterator[int]:
        """Sets of nodes that nothing else in the state depends on: each is a lane of its own."""
        needed = 0
        for bit in bits_of(state):
            needed |= self._graph.direct[bit]
        last = [1 << bit for bit in bits_of(state & ~needed)]
        most = len(last) if self._limits.max_lanes is None else self._limits.max_lanes
        for size in range(1, min(most, len(last)) + 1):
            for nodes in itertools.combinations(last, size):
                yield sum(nodes)

    def _can_be_stage(self, ending: int) -> bool:
        return self._limits.max_lane_length == 1 or self._lanes_of(ending) is not None

    def _lanes_of(self, ending: int) -> Lanes | None:
        if ending not in self._lanes:
            self._lanes[ending] = self._make_lanes(ending)
        return self._lanes[ending]

    def _make_lanes(self, ending: int) -> Lanes | None:
        """The connected parts of an ending, or None where the rule or a limit forbids one."""
        lanes = []
        rest = ending
        while rest:
            part = front = rest & -rest
            while front:
                bit = front.bit_length() - 1
                front &= ~(1 << bit)
                reached = self._graph.neighbours[bit] & ending & ~part
                part |= reached
                front |= reached
            if not self._is_allowed(part):
                return None
            lanes.append(self._nodes(part))
            if self._limits.max_lanes is not None and len(lanes) > self._limits.max_lanes:
                return None
            rest &= ~part
        return tuple(lanes)

    def _is_allowed(self, part: int) -> bool:
        longest = self._limits.max_lane_length
        if longest is not None and part.bit_count() > longest:
            return False
        if self._limits.rule is LaneRule.ANY:
            return True
        heads = sum(1 for bit in bits_of(part) if not self._graph.direct[bit] & part)
        return heads == 1

    def _options_of(self, ending: int) -> Sequence[StageOption]:
        options = self._options.get(ending)
        if options is None:
            lanes = self._lanes_of(ending)
            assert lanes is not None
            options = self._options[ending] = self._stage_options(lanes)
        return options

    def _nodes(self, mask: int) -> tuple[int, ...]:
        return tuple(self._graph.node_of_bit[bit] for bit in bits_of(mask))
