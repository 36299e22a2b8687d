"""Good stages of a DAG that is too wide for the exact search: a beam search from the front.

A stage runs at a time: one node that is ready, or several that are, each on a lane of its own.
Where nodes may follow them in their lanes, the stage is also tried with the lanes that end first
continued, one node after the other.

Of the states with equally many nodes done only the most promising are followed further, and how
many those are is the width of the beam. States are compared by what they have saved against running
every node alone; among equals the one with more nodes ready goes first, because a node that is kept
back may fill a later stage. In training graphs that is what weight gradients are: nothing waits for
them.

What is found is compared with all nodes one after another, and the faster is given back.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from tf_interop.planning.search.space import (
    OnProgress,
    SearchError,
    SearchProgress,
    SearchResult,
    Space,
    bits_of,
)

# Stages are made of so many of the nodes that are ready, those with the longest way to the end.
_MAX_READY = 8

_Way = tuple[float, int, int]
"""An option: what it saves against its nodes alone, its memory, its place."""


def search_in_bounds(
    space: Space, *, width: int, on_progress: OnProgress | None = None
) -> SearchResult:
    """Finds stages that take no longer than all nodes one after another.

    Args:
        space: what is searched. Options of several nodes are passed over that save nothing against
            their nodes alone.
        width: states followed further, of those with equally many nodes done.
        on_progress: told how far the search is.

    Raises:
        SearchError: a node finds no memory in any order that was tried.
    """
    return _Beam(space, width).search(on_progress)


@dataclasses.dataclass(slots=True)
class _State:
    """Nodes that have run, those that can run next, and the last stage, as bits."""

    done: int
    ready: int
    saved_us: float
    stage: int = 0
    option: int = 0
    before: _State | None = None

    def rank(self) -> tuple[float, int, int]:
        # `done` only makes the order the same in every process.
        return -self.saved_us, -self.ready.bit_count(), self.done


class _Beam:
    def __init__(self, space: Space, width: int) -> None:
        self._space = space
        self._width = width
        self._alone_us = [space.alone_us(1 << node) for node in range(len(space))]
        self._may_follow = space.may_follow
        self._ways: dict[int, list[_Way]] = {}
        # The time from the start of a node to the end of the graph, on the longest way.
        self._urgency = [0.0] * len(space)
        for node in reversed(range(len(space))):
            rest = max((self._urgency[each] for each in space.readers[node]), default=0.0)
            self._urgency[node] = self._alone_us[node] + rest
        self._transitions = 0

    def search(self, on_progress: OnProgress | None) -> SearchResult:
        count = len(self._space)
        ready = sum(1 << node for node in range(count) if not self._space.direct[node])
        start = _State(0, ready, 0.0)
        layers: list[dict[int, _State]] = [{} for _ in range(count + 1)]
        layers[0][0] = start
        states = 0
        for size in range(count):
            followed = sorted(layers[size].values(), key=_State.rank)[: self._width]
            layers[size].clear()
            states += len(followed)
            for state in followed:
                for following in self._follow(state):
                    layer = layers[following.done.bit_count()]
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
        state = max(ends, key=lambda end: end.saved_us)
        units = []
        while state.before is not None:
            units.append((state.stage, state.option))
            state = state.before
        return self._space.result(reversed(units), states, self._transitions)

    def _one_after_another(self, state: _State) -> list[_State]:
        """The end of all nodes in their own order; none where one of them finds no memory."""
        for node in range(len(self._space)):
            way = _best(self._ways_of(1 << node), self._space.available(state.done))
            if way is None:
                return []
            state = self._after(state, 1 << node, way)
        return [state]

    def _follow(self, state: _State) -> Iterator[_State]:
        available = self._space.available(state.done)
        ways_of = self._ways
        for stage in self._stages(state):
            ways = ways_of.get(stage)
            if ways is None:
                ways = self._ways_of(stage)
            if ways:
                way = _best(ways, available)
                if way is not None:
                    yield self._after(state, stage, way)

    def _stages(self, state: _State) -> Iterator[int]:
        ready = list(bits_of(state.ready))
        for node in ready:
            yield 1 << node
        urgent = sorted(ready, key=lambda node: (-self._urgency[node], node))[:_MAX_READY]
        urgent.sort()
        masks = [1 << node for node in urgent]
        more = [self._more(node, state.done) for node in urgent] if self._may_follow else []
        for size in range(2, min(self._space.max_lanes, len(urgent)) + 1):
            for places in itertools.combinations(range(len(urgent)), size):
                stage = sum([masks[place] for place in places])
                yield stage
                if more:
                    following = itertools.chain(*[more[place] for place in places])
                    for _, node in sorted(following):
                        stage |= node
                        yield stage

    def _more(self, node: int, done: int) -> list[tuple[float, int]]:
        """The nodes that can go on with a lane: when those before have ended, and its bit."""
        space = self._space
        lane = 1 << node
        end_us = self._alone_us[node]
        more = []
        while lane.bit_count() < space.max_lane_length:
            followers = 0
            for each in bits_of(lane):
                followers |= space.followers[each]
            following = next(
                (
                    each
                    for each in bits_of(followers & ~lane)
                    if not space.direct[each] & ~done & ~lane
                ),
                None,
            )
            if following is None:
                break
            more.append((end_us, 1 << following))
            lane |= 1 << following
            end_us += self._alone_us[following]
        return more

    def _ways_of(self, stage: int) -> list[_Way]:
        """The options of a stage; of several nodes those that save something."""
        ways = self._ways.get(stage)
        if ways is None:
            alone_us = sum(self._alone_us[node] for node in bits_of(stage))
            ways = self._ways[stage] = [
                (alone_us - option.latency_us, option.memory_bytes, place)
                for place, option in enumerate(self._space.options(stage))
                if option.latency_us < alone_us or not stage & (stage - 1)
            ]
        return ways

    def _after(self, state: _State, stage: int, way: _Way) -> _State:
        self._transitions += 1
        readers, direct = self._space.readers, self._space.direct
        done = state.done | stage
        waiting = ~done
        ready = state.ready
        for node in bits_of(stage):
            for reader in readers[node]:
                if not direct[reader] & waiting:
                    ready |= 1 << reader
        saved_us, _, option = way
        return _State(done, ready & waiting, state.saved_us + saved_us, stage, option, state)


def _best(ways: list[_Way], available: int | None) -> _Way | None:
    if available is None:
        return ways[0] if ways else None
    return next((way for way in ways if way[1] <= available), None)
