"""The best stages of a DAG, exactly: dynamic programming over what is left to run.

Ding et al., "IOS: Inter-Operator Scheduler for CNN Acceleration" (MLSys 2021), section 4. A *state*
is a set of nodes that can be what is left to schedule from the front: with a node it holds all that
the node depends on. An *ending* of a state is a set of its nodes that nothing else in it depends
on; taking one as the last stage leaves a smaller state. With

    latency(S) = min over endings E of S of  latency(S without E) + stage_latency(E)

each state is solved once. What is alive depends on what has run, not on how, so states stay as they
are where memory is short.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from tf_interop.planning.search.space import (
    Schedule,
    SearchError,
    SearchTooWideError,
    Space,
    StageOption,
    bits_of,
)


def search_exactly(space: Space, *, max_transitions: int | None = None) -> Schedule:
    """Finds the stages with the least latency.

    Returns:
        The stages. Where several schedules take the same time, the one whose
        last stage is found first: the same input gives the same stages in every process.

    Raises:
        SearchTooWideError: there are more than `max_transitions`.
        SearchError: no schedule is allowed.
    """
    whole = (1 << len(space)) - 1
    latency_us = {0: 0.0}
    last: dict[int, tuple[int, StageOption]] = {}
    is_sure = space.max_lane_length == 1
    for state in _reachable(space, whole, max_transitions):
        for ending in _endings(space, state):
            if not is_sure and space.lanes(ending) is None:
                continue
            before_us = latency_us.get(state & ~ending)
            if before_us is None:
                continue
            option = space.choose(ending, space.available(state & ~ending))
            if option is not None:
                total_us = before_us + option.latency_us
                if total_us < latency_us.get(state, math.inf):
                    latency_us[state], last[state] = total_us, (ending, option)
    stages = []
    state = whole
    while state:
        if state not in last:
            raise SearchError(
                f"Expected a schedule for {len(space)} nodes, got none: every stage that holds "
                "some of them is ruled out, or finds no memory."
            )
        stages.append(last[state])
        state &= ~stages[-1][0]
    return space.schedule(reversed(stages))


def _reachable(space: Space, whole: int, max_transitions: int | None) -> list[int]:
    """All states that come up, smaller ones first."""
    # Nodes that nothing in a state depends on are independent.
    is_sure = space.max_lane_length == 1
    found = {whole}
    waiting = [whole]
    seen = 0
    while waiting:
        state = waiting.pop()
        for ending in _endings(space, state):
            seen += 1
            if max_transitions is not None and seen > max_transitions:
                raise SearchTooWideError(
                    f"Expected at most {max_transitions} transitions, got more, with {len(space)} "
                    "nodes. Set limits on lanes, or use the bounded search."
                )
            rest = state & ~ending
            if rest and rest not in found and (is_sure or space.lanes(ending) is not None):
                found.add(rest)
                waiting.append(rest)
    return sorted(found, key=lambda state: (state.bit_count(), state))


def _endings(space: Space, state: int) -> Iterator[int]:
    """Endings of a state, each once: all that can be stages, and perhaps others."""
    if space.max_lane_length > 1:
        yield from _endings_of_any_length(space, state)
        return
    needed = 0
    for node in bits_of(state):
        needed |= space.direct[node]
    last = [1 << node for node in bits_of(state & ~needed)]
    for size in range(1, min(space.max_lanes, len(last)) + 1):
        yield from map(sum, itertools.combinations(last, size))


def _endings_of_any_length(space: Space, state: int) -> Iterator[int]:
    most = space.max_lanes * space.max_lane_length
    ancestors, barred = space.ancestors, space.barred
    undecided = [(state, 0)]
    while undecided:
        candidates, ending = undecided.pop()
        if not candidates or ending.bit_count() == most:
            if ending:
                yield ending
            continue
        # The last candidate: all that depends on it has been taken. With it left out, nothing that
        # it depends on can be in the ending either.
        node = candidates.bit_length() - 1
        without = candidates & ~(1 << node)
        undecided.append((without & ~ancestors[node], ending))
        if not barred[node] & ending:
            undecided.append((without, ending | 1 << node))
