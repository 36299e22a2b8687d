"""The best stages of a DAG, exactly: dynamic programming over what has run.

Ding et al., "IOS: Inter-Operator Scheduler for CNN Acceleration" (MLSys 2021), section 4, from the
front. A *state* is a set of nodes that has run: with a node it holds all that the node depends on.
With

    latency(S) = min over stages E that can run last in S of  latency(S without E) + latency(E)

each state is solved once: it is the beam search of `beam.py` with no bound to what is followed, and
all stages. What is alive depends on what has run, not on how, so states stay as they are where
memory is short.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

from tf_interop.planning.search.beam import Beam, State
from tf_interop.planning.search.space import Schedule, SearchTooWideError, Space, bits_of


def search_exactly(
    space: Space, block: range, *, max_transitions: int, with_chains: bool
) -> Schedule:
    """Finds the stages of a block with the least latency, the same in every process.

    Lanes have one node each, or several `with_chains`.

    Raises:
        SearchTooWideError: there are more than `max_transitions`, those with stages that the space
            rules out included, which have to be looked at too.
        SearchError: no schedule is allowed.
    """
    return ExactSearch(space, block, max_transitions, with_chains).search()


class ExactSearch(Beam):
    """The beam search with every state and every stage; it counts down the transitions left."""

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
