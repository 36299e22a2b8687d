"""Which convolutions of a graph take which steps of a stage that was measured.

A measurement knows what its convolutions compute, not which nodes of a graph they are. Any node
will do that computes the same, with two exceptions: all of a merged lane must read one image, and
of two that depend on each other the later one comes after the earlier one in the same lane.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Hashable, Sequence
from typing import TypeVar

from tf_interop.contraction import misplaced_step
from tf_interop.stage import Stage

T = TypeVar("T", bound=Hashable)


def find_places(
    stage: Stage[T],
    offered: Sequence[tuple[T, str | None]],
    readers: Sequence[Collection[int]] = (),
) -> Stage[int] | None:
    """Finds a node for each step of a stage, a different one for each.

    Args:
        stage: of what is to be computed.
        offered: what each node computes, and its merge key.
        readers: for each of these the positions of those that depend on it; empty where none does.

    Returns:
        The stage of positions in `offered`, the earliest that there are; None where the nodes are
        others, or cannot take these places.
    """
    if collections.Counter(stage.operations) != collections.Counter(kind for kind, _ in offered):
        return None
    related = {node for source, each in enumerate(readers) if each for node in (source, *each)}
    # A step that has no node yet counts as a node by itself.
    padded = (*readers, *[()] * len(stage.operations))
    lane_of_step = stage.lane_of_step
    # Merged lanes first: what they need is rarer.
    order = sorted(
        range(len(lane_of_step)), key=lambda step: not stage.lanes[lane_of_step[step]].merged
    )
    taken: dict[int, int] = {}

    def filled() -> Stage[int]:
        steps = iter(range(len(order)))
        return stage.map(lambda _: taken.get(step := next(steps), len(offered) + step))

    def left(key: str | None) -> Hashable:
        """What is left of a merge key's nodes: where as much is, one key does as well as another.

        Without this, what does not fit would be tried in every order of the keys.
        """
        kinds = (
            (kind, position if position in related else None)
            for position, (kind, of_node) in enumerate(offered)
            if of_node == key and position not in taken.values()
        )
        return key is None, frozenset(collections.Counter(kinds).items())

    def fill(depth: int) -> bool:
        if depth == len(order):
            return True
        step = order[depth]
        kind, lane = stage.operations[step], lane_of_step[step]
        keys = {offered[taken[each]][1] for each in order[:depth] if lane_of_step[each] == lane}
        tried = set()
        for position, of in enumerate(offered):
            if of[0] != kind or position in taken.values():
                continue
            if stage.lanes[lane].merged and (of[1] is None or keys - {of[1]}):
                continue
            if position not in related:
                alike = left(of[1])
                if alike in tried:
                    continue
                tried.add(alike)
            taken[step] = position
            if not (related and misplaced_step(padded, filled())) and fill(depth + 1):
                return True
            del taken[step]
        return False

    return filled() if fill(0) else None
