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
from tf_interop.parallel.op_parts import Operation, OpPart, Rule, boxes_of
from tf_interop.parallel.regions import Box, Interval, sizes, whole
from tf_interop.parallel.rules.boxes import BoxPart, by_operand, by_result, copied
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


def _part_of_reduced(operation: Operation, box: Box) -> BoxPart | None:
    shape, axes = operation.input_shapes[0], operation.input_values[1]
    if axes is None:
        return None
    reduced = sorted({int(axis) % len(shape) for axis in np.ravel(axes)})
    share = math.prod((box[axis][1] - box[axis][0]) / shape[axis] for axis in reduced)
    if share < 1 and operation.node.op not in _SUMS:
        return None
    keeps = attribute_of(operation.node, "keep_dims").b
    given = tuple(
        (0, 1) if axis in reduced else interval
        for axis, interval in enumerate(box)
        if keeps or axis not in reduced
    )
    return (box, None), (given,), functools.partial(_reduce, operation, reduced, share)


def _reduce(
    operation: Operation, axes: list[int], share: float, maker: NodeMaker, inputs: Sequence[str]
) -> Sequence[str]:
    """A part's reduction; of a mean what it contributes to that of all values."""
    attributes = own_attributes(operation.node) | {"Tidx": tf.int32}
    result = maker(operation.node.op, inputs[0], maker.constant(axes), **attributes)
    if operation.node.op != "Mean" or share == 1:
        return [result]
    dtype = tf.as_dtype(operation.node.attr["T"].type)
    return [maker("Mul", result, maker.constant(share, dtype), T=dtype)]


def _part_of_repetition(operation: Operation, box: Box) -> BoxPart | None:
    """A part of a BroadcastTo, or of a Tile that is one."""
    read = broadcast_box(operation.input_shapes[0], operation.output_shapes[0], box)
    if read is None:
        return None
    return (read, None), (box,), functools.partial(_repeat, operation, read, box)


def _repeat(
    operation: Operation, read: Box, given: Box, maker: NodeMaker, inputs: Sequence[str]
) -> Sequence[str]:
    """Repeats what a part reads until it fills what it gives."""
    if operation.node.op == "BroadcastTo":
        numbers, dtype = np.array(sizes(given)), "Tidx"
    else:
        numbers, dtype = np.floor_divide(sizes(given), sizes(read)), "Tmultiples"
    attributes = own_attributes(operation.node) | {dtype: tf.int32}
    return [maker(operation.node.op, inputs[0], maker.constant(numbers), **attributes)]


def _divide_samples(operation: Operation, degrees: Degrees) -> list[OpPart] | None:
    """Divides all operands and results along their first axis, where that is the batch."""
    shapes = operation.input_shapes + operation.output_shapes
    if len(shapes[0]) < 2 or 0 in shapes[0] or len({shape[:1] for shape in shapes}) > 1:
        return None

    def boxes(samples: Interval, shapes: Sequence[tuple[int, ...]]) -> tuple[Box, ...]:
        return tuple((samples, *whole(shape[1:])) for shape in shapes)

    return [
        OpPart(
            place,
            boxes(samples, operation.input_shapes),
            boxes(samples, operation.output_shapes),
            copied(operation),
        )
        for place, samples in samples_of(shapes[0][0], degrees).items()
    ]


RULES: dict[str, Rule] = {
    **dict.fromkeys((*_SUMS, "Max", "Min"), by_operand(_part_of_reduced)),
    **dict.fromkeys(("Tile", "BroadcastTo"), by_result(_part_of_repetition)),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _divide_samples),
    "SoftmaxCrossEntropyWithLogits": _divide_samples,
    "SparseSoftmaxCrossEntropyWithLogits": _divide_samples,
}
