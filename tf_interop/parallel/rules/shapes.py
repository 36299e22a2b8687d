"""Rules for ops that only move values: slices, padding, concatenations, splits, reshapes.

A part reads only the values that it hands on. So a part of a slice is an Identity, and a part of a
concatenation reads only the inputs that its box touches.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_interop.graph.ops import attribute_of
from tf_interop.parallel.node_maker import NodeMaker, own_attributes
from tf_interop.parallel.op_parts import (
    BoxPart,
    Emit,
    Operation,
    OpPart,
    Rule,
    boxes_of,
    by_result,
)
from tf_interop.parallel.regions import Box, overlap, relative, sizes, whole
from tf_interop.parallel.rules.elementwise import samples_of
from tf_interop.parallel.types import Degrees

LAYOUT_AFTER = {(0, 3, 1, 2): "NCHW", (0, 2, 3, 1): "NHWC"}
"""The permutations that change an image's layout, and the new layout."""


def _hand_on(operation: Operation) -> Emit:
    """Makes an Identity of the only box read."""
    return lambda maker, inputs: [maker("Identity", next(filter(None, inputs)), T=operation.dtype)]


def _begin_of_slice(operation: Operation, shape: Sequence[int]) -> list[int] | None:
    """Where a slice, or the gradient of one, begins; None if unknown or not a plain slice."""
    node = operation.node
    begin = operation.input_values[1]
    if begin is None or node.op == "Slice":
        return None if begin is None else list(map(int, begin))
    others = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    strides = operation.input_values[3]
    if strides is None or np.any(strides != 1) or any(attribute_of(node, it).i for it in others):
        return None
    given = np.zeros(len(shape), np.int64)
    given[: len(begin)] = begin
    mask = attribute_of(node, "begin_mask").i
    from_start = [bool(mask >> axis & 1) for axis in range(len(shape))]
    given = np.where(from_start, 0, np.where(given < 0, given + shape, given))
    return [int(first) for first in given.clip(0, shape)]


def _part_of_slice(operation: Operation, box: Box) -> BoxPart | None:
    begin = _begin_of_slice(operation, operation.input_shapes[0])
    if begin is None:
        return None
    read = tuple((a + first, b + first) for (a, b), first in zip(box, begin, strict=True))
    unread = (None,) * (len(operation.input_shapes) - 1)
    return (read, *unread), (box,), _hand_on(operation)


def _part_of_slice_gradient(operation: Operation, box: Box) -> BoxPart | None:
    begin = _begin_of_slice(operation, operation.output_shapes[0])
    if begin is None:
        return None
    read, emit = _padded(operation, 4, begin, box)
    return (None, None, None, None, read), (box,), emit


def _part_of_padding(operation: Operation, box: Box) -> BoxPart | None:
    paddings = operation.input_values[1]
    if paddings is None:
        return None
    read, emit = _padded(operation, 0, [int(before) for before, _ in paddings], box)
    value: tuple[Box, ...] = ((),) * (len(operation.input_shapes) - 2)
    return (read, None, *value), (box,), emit


def _padded(
    operation: Operation, place: int, befores: Sequence[int], box: Box
) -> tuple[Box | None, Emit]:
    """The box of the inner tensor that a box of a padded tensor reads, and its nodes.

    Args:
        operation: the padding.
        place: the input that is padded.
        befores: the padding before each axis.
        box: the box of the padded tensor.
    """
    shape, dtype = operation.input_shapes[place], operation.dtype
    at = tuple((before, before + size) for before, size in zip(befores, shape, strict=True))
    shared = overlap(at, box) if 0 not in shape else None

    def emit(maker: NodeMaker, inputs: Sequence[str]) -> Sequence[str]:
        value = inputs[2] if operation.node.op == "PadV2" else ""
        if shared is None:
            return [maker.fill(sizes(box), dtype, value)]
        margins = [(a - c, d - b) for (a, b), (c, d) in zip(shared, box, strict=True)]
        if not np.any(margins):
            return _hand_on(operation)(maker, inputs)
        return [maker.pad(inputs[place], margins, dtype, value)]

    return None if shared is None else relative(shared, at), emit


def _part_of_concatenation(operation: Operation, box: Box) -> BoxPart | None:
    *shapes, _ = operation.input_shapes
    value = operation.input_values[-1]
    if value is None:
        return None
    axis = int(value) % len(box)
    reads: list[Box | None] = []
    begin = 0
    for shape in shapes:
        at = tuple(
            (begin, begin + size) if place == axis else (0, size)
            for place, size in enumerate(shape)
        )
        shared = overlap(at, box) if 0 not in shape else None
        reads.append(None if shared is None else relative(shared, at))
        begin += shape[axis]
    return (*reads, None), (box,), functools.partial(_concatenate, operation, axis)


def _concatenate(
    operation: Operation, axis: int, maker: NodeMaker, inputs: Sequence[str]
) -> Sequence[str]:
    read = [name for name in inputs if name]
    if len(read) == 1:
        return _hand_on(operation)(maker, inputs)
    attributes = own_attributes(operation.node) | {"N": len(read), "Tidx": tf.int32}
    return [maker("ConcatV2", *read, maker.constant(axis), **attributes)]


