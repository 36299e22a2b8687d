"""The stages of a whole graph, block by block: exactly where that is within reach, else in bounds.

A stage runs at a time: one node that is ready, or several that are, each on a lane of its own.

*Blocks.* Where all later nodes depend on all earlier ones the graph is cut. A stage over a cut
would be a single lane, which saves nothing, and what is alive after it does not depend on how the
stages before were made. So each block is a search of its own, and one block that is too wide for
the exact search leaves it to all others. There it is searched exactly with lanes of one node, or
else by a beam.

*Beam.* Where nodes may follow those of a stage in their lanes, the stage is also tried with the
lanes that end first continued, one node after the other. Of the states with equally many nodes done
only the most promising are followed further, and how many those are is the width of the beam.
States are compared by what they have saved against running every node alone; among equals the one
with more nodes ready goes first, because a node that is kept back may fill a later stage. In
training graphs that is what weight gradients are: nothing waits for them. What is found is compared
with all nodes one after another, and the faster is given back.

*Exact.* Dynamic programming over what has run: Ding et al., "IOS: Inter-Operator Scheduler for CNN
Acceleration" (MLSys 2021), section 4, from the front. A *state* is a set of nodes that has run:
with a node it holds all that the node depends on. With

    latency(S) = min over stages E that can run last in S of  latency(S without E) + latency(E)

each state is solved once: it is the beam search with no bound to what is followed, and all stages.
What is alive depends on what has run, not on how, so states stay as they are where memory is short.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence

from tf_interop.planning.search_space import (
    Lanes,
    OnProgress,
    Schedule,
    SearchError,
    SearchTooWideError,
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
    """Goes through a block from its front, through states with ever more nodes done.

    What it finds takes no longer than all nodes one after another.
    """

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
        """The stages that save most of those that are followed.

        Raises:
            SearchError: a node finds no memory in any order that was tried.
        """
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
        for stage in self._stages(state):
            way = _best(self._ways_of(stage), available)
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


def _best(ways: Sequence[_Way], available: float) -> _Way | None:
    for way in ways:
        if way[1].memory_bytes <= available:
            return way
    return None


class ExactSearch(Beam):
    """The beam search with every state and every stage: finds the least latency.

    Lanes have one node each, or several `with_chains`. Raises SearchTooWideError where there are
    more than `max_transitions`, those with stages that the space rules out included, which have to
    be looked at too.
    """

    def __init__(self, space: Space, block: range, max_transitions: int, with_chains: bool) -> None:
        super().__init__(space, block, width=0)
        self._with_chains = with_chains
        self._left = max_transitions

    def _most_promising(self, states: Collection[State]) -> list[State]:
        for state in states:
            state.ready = self._ready_after(state)
        return list(states)

    def _stages(self, state: State) -> Iterator[int]:
        every = self._of_any_length if self._with_chains else self._of_lanes_of_one
        for stage in every(state):
            if not self._left:
                raise SearchTooWideError(
                    f"Expected fewer transitions, got more, with {len(self._block)} nodes. Set "
                    "limits on lanes, or use the bounded search."
                )
            self._left -= 1
            yield stage

    def _of_lanes_of_one(self, state: State) -> Iterator[int]:
        ready = [1 << node for node in bits_of(state.ready)]
        for size in range(1, min(self._space.max_lanes, len(ready)) + 1):
            yield from map(sum, itertools.combinations(ready, size))

    def _of_any_length(self, state: State) -> Iterator[int]:
        space = self._space
        most = space.max_lanes * space.max_lane_length
        undecided = [((1 << self._block.stop) - 1 & ~state.done, 0)]
        while undecided:
            candidates, stage = undecided.pop()
            if not candidates or stage.bit_count() == most:
                if stage:
                    yield stage
                continue
            # The first candidate: all that it depends on has run or been taken. With it left out,
            # nothing that depends on it can be in the stage either.
            first = candidates & -candidates
            node = first.bit_length() - 1
            undecided.append((candidates & ~first & ~space.descendants[node], stage))
            if not space.barred[node] & stage:
                undecided.append((candidates & ~first, stage | first))


def search_blocks(
    space: Space,
    *,
    max_transitions: int,
    width: int,
    on_progress: OnProgress = lambda words: None,
) -> tuple[Schedule, int]:
    """Finds the stages of a graph.

    Returns:
        The stages, and how many nodes are in blocks that were searched exactly.

    Raises:
        SearchError: a node finds no memory.
    """
    stages: list[tuple[Lanes, StageOption]] = []
    exact_nodes = 0
    for block in find_blocks(space):

        def on_nodes(nodes: int, start: int = block.start) -> None:
            on_progress(f"{start + nodes} of {len(space)} convolutions")

        has_chains = space.max_lane_length > 1 and any(
            space.followers[node] & mask_of(block) for node in block
        )
        found = None
        try:
            # What is too wide with lanes of one node is so with others too.
            for with_chains in (False, True) if has_chains else (False,):
                found = ExactSearch(space, block, max_transitions, with_chains).search()
            exact_nodes += len(block)
            on_nodes(len(block))
        except SearchTooWideError:
            pass
        # Not above, where the error holds what the exact search remembered.
        stages += found or Beam(space, block, width).search(on_nodes)
        space.forget()
    return tuple(stages), exact_nodes


def find_blocks(space: Space) -> list[range]:
    """Cuts a DAG wherever all later nodes depend on all earlier ones."""
    count = len(space)
    cuts: list[int] = [count] if count else []
    common = (1 << count) - 1
    for node in reversed(range(1, count)):
        common &= space.ancestors[node]
        if common & (1 << node) - 1 == (1 << node) - 1:
            cuts.append(node)
    return [range(start, stop) for start, stop in itertools.pairwise([0, *reversed(cuts)])]
