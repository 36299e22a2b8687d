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
import graphlib
import itertools
from collections.abc import Callable, Iterator, Sequence

Lanes = tuple[tuple[int, ...], ...]
"""The lanes of a stage, each with its nodes in order; lanes in the order of their first nodes."""


@dataclasses.dataclass(frozen=True, slots=True)
class StageOption:
    """One way to run a stage.

    Attributes:
        latency_us: what it takes.
        memory_bytes: what it needs beside what is alive before it: its outputs and workspaces.
        spread_us: how far `latency_us` may be off. The searches take it as it is; `join_stages`
            makes no change for less.
    """

    latency_us: float
    memory_bytes: int = 0
    spread_us: float = 0.0


StageOptions = Callable[[Lanes], Sequence[StageOption]]
"""The ways to run a stage, fastest first; none where it must not be made."""

AvailableBytes = Callable[[int], int]
"""Memory that is left for a stage, by the nodes that have run before it (bit i: node i)."""


class LaneRule(enum.Enum):
    """Which connected parts of an ending may be lanes."""

    SINGLE_HEAD = "single head"
    """All nodes of a lane depend on one of them, its head: a lane never joins what others began."""
    ANY = "any"
    """Every connected part."""


@dataclasses.dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found, and how far it looked.

    Attributes:
        stages: the stages in the order in which they run; together they hold every node once.
        options: for each stage the place of the option that was taken.
        latency_us: the sum of their latencies, the least that there is within the rule and limits.
        states: states that were solved, those of all blocks together, without the empty one.
        transitions: pairs of a state and an ending of it that were looked at.
    """

    stages: tuple[Lanes, ...]
    options: tuple[int, ...]
    latency_us: float
    states: int
    transitions: int


@dataclasses.dataclass(frozen=True, slots=True)
class SearchProgress:
    """How far a search is.

    Attributes:
        nodes_done: nodes that stages have been found for.
        nodes: all nodes.
        states: states that were solved up to now.
        joined: changes that joining has made to the stages that were found; None before that.
    """

    nodes_done: int
    nodes: int
    states: int
    joined: int | None = None


OnProgress = Callable[[SearchProgress], None]
"""Told now and then how far the search is; what it raises ends the search."""


_STATES_PER_REPORT = 256


class SearchError(ValueError):
    """No stages could be found, or what was given is no DAG."""


class SearchTooWideError(SearchError):
    """There is more to search than was allowed."""


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
    graph = _Graph.of(predecessors)
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


def find_blocks(predecessors: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Cuts a DAG wherever all later nodes depend on all earlier ones.

    Args:
        predecessors: for each node the nodes that it depends on.

    Returns:
        The nodes of each block, ascending; every node depends on all nodes of the blocks before.

    Raises:
        SearchError: the graph has a cycle (named).
    """
    graph = _Graph.of(predecessors)
    return [tuple(_bits(graph.to_nodes(block))) for block in graph.blocks()]


@dataclasses.dataclass(frozen=True, slots=True)
class _Graph:
    """A DAG in bit masks. Bit i is the i-th node of a topological order.

    Attributes:
        node_of_bit: the caller's number of each node.
        direct: for each node, those that it depends on directly.
        neighbours: those that it depends on, and those that depend on it, directly.
        ancestors: all that it depends on.
        is_in_order: whether the caller's numbers are a topological order; bits are the same then.
    """

    node_of_bit: tuple[int, ...]
    direct: tuple[int, ...]
    neighbours: tuple[int, ...]
    ancestors: tuple[int, ...]
    is_in_order: bool

    @classmethod
    def of(cls, predecessors: Sequence[Sequence[int]]) -> _Graph:
        order = topological_order(predecessors)
        bit_of_node = {node: bit for bit, node in enumerate(order)}
        direct: list[int] = []
        ancestors: list[int] = []
        neighbours = [0] * len(order)
        for bit, node in enumerate(order):
            direct.append(0)
            ancestors.append(0)
            for predecessor in predecessors[node]:
                other = bit_of_node[predecessor]
                direct[bit] |= 1 << other
                ancestors[bit] |= ancestors[other] | 1 << other
                neighbours[bit] |= 1 << other
                neighbours[other] |= 1 << bit
        return cls(
            tuple(order),
            tuple(direct),
            tuple(neighbours),
            tuple(ancestors),
            order == list(range(len(order))),
        )

    def to_nodes(self, bits: int) -> int:
        """The same set with the caller's numbers."""
        if self.is_in_order:
            return bits
        return sum(1 << self.node_of_bit[bit] for bit in _bits(bits))

    def whole(self) -> tuple[int, ...]:
        """All nodes as one block."""
        return ((1 << len(self.direct)) - 1,) if self.direct else ()

    def blocks(self) -> Iterator[int]:
        """Sets of nodes such that every node depends on all nodes of the blocks before its own."""
        # A cut comes after the nodes with the fewest ancestors, so the order by their number has
        # every cut between two neighbours.
        bits = sorted(
            range(len(self.direct)), key=lambda bit: (self.ancestors[bit].bit_count(), bit)
        )
        # common[i]: what all nodes from the i-th on depend on.
        common = [(1 << len(bits)) - 1] * (len(bits) + 1)
        for place in reversed(range(len(bits))):
            common[place] = common[place + 1] & self.ancestors[bits[place]]
        done = block = 0
        for place, bit in enumerate(bits):
            block |= 1 << bit
            if not (done | block) & ~common[place + 1]:
                yield block
                done |= block
                block = 0


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
        graph: _Graph,
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
        for bit in _bits(state):
            needed |= self._graph.direct[bit]
        last = [1 << bit for bit in _bits(state & ~needed)]
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
        heads = sum(1 for bit in _bits(part) if not self._graph.direct[bit] & part)
        return heads == 1

    def _options_of(self, ending: int) -> Sequence[StageOption]:
        options = self._options.get(ending)
        if options is None:
            lanes = self._lanes_of(ending)
            assert lanes is not None
            options = self._options[ending] = self._stage_options(lanes)
        return options

    def _nodes(self, mask: int) -> tuple[int, ...]:
        return tuple(self._graph.node_of_bit[bit] for bit in _bits(mask))


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask &= ~low


def topological_order(predecessors: Sequence[Sequence[int]]) -> list[int]:
    """Nodes so that each comes behind what it depends on: by number wherever that is possible.

    Raises:
        SearchError: there is a cycle (named), or a predecessor that is no node.
    """
    for node, each in enumerate(predecessors):
        for predecessor in each:
            if not 0 <= predecessor < len(predecessors):
                raise SearchError(
                    f"Expected predecessors from 0 to {len(predecessors) - 1}, got {predecessor} "
                    f"at node {node}."
                )
    if all(predecessor < node for node, each in enumerate(predecessors) for predecessor in each):
        return list(range(len(predecessors)))
    sorter = graphlib.TopologicalSorter(dict(enumerate(predecessors)))
    try:
        return list(sorter.static_order())
    except graphlib.CycleError as error:
        cycle = " -> ".join(str(node) for node in error.args[1])
        raise SearchError(f"Expected a graph without a cycle, got {cycle}.") from error
