"""Good stages of a DAG that is too wide for the exact search: a beam search from the front.

A step runs one stage: one node that is ready, or several that are, each on a lane of its own. Of
the states with equally many nodes done only the most promising are followed further, and how many
those are is the width of the beam. States are compared by what they have saved against running
every node alone; among equals the one with more nodes ready goes first, because a node that is kept
back may fill a later stage. In training graphs that is what weight gradients are: nothing waits for
them.

What is found is compared with all nodes one after another, and the faster is given back.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

from tf_interop.plan.search.bit_graph import topological_order
from tf_interop.plan.search.interface import (
    AvailableBytes,
    OnProgress,
    SearchError,
    SearchProgress,
    SearchResult,
    StageOption,
)

# Stages are made of so many of the nodes that are ready, those with the longest way to the end.
_MAX_READY = 8

Nodes = tuple[int, ...]

SetOptions = Callable[[Nodes], Sequence[StageOption]]
"""The ways to run a stage of these nodes, each on a lane of its own, fastest first; none where it
must not be made. Nodes come in ascending order."""


def search_stages_bounded(
    predecessors: Sequence[Sequence[int]],
    stage_options: SetOptions,
    *,
    available_bytes: AvailableBytes | None = None,
    width: int = 32,
    max_lanes: int = 4,
    on_progress: OnProgress | None = None,
) -> SearchResult:
    """Finds stages that take no longer than all nodes one after another.

    Args:
        predecessors: for each node the nodes that it depends on.
        stage_options: asked once for each distinct set of nodes. A single node has at least one
            option. Of larger sets the options are passed over that save nothing against their
            nodes alone.
        available_bytes: of the options of a stage the fastest is taken that needs no more; None
            where memory does not matter.
        width: states followed further, of those with equally many nodes done.
        max_lanes: the most nodes of a stage.
        on_progress: told how far the search is.

    Returns:
        The stages; `states` and `transitions` say how far the search looked.

    Raises:
        SearchError: the graph has a cycle, or a node finds no memory in any order that was tried.
        ValueError: a node has no option, or a bound is less than 1.
    """
    if min(width, max_lanes) < 1:
        raise ValueError(f"Expected width and max_lanes of 1 or more, got {width} and {max_lanes}.")
    beam = _Beam(predecessors, stage_options, available_bytes, width, max_lanes)
    return beam.search(on_progress)


@dataclasses.dataclass(slots=True)
class _State:
    """Nodes that have run, and how.

    Attributes:
        done: a bit for each node that has run.
        ready: a bit for each node that can run next.
        saved_us: against running every node alone.
        stage: the nodes of the last stage.
        option: the option of the last stage that was taken.
        before: the state before that; None for the start.
    """

    done: int
    ready: int
    saved_us: float
    stage: Nodes
    option: int
    before: _State | None

    def rank(self) -> tuple[float, int, int]:
        # `done` only makes the order the same in every process.
        return -self.saved_us, -self.ready.bit_count(), self.done


class _Beam:
    def __init__(
        self,
        predecessors: Sequence[Sequence[int]],
        stage_options: SetOptions,
        available_bytes: AvailableBytes | None,
        width: int,
        max_lanes: int,
    ) -> None:
        count = len(predecessors)
        self._stage_options = stage_options
        self._available_bytes = available_bytes
        self._width = width
        self._max_lanes = max_lanes
        self._order = topological_order(predecessors)
        self._options: dict[Nodes, Sequence[StageOption]] = {}
        self._alone_us = [self._alone(node) for node in range(count)]
        self._needs = [sum(1 << each for each in set(needs)) for needs in predecessors]
        self._successors: list[list[int]] = [[] for _ in range(count)]
        for node in self._order:
            for predecessor in set(predecessors[node]):
                self._successors[predecessor].append(node)
        # The time from the start of a node to the end of the graph, on the longest way.
        self._urgency = [0.0] * count
        for node in reversed(self._order):
            rest = max((self._urgency[each] for each in self._successors[node]), default=0.0)
            self._urgency[node] = self._alone_us[node] + rest
        self._transitions = 0

    def search(self, on_progress: OnProgress | None) -> SearchResult:
        count = len(self._needs)
        start = sum(1 << node for node in range(count) if not self._needs[node])
        layers: list[dict[int, _State]] = [{} for _ in range(count + 1)]
        layers[0][0] = _State(0, start, 0.0, (), 0, None)
        states = 0
        for size in range(count):
            followed = sorted(layers[size].values(), key=_State.rank)[: self._width]
            layers[size].clear()
            states += len(followed)
            for state in followed:
                for following in self._follow(state):
                    layer = layers[size + len(following.stage)]
                    known = layer.get(following.done)
                    if known is None or following.saved_us > known.saved_us:
                        layer[following.done] = following
            if on_progress is not None:
                on_progress(SearchProgress(size + 1, count, states))
        ends = [*layers[count].values(), *self._one_after_another(start)]
        if not ends:
            raise SearchError(
                "Expected memory for every node in some order, got none within the bounds of the "
                "search. Give more memory, or candidates that need less."
            )
        way = _way_to(max(ends, key=lambda end: end.saved_us))
        return SearchResult(
            tuple(tuple((node,) for node in state.stage) for state in way),
            tuple(state.option for state in way),
            sum(self._options_of(state.stage)[state.option].latency_us for state in way),
            states,
            self._transitions,
        )

    def _one_after_another(self, start: int) -> list[_State]:
        """The end of all nodes in their own order; none where one of them finds no memory."""
        state = _State(0, start, 0.0, (), 0, None)
        for node in self._order:
            option = self._choose((node,), self._available(state))
            if option is None:
                return []
            state = self._after(state, (node,), option)
        return [state]

    def _follow(self, state: _State) -> Iterator[_State]:
        ready = _nodes_of(state.ready)
        available = self._available(state)
        for node in ready:
            option = self._choose((node,), available)
            if option is not None:
                yield self._after(state, (node,), option)
        urgent = sorted(ready, key=lambda node: (-self._urgency[node], node))[:_MAX_READY]
        urgent.sort()
        for size in range(2, min(self._max_lanes, len(urgent)) + 1):
            for nodes in itertools.combinations(urgent, size):
                option = self._choose(nodes, available)
                if option is not None:
                    yield self._after(state, nodes, option)

    def _after(self, state: _State, nodes: Nodes, option: int) -> _State:
        self._transitions += 1
        done, ready = state.done, state.ready
        for node in nodes:
            done |= 1 << node
            ready &= ~(1 << node)
        for node in nodes:
            for successor in self._successors[node]:
                if not self._needs[successor] & ~done:
                    ready |= 1 << successor
        saving = self._alone_together(nodes) - self._options[nodes][option].latency_us
        return _State(done, ready, state.saved_us + saving, nodes, option, state)

    def _available(self, state: _State) -> int | None:
        return None if self._available_bytes is None else self._available_bytes(state.done)

    def _choose(self, nodes: Nodes, available: int | None) -> int | None:
        for place, option in enumerate(self._options_of(nodes)):
            if available is None or option.memory_bytes <= available:
                return place
        return None

    def _options_of(self, nodes: Nodes) -> Sequence[StageOption]:
        options = self._options.get(nodes)
        if options is None:
            options = self._stage_options(nodes)
            if len(nodes) > 1:
                alone_us = self._alone_together(nodes)
                options = [option for option in options if option.latency_us < alone_us]
            self._options[nodes] = options
        return options

    def _alone(self, node: int) -> float:
        options = self._options_of((node,))
        if not options:
            raise ValueError(f"Expected a way to run node {node} alone, got none.")
        return options[0].latency_us

    def _alone_together(self, nodes: Nodes) -> float:
        return sum(self._alone_us[node] for node in nodes)


def _way_to(end: _State) -> list[_State]:
    way = []
    state = end
    while state.before is not None:
        way.append(state)
        state = state.before
    return way[::-1]


def _nodes_of(mask: int) -> list[int]:
    nodes = []
    while mask:
        low = mask & -mask
        nodes.append(low.bit_length() - 1)
        mask &= ~low
    return nodes
