"""Ops that compute nothing: each value of their result is one of an input, or padding.

A part reads exactly the values that it gives. So a slice of a tensor is an Identity of the box that
is read, and of a concatenation a part reads those inputs alone that its box touches.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_interop.graph.ops import attribute_of
from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.node_maker import NodeMaker, own_attributes
from tf_interop.parallel.op_parts import Emit, Operation, OpPart, OpParts, Rule, boxes_of
from tf_interop.parallel.regions import Box, overlap, relative, sizes, whole
from tf_interop.parallel.rules.reductions import samples_of

_Part = tuple[tuple[Box | None, ...], Emit]
"""What a part reads, and how its nodes are made."""

_LAYOUT_AFTER = {(0, 3, 1, 2): "NCHW", (0, 2, 3, 1): "NHWC"}
"""The transpositions that bring an image into another layout."""


def _by_result(part_of: Callable[[Operation, Box], _Part | None]) -> Rule:
    """A rule that divides an op's only result, and asks what a box of it takes."""

    def divide(operation: Operation, degrees: Degrees) -> OpParts | None:
        (result,) = operation.output_shapes
        if len(result) not in (2, 4) or 0 in result:
            return None
        parts = []
        for place, box in boxes_of(result, operation.layout, degrees).items():
            part = part_of(operation, box)
            if part is None:
                return None
            parts.append(OpPart(place, part[0], (box,), part[1]))
        return OpParts(tuple(parts), (False,))

    return divide


def _dtype_of(operation: Operation) -> tf.DType:
    return tf.as_dtype(operation.node.attr["T"].type)


def _hand_on(operation: Operation) -> Emit:
    """Makes an Identity of the first box that is read."""
    dtype = _dtype_of(operation)
    return lambda maker, inputs: [maker("Identity", next(filter(None, inputs)), T=dtype)]


def _part_of_slice(operation: Operation, box: Box) -> _Part | None:
    begin = operation.input_values[1]
    if begin is None:
        return None
    read = tuple((a + first, b + first) for (a, b), first in zip(box, map(int, begin), strict=True))
    return (read, None, None), _hand_on(operation)


def _begin_of_strided_slice(operation: Operation, shape: Sequence[int]) -> list[int] | None:
    """Where a StridedSlice, or its gradient, cuts a tensor; None where it is no plain slice."""
    node = operation.node
    begin, strides = operation.input_values[1], operation.input_values[3]
    others = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    if begin is None or strides is None or any(attribute_of(node, name).i for name in others):
        return None
    if np.any(strides != 1):
        return None
    given = np.zeros(len(shape), np.int64)
    given[: len(begin)] = begin
    mask = attribute_of(node, "begin_mask").i
    from_start = [bool(mask >> axis & 1) for axis in range(len(shape))]
    given = np.where(from_start, 0, np.where(given < 0, given + shape, given))
    return [int(first) for first in given.clip(0, shape)]


def _part_of_strided_slice(operation: Operation, box: Box) -> _Part | None:
    begin = _begin_of_strided_slice(operation, operation.input_shapes[0])
    if begin is None:
        return None
    read = tuple((a + first, b + first) for (a, b), first in zip(box, begin, strict=True))
    return (read, None, None, None), _hand_on(operation)


def _part_of_strided_slice_gradient(operation: Operation, box: Box) -> _Part | None:
    begin = _begin_of_strided_slice(operation, operation.output_shapes[0])
    if begin is None:
        return None
    read, emit = _padded(operation, operation.input_shapes[4], begin, box)
    return (None, None, None, None, read), emit


def _part_of_concatenation(operation: Operation, box: Box) -> _Part | None:
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
    return (*reads, None), functools.partial(_concatenate, operation, axis)


def _concatenate(
    operation: Operation, axis: int, maker: NodeMaker, inputs: Sequence[str]
) -> Sequence[str]:
    """Joins those inputs that are read."""
    read = [name for name in inputs if name]
    if len(read) == 1:
        return _hand_on(operation)(maker, inputs)
    attributes = own_attributes(operation.node) | {"N": len(read), "Tidx": tf.int32}
    return [maker("ConcatV2", *read, maker.constant(axis), **attributes)]


def _part_of_padding(operation: Operation, box: Box) -> _Part | None:
    paddings = operation.input_values[1]
    if paddings is None:
        return None
    befores = [int(before) for before, _ in paddings]
    read, emit = _padded(operation, operation.input_shapes[0], befores, box)
    value: Box = ()
    return (read, None, *([value] if operation.node.op == "PadV2" else [])), emit


def _padded(
    operation: Operation, shape: Sequence[int], befores: Sequence[int], box: Box
) -> tuple[Box | None, Emit]:
    """What a box of a padded tensor takes of the tensor within, and how it is made.

    Args:
        operation: what is divided.
        shape: of the tensor within.
        befores: for each axis the padding before it.
        box: of the padded tensor.
    """
    at = tuple((before, before + size) for before, size in zip(befores, shape, strict=True))
    shared = overlap(at, box) if 0 not in shape else None
    if shared is None:
        return None, functools.partial(_fill, operation, sizes(box))
    margins = [(a - c, d - b) for (a, b), (c, d) in zip(shared, box, strict=True)]
    emit = functools.partial(_pad, operation, margins) if np.any(margins) else _hand_on(operation)
    return relative(shared, at), emit


def _fill(
    operation: Operation, shape: Sequence[int], maker: NodeMaker, inputs: Sequence[str]
) -> Sequence[str]:
    """Makes a box that is padding alone."""
    value = _padding_value(operation, maker, inputs)
    types = {"T": _dtype_of(operation), "index_type": tf.int32}
    return [maker("Fill", maker.constant(shape), value, **types)]


