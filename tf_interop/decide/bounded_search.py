"""Good stages of a DAG that is too wide for the exact search: a beam search from the front.

A step runs one stage: one node that is ready, or several that are, each on a lane of its own. Of
the states with equally many nodes done only the most promising are followed further, and how many
those are is the width of the beam. States are compared by what they have saved against running
every node alone; among equals the one with more nodes ready goes first, because a node that is kept
back may fill a later stage. In training graphs that is what weight gradients are: nothing waits for
them.

Running every node alone saves nothing and is always among the results that are compared at the end,
so what is found is never slower than that.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

from tf_interop.decide.stage_search import SearchResult, topological_order

Nodes = tuple[int, ...]
SetLatency = Callable[[Nodes], float | None]
"""What a stage of these nodes takes in microseconds, each on a lane of its own; they come in
ascending order. None where it must not be made."""


def search_stages_bounded(
    predecessors: Sequence[Sequence[int]],
    alone_us: Sequence[float],
    stage_latency_us: SetLatency,
    *,
    width: int = 32,
    max_lanes: int = 4,
    max_ready: int = 8,
) -> SearchResult:
    """Finds stages that take no longer than all nodes one after another.

    Args:
        predecessors: for each node the nodes that it depends on.
        alone_us: what each node takes alone.
        stage_latency_us: asked once for each distinct set of two or more nodes. Sets that save
            nothing against running their nodes alone are passed over.
        width: states followed further, of those with equally many nodes done.
        max_lanes: the most nodes of a stage.
        max_ready: stages are made of so many of the nodes that are ready, those with the longest
            way to the end first.

    Returns:
        The stages; `states` and `transitions` say how far the search looked.

    Raises:
        SearchError: the graph has a cycle.
        ValueError: there is not one time for each node, or a bound is less than 1.
    """
    if len(alone_us) != len(predecessors):
        raise ValueError(
            f"Expected a time for each of {len(predecessors)} nodes, got {len(alone_us)}."
        )
    if min(width, max_lanes, max_ready) < 1:
        raise ValueError(
            "Expected width, max_lanes and max_ready of 1 or more, got "
            f"{width}, {max_lanes} and {max_ready}."
        )
    beam = _Beam(predecessors, alone_us, stage_latency_us, width, max_lanes, max_ready)
    return beam.search()


@dataclasses.dataclass(slots=True)
class _State:
    """Nodes that have run, and how.

    Attributes:
        done: a bit for each node that has run.
        ready: a bit for each node that can run next.
        saved_us: against running every node alone.
        stage: the nodes of the last stage.
        before: the state before that; None for the start.
    """

    done: int
    ready: int
    saved_us: float
    stage: Nodes
    before: _State | None

    def rank(self) -> tuple[float, int, int]:
        # `done` only makes the order the same in every process.
        return -self.saved_us, -self.ready.bit_count(), self.done


class _Beam:
    def __init__(
        self,
        predecessors: Sequence[Sequence[int]],
        alone_us: Sequence[float],
        stage_latency_us: SetLatency,
        width: int,
        max_lanes: int,
        max_ready: int,
    ) -> None:
        count = len(predecessors)
        self._alone_us = alone_us
        self._stage_latency_us = stage_latency_us
        self._width = width
        self._max_lanes = max_lanes
        self._max_ready = max_ready
        self._needs = [sum(1 << each for each in set(needs)) for needs in predecessors]
        self._successors: list[list[int]] = [[] for _ in range(count)]
        order = topological_order(predecessors)
        for node in order:
            for predecessor in set(predecessors[node]):
                self._successors[predecessor].append(node)
        # The time from the start of a node to the end of the graph, on the longest way.
        self._urgency = [0.0] * count
        for node in reversed(order):
            rest = max((self._urgency[each] for each in self._successors[node]), default=0.0)
            self._urgency[node] = alone_us[node] + rest
        self._saving: dict[Nodes, float | None] = {}
        self._transitions = 0

    def search(self) -> SearchResult:
        count = len(self._needs)
        start = sum(1 << node for node in range(count) if not self._needs[node])
        layers: list[dict[int, _State]] = [{} for _ in range(count + 1)]
        layers[0][0] = _State(0, start, 0.0, (), None)
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
        (end,) = layers[count].values()
        stages = [tuple((node,) for node in state.stage) for state in _way_to(end)]
        latency_us = sum(self._latency_of(state.stage) for state in _way_to(end))
        return SearchResult(tuple(stages), latency_us, states, self._transitions)

    def _follow(self, state: _State) -> Iterator[_State]:
        ready = _nodes_of(state.ready)
        for node in ready:
            yield self._after(state, (node,), 0.0)
        urgent = sorted(ready, key=lambda node: (-self._urgency[node], node))[: self._max_ready]
        urgent.sort()
        for size in range(2, min(self._max_lanes, len(urgent)) + 1):
            for nodes in itertools.combinations(urgent, size):
                saving = self._saving_of(nodes)
                if saving is not None:
                    yield self._after(state, nodes, saving)

    def _after(self, state: _State, nodes: Nodes, saving: float) -> _State:
        self._transitions += 1
        done, ready = state.done, state.ready
        for node in nodes:
            done |= 1 << node
            ready &= ~(1 << node)
        for node in nodes:
            for successor in self._successors[node]:
                if not self._needs[successor] & ~done:
                    ready |= 1 << successor
        return _State(done, ready, state.saved_us + saving, nodes, state)

    def _saving_of(self, nodes: Nodes) -> float | None:
        """What a stage saves; None where it saves nothing or must not be made."""
        if nodes not in self._saving:
            latency = self._stage_latency_us(nodes)
            alone = sum(self._alone_us[node] for node in nodes)
            saves = latency is not None and latency < alone
            self._saving[nodes] = alone - latency if saves and latency is not None else None
        return self._saving[nodes]

    def _latency_of(self, nodes: Nodes) -> float:
        alone = sum(self._alone_us[node] for node in nodes)
        return alone - (self._saving.get(nodes) or 0.0)


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
