"""Boxes of tensors, and tensors whose values several devices share.

A part of an operation reads a box of each input and computes a box of each output. Costs and
traffic follow from these boxes: a halo, an all-gather or a reduce-scatter is a box on another
device.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

Interval = tuple[int, int]
"""Begin and end, the end excluded. An interval of a box is never empty."""
Box = tuple[Interval, ...]
"""An interval along each dimension; `()` for a scalar."""


def whole(shape: Sequence[int]) -> Box:
    """The box of all values of a tensor."""
    return tuple((0, size) for size in shape)


def sizes(box: Box) -> tuple[int, ...]:
    """The shape of a box."""
    return tuple(end - begin for begin, end in box)


def volume(box: Box) -> int:
    """The number of values in a box."""
    return math.prod(sizes(box))


def overlap(first: Box, second: Box) -> Box | None:
    """The intersection of two boxes of one tensor; None if it is empty."""
    shared = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(first, second, strict=True))
    return shared if all(begin < end for begin, end in shared) else None


def relative(box: Box, outer: Box) -> Box:
    """A box in the coordinates of an outer one."""
    return tuple((a - c, b - c) for (a, b), (c, _) in zip(box, outer, strict=True))


def split(extent: int, count: int) -> tuple[Interval, ...]:
    """Divides an extent into `count` intervals as evenly as possible, the longer ones first."""
    size, longer = divmod(extent, count)
    ends = itertools.accumulate(size + (place < longer) for place in range(count))
    return tuple(itertools.pairwise([0, *ends]))


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A box of a tensor, or an addend of one, and the number of the device that has it."""

    device: int
    box: Box


@dataclasses.dataclass(frozen=True, slots=True)
class PartedTensor:
    """A tensor whose values several devices share.

    Attributes:
        shape: shape of the whole tensor.
        parts: cover the tensor; any two boxes are equal or disjoint.
        is_sum: whether parts with equal boxes are addends and not copies.
    """

    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    is_sum: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """A box to read from one part of a tensor.

    Attributes:
        part: the part's index in `PartedTensor.parts`.
        box: a box within the part, in coordinates of the whole tensor.
    """

    part: int
    box: Box


def pieces_of(tensor: PartedTensor, box: Box) -> tuple[Piece, ...]:
    """The pieces that fill a box, in order of their boxes.

    A sum has a piece for every addend, and pieces with equal boxes are added. The first of several
    copies is read.
    """
    found: dict[Box, list[Piece]] = {}
    for place, part in enumerate(tensor.parts):
        shared = overlap(part.box, box)
        if shared is not None and (tensor.is_sum or shared not in found):
            found.setdefault(shared, []).append(Piece(place, shared))
    return tuple(piece for _, pieces in sorted(found.items()) for piece in pieces)
