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

import collections
import dataclasses
import heapq
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence

from tf_interop.planning.search.space import (
    Schedule,
    SearchError,
    Space,
    StageOption,
    bits_of,
    mask_of,
)

# Stages are made of so many of the nodes that are ready, those with the longest way to the end.
_MAX_READY = 8
_MOST_ALIKE = 2

_Way = tuple[float, StageOption]
"""What an option saves against its nodes alone, and the option."""


def search_in_bounds(
    space: Space, block: range, *, width: int, on_nodes: Callable[[int], None] = lambda count: None
) -> Schedule:
    """Finds stages of a block that take no longer than all nodes one after another.

    Raises:
        SearchError: a node finds no memory in any order that was tried.
    """
    return Beam(space, block, width).search(on_nodes)


@dataclasses.dataclass(slots=True)
class State:
    """Nodes that have run, the last stage, and, of those followed, what can run next, as bits."""

    done: int
    saved_us: float
    stage: int = 0
    option: StageOption | None = None
    before: State | None = None
    ready: int = 0

    def rank(self) -> tuple[float, int, int]:
        """The most promising first."""
        # `done` only makes the order the same in every process.
        return -self.saved_us, -self.ready.bit_count(), self.done


class Beam:
    """Goes through a block from its front, through states with ever more nodes done."""

    def __init__(self, space: Space, block: range, width: int) -> None:
        self._space = space
        self._block = block
        self._width = width
        self._alone_us = {node: space.options(1 << node)[0].latency_us for node in block}
        self._ways: dict[int, Sequence[_Way]] = {}
        # The time from the start of a node to the end of the block, on the longest way.
        self._urgency: dict[int, float] = {}
        for node in reversed(block):
            rest = max((self._urgency.get(each, 0.0) for each in space.readers[node]), default=0.0)
            self._urgency[node] = self._alone_us[node] + rest

    def search(self, on_nodes: Callable[[int], None] = lambda count: None) -> Schedule:
        """The stages that save most of those that are followed."""
        first, count = self._block.start, len(self._block)
        start = State((1 << first) - 1, 0.0)
        layers: list[dict[int, State]] = [{} for _ in range(count + 1)]
        layers[0][start.done] = start
        for size in range(count):
            followed = self._most_promising(layers[size].values())
            layers[size].clear()
            for state in followed:
                for stage, (saved_us, option) in self._follow(state):
                    saved_us += state.saved_us
                    done = state.done | stage
                    layer = layers[done.bit_count() - first]
                    known = layer.get(done)
                    if known is None or saved_us > known.saved_us:
                        layer[done] = State(done, saved_us, stage, option, state)
            on_nodes(size + 1)
        ends = [*layers[count].values(), *self._one_after_another(start)]
        if not ends:
            raise SearchError(
                "Expected memory for every node in some order, got none within the bounds of the "
                "search. Give more memory, or candidates that need less."
            )
        state = max(ends, key=lambda end: end.saved_us)
        stages = []
        while state.before is not None and state.option is not None:
            stages.append((state.stage, state.option))
            state = state.before
        return self._space.schedule(reversed(stages))

    def _one_after_another(self, state: State) -> list[State]:
        """The end of all nodes in their own order; none where one of them finds no memory."""
        for node in self._block:
            way = _best(self._ways_of(1 << node), self._space.available(state.done))
            if way is None:
                return []
            done = state.done | 1 << node
            state = State(done, state.saved_us + way[0], 1 << node, way[1], state)
        return [state]

    def _most_promising(self, states: Collection[State]) -> list[State]:
        """Those that are followed."""
        # What is ready decides among equals alone, and takes longer to find than all else.
        saved_us = heapq.nlargest(self._width, [state.saved_us for state in states])
        best = [state for state in states if state.saved_us >= saved_us[-1]]
        for state in best:
            state.ready = self._ready_after(state)
        return sorted(best, key=State.rank)[: self._width]

    def _ready_after(self, state: State) -> int:
        readers, direct = self._space.readers, self._space.direct
        if state.before is None:
            return mask_of(node for node in self._block if not direct[node] & ~state.done)
        ready = state.before.ready & ~state.stage
        for node in bits_of(state.stage):
            for reader in readers[node]:
                if not direct[reader] & ~state.done:
                    ready |= 1 << reader
        return ready & ~state.done

    def _follow(self, state: State) -> Iterator[tuple[int, _Way]]:
        """The stages that can run next, and how."""
        available = self._space.available(state.done)
        ways_of = self._ways
        for stage in self._stages(state):
            ways = ways_of.get(stage)
            if ways is None:
                ways = self._ways_of(stage)
            if ways:
                way = _best(ways, available)
                if way is not None:
                    yield stage, way

    def _stages(self, state: State) -> Iterator[int]:
        ready = list(bits_of(state.ready))
        for node in ready:
            yield 1 << node
        masks = [1 << node for node in sorted(self._most_urgent(ready))]
        sizes = range(2, min(self._space.max_lanes, len(masks)) + 1)
        if self._space.max_lane_length == 1:
            for size in sizes:
                yield from map(sum, itertools.combinations(masks, size))
            return
        more = {mask: self._more(mask.bit_length() - 1, state.done) for mask in masks}
        for size in sizes:
            for nodes in itertools.combinations(masks, size):
                stage = sum(nodes)
                yield stage
                for _, node in sorted(itertools.chain(*[more[node] for node in nodes])):
                    stage |= node
                    yield stage

    def _most_urgent(self, ready: Sequence[int]) -> list[int]:
        """Those that stages are made of; of many alike two come before nodes of other kinds."""
        alike: collections.Counter[float] = collections.Counter()
        ranked: list[tuple[bool, int, int]] = []
        for node in sorted(ready, key=lambda node: (-self._urgency[node], node)):
            alike[self._alone_us[node]] += 1
            ranked.append((alike[self._alone_us[node]] > _MOST_ALIKE, len(ranked), node))
        return [node for *_, node in sorted(ranked)[:_MAX_READY]]

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
                    if each in self._block and not space.direct[each] & ~done & ~lane
                ),
                None,
            )
            if following is None:
                break
            more.append((end_us, 1 << following))
            lane |= 1 << following
            end_us += self._alone_us[following]
        return more

    def _ways_of(self, stage: int) -> Sequence[_Way]:
        """The options of a stage; of several nodes those that save something."""
        ways = self._ways.get(stage)
        if ways is None:
            alone_us = sum(self._alone_us[node] for node in bits_of(stage))
            ways = self._ways[stage] = tuple(
                [
                    (alone_us - option.latency_us, option)
                    for option in self._space.options(stage)
                    if option.latency_us < alone_us or not stage & (stage - 1)
                ]
            )
        return ways


def _best(ways: Sequence[_Way], available: int | None) -> _Way | None:
    if available is None:
        return ways[0] if ways else None
    return next((way for way in ways if way[1].memory_bytes <= available), None)
