"""Ops that go over an axis, and what their gradients begin with.

Of a sum or a mean over a divided axis each part gives an addend: its own sum, or its own mean times
its share of the values. Other ops have to see the axis whole.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_interop.graph.ops import attribute_of
from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.node_maker import NodeMaker, own_attributes
from tf_interop.parallel.op_parts import (
    Operation,
    OpPart,
    OpParts,
    Rule,
    boxes_of,
    parts_with_addends,
)
from tf_interop.parallel.regions import Box, Interval, sizes, whole
from tf_interop.parallel.rules.copies import copy_of
from tf_interop.parallel.rules.elementwise import broadcast_box

_SUMS = ("Sum", "Mean")


def samples_of(count: int, degrees: Degrees) -> dict[int, Interval]:
    """How a batch is divided where nothing else can be.

    Args:
        count: of the samples.
        degrees: of the layer.

    Returns:
        The samples of each place that has some: those that come first along all other axes.
    """
    return {place: box[0] for place, box in boxes_of((count, 1), "NHWC", degrees).items()}


def _divide_reduction(operation: Operation, degrees: Degrees) -> OpParts | None:
    """Divides what is reduced."""
    shape, axes = operation.input_shapes[0], operation.input_values[1]
    if len(shape) not in (2, 4) or 0 in shape or axes is None:
        return None
    reduced = {int(axis) % len(shape) for axis in np.ravel(axes)}
    keeps = attribute_of(operation.node, "keep_dims").b
    parts = []
    for place, box in boxes_of(shape, operation.layout, degrees).items():
        if operation.node.op not in _SUMS and any(
            box[axis] != (0, shape[axis]) for axis in reduced
        ):
            return None
        given = tuple(
            (0, 1) if axis in reduced else interval
            for axis, interval in enumerate(box)
            if keeps or axis not in reduced
        )
        ratio = math.prod((box[axis][1] - box[axis][0]) / shape[axis] for axis in reduced)
        emit = functools.partial(_reduce, operation, tuple(sorted(reduced)), ratio)
        parts.append(OpPart(place, (box, None), (given,), emit))
    return parts_with_addends(parts)


def _reduce(
    operation: Operation,
    axes: tuple[int, ...],
    share: float,
    maker: NodeMaker,
    inputs: Sequence[str],
) -> Sequence[str]:
    """A part's reduction; of a mean what it contributes to that of all values."""
    attributes = own_attributes(operation.node) | {"Tidx": tf.int32}
    result = maker(operation.node.op, inputs[0], maker.constant(axes), **attributes)
    if operation.node.op != "Mean" or share == 1:
        return [result]
    dtype = tf.as_dtype(operation.node.attr["T"].type)
    return [maker("Mul", result, maker.constant(share, dtype), T=dtype)]


def _divide_repetition(operation: Operation, degrees: Degrees) -> OpParts | None:
    """Divides the result of a BroadcastTo, or of a Tile that is one."""
    shape, (result,) = operation.input_shapes[0], operation.output_shapes
    if len(result) not in (2, 4) or 0 in result:
        return None
    parts = []
    for place, box in boxes_of(result, operation.layout, degrees).items():
        read = broadcast_box(shape, result, box)
        if read is None:
            return None
        emit = functools.partial(_repeat, operation, read, box)
        parts.append(OpPart(place, (read, None), (box,), emit))
    return OpParts(tuple(parts), (False,))


def _repeat(
    operation: Operation, read: Box, given: Box, maker: NodeMaker, inputs: Sequence[str]
) -> Sequence[str]:
    """Repeats what a part reads until it fills what it gives."""
    attributes = own_attributes(operation.node)
    if operation.node.op == "BroadcastTo":
        numbers = maker.constant(sizes(given))
        return [maker("BroadcastTo", inputs[0], numbers, **attributes | {"Tidx": tf.int32})]
    numbers = maker.constant(np.floor_divide(sizes(given), sizes(read)))
    return [maker("Tile", inputs[0], numbers, **attributes | {"Tmultiples": tf.int32})]


def _divide_samples(operation: Operation, degrees: Degrees) -> OpParts | None:
    """Divides all operands and results along their first axis, where that is the batch."""
    shapes = operation.input_shapes + operation.output_shapes
    if len(shapes[0]) < 2 or 0 in shapes[0] or len({shape[:1] for shape in shapes}) > 1:
        return None
    emit = copy_of(operation)

    def boxes(samples: Interval, shapes: Sequence[tuple[int, ...]]) -> tuple[Box, ...]:
        return tuple((samples, *whole(shape[1:])) for shape in shapes)

    parts = tuple(
        OpPart(
            place,
            boxes(samples, operation.input_shapes),
            boxes(samples, operation.output_shapes),
            emit,
        )
        for place, samples in samples_of(shapes[0][0], degrees).items()
    )
    return OpParts(parts, (False,) * len(operation.output_shapes))


RULES: dict[str, Rule] = {
    **dict.fromkeys(("Sum", "Mean", "Max", "Min"), _divide_reduction),
    **dict.fromkeys(("Tile", "BroadcastTo"), _divide_repetition),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _divide_samples),
    "SoftmaxCrossEntropyWithLogits": _divide_samples,
    "SparseSoftmaxCrossEntropyWithLogits": _divide_samples,
}
"""The rules of these ops."""
