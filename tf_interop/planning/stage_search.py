"""Searches for the stages of a whole graph, block by block: exactly if possible, else with bounds.

The graph is a DAG in bit masks. Nodes are numbers; each comes after its dependencies. There may be
several ways to run a stage, faster ones with more memory; the fastest that fits is used. Stages run
one after another.

*Blocks.* The graph is cut wherever all later nodes depend on all earlier ones. A stage across a cut
would be a single lane, which saves nothing, and the memory in use at a cut does not depend on the
stages before it. So each block is searched by itself, and one that is too wide for the exact search
does not keep it from the others. A block is searched exactly, at least with lanes of one node, or
else by a beam.

*Beam.* States are compared by the time that they save against running every node alone. Among the
states with equally many nodes done, only the most promising are followed; their number is the
width of the beam. Among equal states the one with more ready nodes goes first, because a node that
is kept back may fill a later stage, as weight gradients do in training: nothing waits for them.
Stages are also tried with some lanes continued, node by node, starting with the lanes that end
first. The result is compared with all nodes one after another, and the faster is returned.

*Exact.* Dynamic programming over the nodes that have run: Ding et al., "IOS: Inter-Operator
Scheduler for CNN Acceleration" (MLSys 2021), section 4, from the front. A *state* is a set of nodes
that have run, with everything that they depend on. With

    latency(S) = min over stages E that can run last in S of  latency(S without E) + latency(E)

each state is solved once. This is the beam search with all stages and no limit on the states. The
memory in use depends only on the set of nodes, so a memory limit adds no states.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from tf_interop.planning.stage_costs import Choice, Lanes

# Stages are made from this many ready nodes: those with the longest way to the end.
_MAX_READY = 8
_MOST_ALIKE = 2

Unit = tuple[Lanes, Choice]
"""A stage or a single node, and the way to run it."""

OnProgress = Callable[[str], None]
"""Receives a few words on the progress now and then; an exception ends the search."""


class SearchError(ValueError):
    """No stages could be found."""


class SearchTooWideError(SearchError):
    """The search needs more transitions than were allowed."""


class Space:
    """A DAG, and the sets of its nodes that can be stages.

    A lane is a connected part of a stage: if two nodes share it, one depends on the other or a
    third joins them. All other nodes are independent and have lanes of their own.

    Args:
        predecessors: the direct dependencies of each node.
        choices: returns the ways to run a stage, only those that save time, or all ways to run a
            node; fastest first. An empty result forbids it.
        follows: the nodes that each node may follow in a lane; None for all predecessors.
        available: the free memory, given the nodes that have run as bits.
        max_lanes: limit for a stage.
        max_lane_length: limit for the nodes of a lane.

    Attributes:
        direct: the direct dependencies of each node, as bits.
        ancestors: all dependencies of each node, as bits.
        readers: the nodes that depend directly on each node.
        descendants: all nodes that depend on each node, as bits.
        followers: the nodes that may come after each node in a lane, as bits.
        barred: the dependencies that each node may share no stage with, as bits.
    """

    def __init__(
        self,
        predecessors: Sequence[Sequence[int]],
        choices: Callable[[Lanes], Sequence[Choice]],
        *,
        follows: Sequence[Sequence[int]] | None = None,
        available: Callable[[int], float] = lambda done: math.inf,
        max_lanes: int = 4,
        max_lane_length: int = 1,
    ) -> None:
        count = len(predecessors)
        self.max_lanes = max_lanes
        self.max_lane_length = max_lane_length
        self.available = available
        self._choices = choices
        self._known: dict[int, Sequence[Choice]] = {}
        self.direct = [mask_of(each) for each in predecessors]
        may_follow = self.direct if follows is None else [mask_of(each) for each in follows]
        self.barred = [direct & ~may for direct, may in zip(self.direct, may_follow, strict=True)]
        self.ancestors: list[int] = []
        self.readers: list[list[int]] = [[] for _ in predecessors]
        self.followers = [0] * count
        for node, direct in enumerate(self.direct):
            reached = direct
            for each in bits_of(direct):
                reached |= self.ancestors[each]
                self.readers[each].append(node)
                if may_follow[node] >> each & 1:
                    self.followers[each] |= 1 << node
            self.ancestors.append(reached)
        if not any(self.followers):
            self.max_lane_length = 1
        self.descendants = [0] * count
        for node in reversed(range(count)):
            for reader in self.readers[node]:
                self.descendants[node] |= self.descendants[reader] | 1 << reader

    def __len__(self) -> int:
        return len(self.direct)

    def alone_us(self, node: int) -> float:
        """The time of a node alone, by its fastest choice."""
        return self.choices(1 << node)[0].prediction.latency_us

    def choices(self, stage: int) -> Sequence[Choice]:
        """The ways to run a stage, fastest first."""
        choices = self._known.get(stage)
        if choices is None:
            lanes = self.lanes(stage)
            choices = self._known[stage] = () if lanes is None else self._choices(lanes)
        return choices

    def lanes(self, mask: int) -> Lanes | None:
        """The lanes of a stage with these nodes; None if they cannot be one."""
        nodes = list(bits_of(mask))
        ancestors = 0
        for node in nodes:
            ancestors |= self.ancestors[node]
        if not ancestors & mask:
            return tuple([(node,) for node in nodes]) if len(nodes) <= self.max_lanes else None
        if self.max_lane_length == 1:
            return None
        descendants = 0
        for node in nodes:
            descendants |= self.descendants[node]
        # A node between two nodes of a stage would wait for the stage, and the stage for it.
        if ancestors & descendants & ~mask:
            return None
        parts: list[int] = []
        for node in nodes:
            part = 1 << node
            inside = self.direct[node] & mask
            if inside:
                if inside & self.barred[node]:
                    return None
                for each in [each for each in parts if each & inside]:
                    parts.remove(each)
                    part |= each
                if part.bit_count() > self.max_lane_length:
                    return None
            parts.append(part)
        if len(parts) > self.max_lanes:
            return None
        parts.sort(key=lambda part: part & -part)
        return tuple([tuple(bits_of(part)) for part in parts])


def bits_of(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mask_of(nodes: Iterable[int]) -> int:
    """A mask with these bits set."""
    mask = 0
    for node in nodes:
        mask |= 1 << node
    return mask


@dataclasses.dataclass(slots=True)
class State:
    """A set of nodes that have run, and the way there.

    Attributes:
        done: the nodes, as bits.
        saved_us: time saved against running every node alone.
        stage: the last stage.
        choice: the way to run the last stage.
        before: the state before the last stage.
        ready: the nodes that can run next, as bits; set once the state is followed.
    """

    done: int
    saved_us: float
    stage: int = 0
    choice: Choice | None = None
    before: State | None = None
    ready: int = 0

    def rank(self) -> tuple[float, int, int]:
        """Sorts the most promising first."""
        # `done` only makes the order the same in every process.
        return -self.saved_us, -self.ready.bit_count(), self.done


class Beam:
    """Searches a block from its front, through states with ever more nodes done.

    The result takes no longer than all nodes one after another.
    """

    def __init__(self, space: Space, block: range, width: int) -> None:
        self._space = space
        self._block = block
        self._width = width
        self._alone_us = {node: space.alone_us(node) for node in block}
        # The time from the start of a node to the end of the block, on the longest way.
        self._urgency: dict[int, float] = {}
        for node in reversed(block):
            rest = max((self._urgency.get(each, 0.0) for each in space.readers[node]), default=0.0)
            self._urgency[node] = self._alone_us[node] + rest

    def search(self, on_nodes: Callable[[int], None] = lambda count: None) -> list[Unit]:
        """Finds the stages that save most, and the nodes in no stage, in running order.

        Raises:
            SearchError: a node does not fit into memory in any order that was tried.
        """
        first, count = self._block.start, len(self._block)
        start = State((1 << first) - 1, 0.0)
        layers: list[dict[int, State]] = [{} for _ in range(count + 1)]
        layers[0][start.done] = start
        for size in range(count):
            followed = self._most_promising(layers[size].values())
            layers[size].clear()
            for state in followed:
                for stage, choice in self._follow(state):
                    saved_us = state.saved_us + choice.prediction.saved_us
                    done = state.done | stage
                    layer = layers[done.bit_count() - first]
                    known = layer.get(done)
                    if known is None or saved_us > known.saved_us:
                        layer[done] = State(done, saved_us, stage, choice, state)
            on_nodes(size + 1)
        ends = [*layers[count].values(), *self._one_after_another(start)]
        if not ends:
            raise SearchError("No order that was tried fits every node into memory.")
        state = max(ends, key=lambda end: end.saved_us)
        units: list[Unit] = []
        while state.before is not None and state.choice is not None:
            units.append((self._space.lanes(state.stage) or (), state.choice))
            state = state.before
        return units[::-1]

    def _one_after_another(self, state: State) -> list[State]:
        """The end state of all nodes in their own order; none if a node does not fit."""
        for node in self._block:
            choice = self._fastest_that_fits(1 << node, self._space.available(state.done))
            if choice is None:
                return []
            saved_us = state.saved_us + choice.prediction.saved_us
            state = State(state.done | 1 << node, saved_us, 1 << node, choice, state)
        return [state]

    def _most_promising(self, states: Collection[State]) -> list[State]:
        """The states that are followed."""
        # Ready nodes only break ties, and finding them takes longer than everything else.
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

    def _follow(self, state: State) -> Iterator[tuple[int, Choice]]:
        """The stages that can run next, each with a way to run it."""
        available = self._space.available(state.done)
        for stage in self._stages(state):
            choice = self._fastest_that_fits(stage, available)
            if choice is not None:
                yield stage, choice

    def _fastest_that_fits(self, stage: int, available: float) -> Choice | None:
        for choice in self._space.choices(stage):
            if choice.prediction.peak_bytes <= available:
                return choice
        return None

    def _stages(self, state: State) -> Iterator[int]:
        ready = list(bits_of(state.ready))
        for node in ready:
            yield 1 << node
        masks = [1 << node for node in sorted(self._most_urgent(ready))]
        more = {mask: self._more(mask.bit_length() - 1, state.done) for mask in masks}
        for size in range(2, min(self._space.max_lanes, len(masks)) + 1):
            for nodes in itertools.combinations(masks, size):
                stage = sum(nodes)
                yield stage
                for _, node in sorted(itertools.chain(*[more[node] for node in nodes])):
                    stage |= node
                    yield stage

    def _most_urgent(self, ready: Sequence[int]) -> list[int]:
        """The nodes that stages are made of; two of a kind come before a third of any kind."""
        alike: collections.Counter[float] = collections.Counter()
        ranked: list[tuple[bool, int, int]] = []
        for node in sorted(ready, key=lambda node: (-self._urgency[node], node)):
            alike[self._alone_us[node]] += 1
            ranked.append((alike[self._alone_us[node]] > _MOST_ALIKE, len(ranked), node))
        return [node for *_, node in sorted(ranked)[:_MAX_READY]]

    def _more(self, node: int, done: int) -> list[tuple[float, int]]:
        """The nodes that can continue a lane, as bits, each with the end of the one before it."""
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


class ExactSearch(Beam):
    """The beam search with every state and every stage, which finds the least latency.

    Lanes have one node each, or several if `with_chains`. Raises SearchTooWideError after
    `max_transitions`. Stages that the space rules out count too, because they take time to examine.
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
        space = self._space
        most = space.max_lanes * (space.max_lane_length if self._with_chains else 1)
        undecided = [((1 << self._block.stop) - 1 & ~state.done, 0)]
        while undecided:
            candidates, stage = undecided.pop()
            if not candidates or stage.bit_count() == most:
                if stage:
                    if not self._left:
                        raise SearchTooWideError("The block has too many transitions.")
                    self._left -= 1
                    yield stage
                continue
            # All dependencies of the first candidate have run or are in the stage. Without it,
            # nothing that depends on it can be in the stage either.
            first = candidates & -candidates
            node = first.bit_length() - 1
            others = candidates & ~first
            undecided.append((others & ~space.descendants[node], stage))
            if not space.barred[node] & stage:
                after = others if self._with_chains else others & ~space.descendants[node]
                undecided.append((after, stage | first))


def search_blocks(
    space: Space,
    *,
    max_transitions: int,
    width: int,
    on_progress: OnProgress = lambda words: None,
) -> tuple[list[Unit], int]:
    """Finds the stages of a graph.

    Returns:
        The units in running order, with every node once; and the number of nodes in blocks that
        were searched exactly.

    Raises:
        SearchError: a node does not fit into memory.
    """
    units: list[Unit] = []
    exact_nodes = 0
    for block in find_blocks(space):

        def on_nodes(nodes: int, start: int = block.start) -> None:
            on_progress(f"{start + nodes} of {len(space)} convolutions")

        has_chains = space.max_lane_length > 1 and any(
            space.followers[node] & mask_of(block) for node in block
        )
        found = None
        try:
            # A block that is too wide with lanes of one node is too wide with others as well.
            for with_chains in (False, True) if has_chains else (False,):
                found = ExactSearch(space, block, max_transitions, with_chains).search()
            exact_nodes += len(block)
            on_nodes(len(block))
        except SearchTooWideError:
            pass
        # Outside the handler, because the exception keeps the states of the exact search alive.
        units += found or Beam(space, block, width).search(on_nodes)
    return units, exact_nodes


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