def _divide_transposition(operation: Operation, degrees: Degrees) -> Sequence[OpPart] | None:
    """Divides a change of layout as images are divided in the new layout."""
    value = operation.input_values[1]
    permutation = () if value is None else tuple(map(int, value))
    if permutation not in LAYOUT_AFTER:
        return None
    after = dataclasses.replace(operation, layout=LAYOUT_AFTER[permutation])

    def transpose(maker: NodeMaker, inputs: Sequence[str]) -> Sequence[str]:
        attributes = own_attributes(operation.node) | {"Tperm": tf.int32}
        return [maker("Transpose", inputs[0], maker.constant(permutation), **attributes)]

    def part_of(operation: Operation, box: Box) -> BoxPart:
        read = tuple(interval for _, interval in sorted(zip(permutation, box, strict=True)))
        return (read, None), (box,), transpose

    return by_result(part_of)(after, degrees)


def _divide_reshape(operation: Operation, degrees: Degrees) -> list[OpPart] | None:
    """Divides along all axes if only axes of size 1 change, else along an unchanged batch."""
    (shape, *others), (result,) = operation.input_shapes, operation.output_shapes
    if 0 in shape:
        return None
    boxes = _boxes_of_reshape(shape, result, operation.layout, degrees)
    if boxes is None:
        return None

    def reshape(given: Box, maker: NodeMaker, inputs: Sequence[str]) -> Sequence[str]:
        return [maker.reshape(inputs[0], sizes(given), operation.dtype)]

    return [
        OpPart(place, (read, *[None for _ in others]), (given,), functools.partial(reshape, given))
        for place, (read, given) in boxes.items()
    ]


def _boxes_of_reshape(
    shape: tuple[int, ...], result: tuple[int, ...], layout: str, degrees: Degrees
) -> dict[int, tuple[Box, Box]] | None:
    """The box that each place reads, and its box of the result."""
    if [size for size in shape if size > 1] == [size for size in result if size > 1]:
        if len(result) in (2, 4):
            given = boxes_of(result, layout, degrees)
            return {place: (_moved(box, result, shape), box) for place, box in given.items()}
        if len(shape) in (2, 4):
            read = boxes_of(shape, layout, degrees)
            return {place: (box, _moved(box, shape, result)) for place, box in read.items()}
        return None
    if not shape or not result or shape[0] != result[0]:
        return None
    return {
        place: ((samples, *whole(shape[1:])), (samples, *whole(result[1:])))
        for place, samples in samples_of(shape[0], degrees).items()
    }


def _moved(box: Box, shape: Sequence[int], result: Sequence[int]) -> Box:
    """A box in the coordinates of a shape that differs only in axes of size 1."""
    intervals = iter([each for each, size in zip(box, shape, strict=True) if size > 1])
    return tuple(next(intervals) if size > 1 else (0, 1) for size in result)


def _divide_split(operation: Operation, degrees: Degrees) -> list[OpPart] | None:
    """Divides each result. A part reads all of the axis that is split."""
    is_even = operation.node.op == "Split"
    tensor, of_axis = (1, 0) if is_even else (0, 2)
    shape, value = operation.input_shapes[tensor], operation.input_values[of_axis]
    results = operation.output_shapes
    if value is None or len(shape) not in (2, 4) or any(0 in result for result in results):
        return None
    axis = int(value) % len(shape)
    boxes = [boxes_of(result, operation.layout, degrees) for result in results]
    if any(each.keys() != boxes[0].keys() for each in boxes):
        return None

    def split(gives: Sequence[Box], maker: NodeMaker, inputs: Sequence[str]) -> Sequence[str]:
        names = []
        begin = 0
        for box, result in zip(gives, results, strict=True):
            first = [begin + box[axis][0] if at == axis else 0 for at in range(len(shape))]
            names.append(maker.slice(inputs[tensor], first, sizes(box), operation.dtype))
            begin += result[axis]
        return names

    parts = []
    for place in boxes[0]:
        gives = tuple(each[place] for each in boxes)
        read = (*gives[0][:axis], (0, shape[axis]), *gives[0][axis + 1 :])
        reads = (None, read) if is_even else (read, None, None)
        parts.append(OpPart(place, reads, gives, functools.partial(split, gives)))
    return parts


RULES: dict[str, Rule] = {
    "ConcatV2": by_result(_part_of_concatenation),
    **dict.fromkeys(("Slice", "StridedSlice"), by_result(_part_of_slice)),
    "StridedSliceGrad": by_result(_part_of_slice_gradient),
    **dict.fromkeys(("Pad", "PadV2"), by_result(_part_of_padding)),
    "Transpose": _divide_transposition,
    **dict.fromkeys(("Reshape", "Squeeze", "ExpandDims"), _divide_reshape),
    **dict.fromkeys(("Split", "SplitV"), _divide_split),
}
