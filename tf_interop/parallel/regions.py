"""Boxes of tensors, and where the values of a tensor that several devices share are.

A part of an operation reads a box of each of its inputs and gives a box of each of its outputs.
Everything that parting a graph costs and does follows from that: halos, all-gathers and
reduce-scatters are what has to be read from other devices to have a box complete.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

Interval = tuple[int, int]
"""From the first to the one after the last; never empty in a box."""
Box = tuple[Interval, ...]
"""An interval of each dimension; that of a scalar has none."""


def whole(shape: Sequence[int]) -> Box:
    """The box of all values of a tensor."""
    return tuple((0, size) for size in shape)


def sizes(box: Box) -> tuple[int, ...]:
    """The shape of what a box holds."""
    return tuple(end - begin for begin, end in box)


def volume(box: Box) -> int:
    """How many values a box holds."""
    return math.prod(end - begin for begin, end in box)


def overlap(first: Box, second: Box) -> Box | None:
    """What two boxes of one tensor share; None where that is nothing."""
    shared = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(first, second, strict=True))
    return shared if all(begin < end for begin, end in shared) else None


def relative(box: Box, outer: Box) -> Box:
    """The place of a box within an outer one."""
    return tuple((a - c, b - c) for (a, b), (c, _) in zip(box, outer, strict=True))


def split(extent: int, count: int) -> tuple[Interval, ...]:
    """Divides an extent into `count` intervals, as even as can be; the first are the longer ones.

    Raises:
        ValueError: there are more intervals than values.
    """
    if not 1 <= count <= extent:
        raise ValueError(f"Expected 1 to {extent} parts of an extent of {extent}, got {count}.")
    size, longer = divmod(extent, count)
    ends = list(itertools.accumulate(size + (place < longer) for place in range(count)))
    return tuple(zip([0, *ends], ends, strict=False))


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A box of a tensor, or an addend of one, and the device that holds it, by its number."""

    device: int
    box: Box


@dataclasses.dataclass(frozen=True, slots=True)
class PartedTensor:
    """A tensor whose values several devices share.

    Attributes:
        shape: of the whole tensor.
        parts: they cover the tensor. Any two boxes are equal or apart.
        is_sum: whether parts with equal boxes are addends of its values. Otherwise they are copies.
    """

    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    is_sum: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """A box to be read of one part of a tensor.

    Attributes:
        part: the part's place in `PartedTensor.parts`.
        box: in coordinates of the whole tensor; within the part's.
    """

    part: int
    box: Box


def pieces_of(tensor: PartedTensor, box: Box, device: int) -> tuple[Piece, ...]:
    """What `device` reads to have `box` complete.

    Of a sum those are all addends, and pieces with equal boxes are to be added. Otherwise it is one
    copy of each piece: that of the device itself, if there is one, else the first.
    """
    found: dict[Box, list[int]] = {}
    for place, part in enumerate(tensor.parts):
        shared = overlap(part.box, box)
        if shared is not None:
            found.setdefault(shared, []).append(place)

    def choose(shared: Box, places: list[int]) -> Iterator[Piece]:
        if tensor.is_sum:
            yield from (Piece(place, shared) for place in places)
        else:
            own = [place for place in places if tensor.parts[place].device == device]
            yield Piece((own or places)[0], shared)

    return tuple(
        piece for shared, places in sorted(found.items()) for piece in choose(shared, places)
    )
