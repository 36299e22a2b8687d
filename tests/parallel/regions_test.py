"""Boxes and pieces, with arrays as the model."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_interop.parallel.regions import (
    Box,
    Interval,
    Part,
    PartedTensor,
    Piece,
    overlap,
    pieces_of,
    relative,
    sizes,
    split,
    volume,
    whole,
)

SHAPES = st.lists(st.integers(1, 5), max_size=4).map(tuple)
DEVICES = st.integers(0, 3)


@st.composite
def boxes_in(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    """A box of a tensor."""

    def interval(size: int) -> Interval:
        begin = draw(st.integers(0, size - 1))
        return begin, draw(st.integers(begin + 1, size))

    return tuple(interval(size) for size in shape)


@st.composite
def parted_tensors(draw: st.DrawFn) -> PartedTensor:
    """A tensor in a grid of parts, each there once or several times."""
    shape = draw(SHAPES)
    grid: list[Box] = [()]
    for size in shape:
        intervals = split(size, draw(st.integers(1, size)))
        grid = [(*box, interval) for box in grid for interval in intervals]
    parts = [
        Part(device, box)
        for box in grid
        for device in draw(st.lists(DEVICES, min_size=1, max_size=3))
    ]
    return PartedTensor(shape, tuple(draw(st.permutations(parts))), draw(st.booleans()))


def at(box: Box) -> tuple[slice, ...]:
    return tuple(slice(*interval) for interval in box)


def mask(shape: tuple[int, ...], box: Box) -> np.ndarray:
    values = np.zeros(shape, int)
    values[at(box)] = 1
    return values


@given(st.data(), SHAPES)
def test_boxes_are_what_slices_are(data: st.DataObject, shape: tuple[int, ...]) -> None:
    box, other = data.draw(boxes_in(shape)), data.draw(boxes_in(shape))
    values = np.arange(math.prod(shape)).reshape(shape)
    assert values[at(whole(shape))].shape == shape
    assert values[at(box)].shape == sizes(box)
    assert values[at(box)].size == volume(box)
    both = mask(shape, box) & mask(shape, other)
    shared = overlap(box, other)
    assert overlap(other, box) == shared
    if shared is None:
        assert not both.any()
        return
    np.testing.assert_array_equal(mask(shape, shared), both)
    for outer in (box, other):
        np.testing.assert_array_equal(
            values[at(outer)][at(relative(shared, outer))], values[at(shared)]
        )


@given(st.data(), parted_tensors())
def test_pieces_make_a_box_complete(data: st.DataObject, tensor: PartedTensor) -> None:
    box = data.draw(boxes_in(tensor.shape))
    # Each part of a sum holds an addend of its own.
    held = np.array(data.draw(st.lists(st.integers(-9, 9), min_size=1)))
    held = np.resize(held, len(tensor.parts)) if tensor.is_sum else np.ones(len(tensor.parts), int)
    expected = np.zeros(tensor.shape, int)
    for part, value in zip(tensor.parts, held, strict=True):
        if tensor.is_sum:
            expected[at(part.box)] += value
        else:
            expected[at(part.box)] = value
    gathered = np.zeros(sizes(box), int)
    for piece in pieces_of(tensor, box):
        assert overlap(piece.box, tensor.parts[piece.part].box) == piece.box
        gathered[at(relative(piece.box, box))] += held[piece.part]
    np.testing.assert_array_equal(gathered, expected[at(box)])


def test_pieces_are_in_order_of_their_boxes() -> None:
    tensor = PartedTensor((4,), (Part(1, ((2, 4),)), Part(0, ((0, 2),)), Part(0, ((2, 4),))))
    assert pieces_of(tensor, ((1, 4),)) == (Piece(1, ((1, 2),)), Piece(0, ((2, 4),)))


@given(st.integers(1, 40), st.data())
def test_intervals_of_a_split_are_even_and_cover_all(extent: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, extent))
    intervals = split(extent, count)
    lengths = [end - begin for begin, end in intervals]
    assert len(intervals) == count
    assert [each for interval in intervals for each in range(*interval)] == list(range(extent))
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("count", [0, 4])
def test_an_extent_has_no_empty_intervals(count: int) -> None:
    with pytest.raises(ValueError, match=f"Expected 1 to 3 parts of an extent of 3, got {count}"):
        split(3, count)
