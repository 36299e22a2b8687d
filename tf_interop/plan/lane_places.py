"""Which convolutions of a graph take which places of a stage that was measured.

A measurement knows what its convolutions compute, not which nodes of a graph they are. For a lane
of its own any node will do that computes the same. In a merged lane all must read one image.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable, Sequence

_Places = dict[int, int]
_Pools = dict[tuple[Hashable, "str | None"], list[int]]


def find_places(
    wanted: Sequence[Hashable],
    lanes: Sequence[int],
    merged: Sequence[bool],
    offered: Sequence[tuple[Hashable, str | None]],
) -> tuple[int, ...] | None:
    """Finds a node for each place of a stage, a different one for each.

    Args:
        wanted: what is to be computed at each place.
        lanes: the lane of each place.
        merged: of each lane whether it is merged; empty where none is.
        offered: what each node computes, and its merge key.

    Returns:
        For each place a position in `offered`, the earliest that there are; None where the nodes
        are others, or those of a merged lane have no merge key in common.
    """
    if collections.Counter(wanted) != collections.Counter(kind for kind, _ in offered):
        return None
    pools: _Pools = collections.defaultdict(list)
    for position, of in enumerate(offered):
        pools[of].append(position)
    merged_lanes = [lane for lane, is_merged in enumerate(merged) if is_merged]
    places = _fill_merged(merged_lanes, wanted, lanes, pools)
    if places is None:
        return None
    taken = set(places.values())
    left: dict[Hashable, list[int]] = collections.defaultdict(list)
    for position, (kind, _) in reversed(list(enumerate(offered))):
        if position not in taken:
            left[kind].append(position)
    return tuple(
        places[place] if place in places else left[kind].pop() for place, kind in enumerate(wanted)
    )


def _fill_merged(
    merged_lanes: Sequence[int],
    wanted: Sequence[Hashable],
    lanes: Sequence[int],
    pools: _Pools,
) -> _Places | None:
    """Nodes for the places of merged lanes; tries each merge key for the first, then the next."""
    if not merged_lanes:
        return {}
    first, *others = merged_lanes
    mine = [place for place, lane in enumerate(lanes) if lane == first]
    for key in dict.fromkeys(key for _, key in pools if key is not None):
        rest = {of: list(positions) for of, positions in pools.items()}
        places: _Places = {}
        for place in mine:
            pool = rest.get((wanted[place], key))
            if not pool:
                break
            places[place] = pool.pop(0)
        else:
            found = _fill_merged(others, wanted, lanes, rest)
            if found is not None:
                return places | found
    return None
