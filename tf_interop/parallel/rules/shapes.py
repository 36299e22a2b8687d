"""Rules for ops that only move values: slices, padding, concatenations, splits, reshapes.

A part reads only the values that it hands on. So a part of a slice is an Identity, and a part of a
concatenation reads only the inputs that its box touches.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_interop.graph.ops import attribute_of
from tf_interop.parallel.node_maker import NodeMaker, own_attributes
from tf_interop.parallel.op_parts import (
    Emit,
    Extents,
    Operation,
    OpPart,
    Place,
    Rule,
    box_at,
    by_result,
    extents_of,
)
from tf_interop.parallel.regions import Box, overlap, relative, sizes, whole
from tf_interop.parallel.types import Axis

LAYOUT_AFTER: dict[tuple[int, ...], str] = {(0, 3, 1, 2): "NCHW", (0, 2, 3, 1): "NHWC"}
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


def _part_of_slice(operation: Operation, box: Box) -> OpPart | None:
    begin = _begin_of_slice(operation, operation.input_shapes[0])
    if begin is None:
        return None
    read = tuple((a + first, b + first) for (a, b), first in zip(box, begin, strict=True))
    unread = (None,) * (len(operation.input_shapes) - 1)
    return OpPart((read, *unread), (box,), _hand_on(operation))


def _part_of_slice_gradient(operation: Operation, box: Box) -> OpPart | None:
    begin = _begin_of_slice(operation, operation.output_shapes[0])
    if begin is None:
        return None
    read, emit = _padded(operation, 4, begin, box)
    return OpPart((None, None, None, None, read), (box,), emit)


def _part_of_padding(operation: Operation, box: Box) -> OpPart | None:
    paddings = operation.input_values[1]
    if paddings is None:
        return None
    read, emit = _padded(operation, 0, [int(before) for before, _ in paddings], box)
    value: tuple[Box, ...] = ((),) * (len(operation.input_shapes) - 2)
    return OpPart((read, None, *value), (box,), emit)


def _padded(
    operation: Operation, place: int, befores: Sequence[int], box: Box
) -> tuple[Box | None, Emit]:
    """The box of the input at `place` that a box of the padded tensor reads, and its nodes."""
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


def _part_of_concatenation(operation: Operation, box: Box) -> OpPart | None:
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
    return OpPart((*reads, None), (box,), functools.partial(_concatenate, operation, axis))


def _concatenate(
    operation: Operation, axis: int, maker: NodeMaker, inputs: Sequence[str]
) -> Sequence[str]:
    read = [name for name in inputs if name]
    if len(read) == 1:
        return _hand_on(operation)(maker, inputs)
    attributes = own_attributes(operation.node) | {"N": len(read), "Tidx": tf.int32}
    return [maker("ConcatV2", *read, maker.constant(axis), **attributes)]


def _permutation(operation: Operation) -> tuple[int, ...]:
    value = operation.input_values[1]
    return () if value is None else tuple(map(int, value))


def _extents_of_transposition(operation: Operation) -> Extents | None:
    """Those of the result in its own layout, if the layout of an image changes."""
    layout = LAYOUT_AFTER.get(_permutation(operation))
    return None if layout is None else extents_of(operation.output_shapes[0], layout)


def _part_of_transposition(operation: Operation, place: Place) -> OpPart:
    permutation = _permutation(operation)
    box = box_at(place, operation.output_shapes[0], LAYOUT_AFTER[permutation])
    read = tuple(interval for _, interval in sorted(zip(permutation, box, strict=True)))

    def transpose(maker: NodeMaker, inputs: Sequence[str]) -> Sequence[str]:
        attributes = own_attributes(operation.node) | {"Tperm": tf.int32}
        return [maker("Transpose", inputs[0], maker.constant(permutation), **attributes)]

    return OpPart((read, None), (box,), transpose)


def _keeps_axes(operation: Operation) -> bool:
    """Whether only axes of size 1 appear or disappear."""
    (shape, *_), (result,) = operation.input_shapes, operation.output_shapes
    return [size for size in shape if size > 1] == [size for size in result if size > 1]


def _extents_of_reshape(operation: Operation) -> Extents | None:
    """All axes if only axes of size 1 change, else an unchanged batch."""
    (shape, *_), (result,) = operation.input_shapes, operation.output_shapes
    if 0 in shape:
        return None
    if _keeps_axes(operation):
        return extents_of(result, operation.layout) or extents_of(shape, operation.layout)
    return {Axis.SAMPLE: shape[0]} if shape[:1] == result[:1] else None


def _part_of_reshape(operation: Operation, place: Place) -> OpPart:
    (shape, *others), (result,) = operation.input_shapes, operation.output_shapes
    if not _keeps_axes(operation):
        read, given = ((place[Axis.SAMPLE], *whole(each[1:])) for each in (shape, result))
    elif extents_of(result, operation.layout):
        given = box_at(place, result, operation.layout)
        read = _moved(given, result, shape)
    else:
        read = box_at(place, shape, operation.layout)
        given = _moved(read, shape, result)

    def reshape(maker: NodeMaker, inputs: Sequence[str]) -> Sequence[str]:
        return [maker.reshape(inputs[0], sizes(given), operation.dtype)]

    return OpPart((read, *[None for _ in others]), (given,), reshape)


def _moved(box: Box, shape: Sequence[int], result: Sequence[int]) -> Box:
    """A box in the coordinates of a shape that differs only in axes of size 1."""
    intervals = iter([each for each, size in zip(box, shape, strict=True) if size > 1])
    return tuple(next(intervals) if size > 1 else (0, 1) for size in result)


def _axis_of_split(operation: Operation) -> int | None:
    value = operation.input_values[0 if operation.node.op == "Split" else 2]
    return None if value is None else int(value) % len(operation.output_shapes[0])


def _extents_of_split(operation: Operation) -> Extents | None:
    """Those of a result. If results differ in size, their axis stays whole."""
    axis, results = _axis_of_split(operation), operation.output_shapes
    if axis is None or any(0 in result for result in results):
        return None
    size = results[0][axis] if len(set(results)) == 1 else 1
    return extents_of((*results[0][:axis], size, *results[0][axis + 1 :]), operation.layout)


def _part_of_split(operation: Operation, place: Place) -> OpPart:
    """Reads all of the axis that is split."""
    axis, results = _axis_of_split(operation), operation.output_shapes
    assert axis is not None
    tensor = 1 if operation.node.op == "Split" else 0
    box = box_at(place, results[0], operation.layout)
    before, after = box[:axis], box[axis + 1 :]
    is_even = len(set(results)) == 1
    gives = [box if is_even else (*before, (0, each[axis]), *after) for each in results]
    reads: list[Box | None] = [None] * len(operation.input_shapes)
    reads[tensor] = (*before, (0, operation.input_shapes[tensor][axis]), *after)

    def split(maker: NodeMaker, inputs: Sequence[str]) -> Sequence[str]:
        names, begin = [], 0
        for given, result in zip(gives, results, strict=True):
            first = [begin + given[axis][0] if at == axis else 0 for at in range(len(box))]
            names.append(maker.slice(inputs[tensor], first, sizes(given), operation.dtype))
            begin += result[axis]
        return names

    return OpPart(tuple(reads), tuple(gives), split)


RULES: dict[str, Rule] = {
    "ConcatV2": by_result(_part_of_concatenation),
    **dict.fromkeys(("Slice", "StridedSlice"), by_result(_part_of_slice)),
    "StridedSliceGrad": by_result(_part_of_slice_gradient),
    **dict.fromkeys(("Pad", "PadV2"), by_result(_part_of_padding)),
    "Transpose": Rule(_extents_of_transposition, _part_of_transposition),
    **dict.fromkeys(
        ("Reshape", "Squeeze", "ExpandDims"), Rule(_extents_of_reshape, _part_of_reshape)
    ),
    **dict.fromkeys(("Split", "SplitV"), Rule(_extents_of_split, _part_of_split)),
}