def _pad(
    operation: Operation,
    margins: Sequence[tuple[int, int]],
    maker: NodeMaker,
    inputs: Sequence[str],
) -> Sequence[str]:
    """Pads what is read of the tensor within."""
    of_tensor = 4 if operation.node.op == "StridedSliceGrad" else 0
    value = _padding_value(operation, maker, inputs)
    types = {"T": _dtype_of(operation), "Tpaddings": tf.int32}
    return [maker("PadV2", inputs[of_tensor], maker.constant(margins), value, **types)]


def _padding_value(operation: Operation, maker: NodeMaker, inputs: Sequence[str]) -> str:
    is_given = operation.node.op == "PadV2"
    return inputs[2] if is_given else maker.constant(0, _dtype_of(operation))


def _divide_transposition(operation: Operation, degrees: Degrees) -> OpParts | None:
    """Divides an image that is brought into another layout, as images in that are."""
    value = operation.input_values[1]
    permutation = () if value is None else tuple(map(int, value))
    if permutation not in _LAYOUT_AFTER:
        return None
    after = dataclasses.replace(operation, layout=_LAYOUT_AFTER[permutation])
    return _by_result(_part_of_transposition)(after, degrees)


def _part_of_transposition(operation: Operation, box: Box) -> _Part | None:
    permutation = operation.input_values[1]
    assert permutation is not None
    read = dict(zip(map(int, permutation), box, strict=True))

    def transpose(maker: NodeMaker, inputs: Sequence[str]) -> Sequence[str]:
        attributes = own_attributes(operation.node) | {"Tperm": tf.int32}
        return [maker("Transpose", inputs[0], maker.constant(permutation), **attributes)]

    return (tuple(read[axis] for axis in range(len(box))), None), transpose


def _divide_reshape(operation: Operation, degrees: Degrees) -> OpParts | None:
    """Divides along all axes where only axes of 1 come and go, else along a batch that stays."""
    (shape, *others), (result,) = operation.input_shapes, operation.output_shapes
    if 0 in shape:
        return None
    boxes = _boxes_of_reshape(shape, result, operation.layout, degrees)
    if boxes is None:
        return None

    def reshape(given: Box, maker: NodeMaker, inputs: Sequence[str]) -> Sequence[str]:
        types = {"T": _dtype_of(operation), "Tshape": tf.int32}
        return [maker("Reshape", inputs[0], maker.constant(sizes(given)), **types)]

    return OpParts(
        tuple(
            OpPart(
                place, (read, *[None for _ in others]), (given,), functools.partial(reshape, given)
            )
            for place, (read, given) in boxes.items()
        ),
        (False,),
    )


def _boxes_of_reshape(
    shape: Sequence[int], result: Sequence[int], layout: str, degrees: Degrees
) -> dict[int, tuple[Box, Box]] | None:
    """What each place reads and gives."""
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
    """A box of a tensor in another tensor that differs in axes of 1 alone."""
    intervals = iter([each for each, size in zip(box, shape, strict=True) if size > 1])
    return tuple(next(intervals) if size > 1 else (0, 1) for size in result)


def _divide_split(operation: Operation, degrees: Degrees) -> OpParts | None:
    """Divides each result by itself. A part reads the axis of the split whole."""
    is_even = operation.node.op == "Split"
    tensor, of_axis = (1, 0) if is_even else (0, 2)
    shape, value = operation.input_shapes[tensor], operation.input_values[of_axis]
    results = operation.output_shapes
    if value is None or len(shape) not in (2, 4) or any(0 in result for result in results):
        return None
    axis = int(value) % len(shape)
    begins = np.cumsum([0, *(result[axis] for result in results[:-1])])
    boxes = [boxes_of(result, operation.layout, degrees) for result in results]
    if any(each.keys() != boxes[0].keys() for each in boxes):
        return None

    def split(gives: Sequence[Box], maker: NodeMaker, inputs: Sequence[str]) -> Sequence[str]:
        types = {"T": _dtype_of(operation), "Index": tf.int32}
        names = []
        for begin, box in zip(begins, gives, strict=True):
            first = np.zeros(len(shape), np.int32)
            first[axis] = begin + box[axis][0]
            bounds = maker.constant(first), maker.constant(sizes(box))
            names.append(maker("Slice", inputs[tensor], *bounds, **types))
        return names

    parts = []
    for place in boxes[0]:
        gives = tuple(each[place] for each in boxes)
        box = tuple(
            (0, shape[axis]) if at == axis else interval for at, interval in enumerate(gives[0])
        )
        reads = (None, box) if is_even else (box, None, None)
        parts.append(OpPart(place, reads, gives, functools.partial(split, gives)))
    return OpParts(tuple(parts), (False,) * len(results))


RULES: dict[str, Rule] = {
    "ConcatV2": _by_result(_part_of_concatenation),
    "Slice": _by_result(_part_of_slice),
    "StridedSlice": _by_result(_part_of_strided_slice),
    "StridedSliceGrad": _by_result(_part_of_strided_slice_gradient),
    "Pad": _by_result(_part_of_padding),
    "PadV2": _by_result(_part_of_padding),
    "Transpose": _divide_transposition,
    "Reshape": _divide_reshape,
    "Squeeze": _divide_reshape,
    "ExpandDims": _divide_reshape,
    "Split": _divide_split,
    "SplitV": _divide_split,
}
"""The rules of these ops."""
