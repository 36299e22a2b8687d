"""Rules for elementwise ops, and for ops along an axis: sums, means, softmax, broadcasts.

Parts of a sum or a mean over a divided axis are addends: a part's own sum, or its own mean times
its share of the values. Other ops along an axis need it whole, as local response normalizations do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_interop.graph.ops import attribute_of
from tf_interop.parallel.node_maker import NodeMaker, own_attributes
from tf_interop.parallel.op_parts import (
    Extents,
    Operation,
    OpPart,
    Place,
    Rule,
    by_operand,
    by_result,
    copied,
)
from tf_interop.parallel.regions import Box, sizes, whole
from tf_interop.parallel.types import Axis

_SUMS = ("Sum", "Mean")


def _broadcast_box(shape: Sequence[int], result: Sequence[int], box: Box) -> Box | None:
    """The box of an operand that NumPy's rules broadcast to a box of the result.

    It spans each dimension of size 1. None if the operand cannot be broadcast to the result.
    """
    lacking = len(result) - len(shape)
    if lacking < 0:
        return None
    read = []
    for size, whole_size, interval in zip(shape, result[lacking:], box[lacking:], strict=True):
        if size not in (1, whole_size):
            return None
        read.append(interval if size == whole_size else (0, 1))
    return tuple(read)


def part_of_elementwise(operation: Operation, box: Box) -> OpPart | None:
    """The part that computes a box of the result; None if the operands cannot be cut so."""
    [result] = operation.output_shapes
    reads = tuple(_broadcast_box(shape, result, box) for shape in operation.input_shapes)
    return None if None in reads else OpPart(reads, (box,), copied(operation))


def _part_of_reduction(operation: Operation, box: Box) -> OpPart | None:
    shape, axes = operation.input_shapes[0], operation.input_values[1]
    if axes is None:
        return None
    reduced = sorted({int(axis) % len(shape) for axis in np.ravel(axes)})
    share = math.prod((box[axis][1] - box[axis][0]) / shape[axis] for axis in reduced)
    is_rounded = operation.node.op == "Mean" and operation.dtype.is_integer
    if share < 1 and (is_rounded or operation.node.op not in _SUMS):
        return None
    keeps = attribute_of(operation.node, "keep_dims").b
    given = tuple(
        (0, 1) if axis in reduced else interval
        for axis, interval in enumerate(box)
        if keeps or axis not in reduced
    )
    return OpPart((box, None), (given,), functools.partial(_reduce, operation, reduced, share))


def _reduce(
    operation: Operation, axes: list[int], share: float, maker: NodeMaker, inputs: Sequence[str]
) -> Sequence[str]:
    attributes = own_attributes(operation.node) | {"Tidx": tf.int32}
    result = maker(operation.node.op, inputs[0], maker.constant(axes), **attributes)
    if operation.node.op != "Mean" or share == 1:
        return [result]
    dtype = operation.dtype
    return [maker("Mul", result, maker.constant(share, dtype), T=dtype)]


def _part_of_repetition(operation: Operation, box: Box) -> OpPart | None:
    """A part of a BroadcastTo, or of a Tile that repeats single values."""
    read = _broadcast_box(operation.input_shapes[0], operation.output_shapes[0], box)
    if read is None:
        return None
    return OpPart((read, None), (box,), functools.partial(_repeat, operation, read, box))


def _repeat(
    operation: Operation, read: Box, given: Box, maker: NodeMaker, inputs: Sequence[str]
) -> Sequence[str]:
    if operation.node.op == "BroadcastTo":
        numbers, dtype = np.array(sizes(given)), "Tidx"
    else:
        numbers, dtype = np.floor_divide(sizes(given), sizes(read)), "Tmultiples"
    attributes = own_attributes(operation.node) | {dtype: tf.int32}
    return [maker(operation.node.op, inputs[0], maker.constant(numbers), **attributes)]


def _batch(operation: Operation) -> Extents | None:
    """The batch of all operands and results, if all have the same; their other axes stay whole."""
    shapes = operation.input_shapes + operation.output_shapes
    if len(shapes[0]) < 2 or 0 in shapes[0] or len({shape[:1] for shape in shapes}) > 1:
        return None
    return {Axis.SAMPLE: shapes[0][0]}


def _part_of_batch(operation: Operation, place: Place) -> OpPart:
    reads, gives = (
        tuple((place[Axis.SAMPLE], *whole(shape[1:])) for shape in shapes)
        for shapes in (operation.input_shapes, operation.output_shapes)
    )
    return OpPart(reads, gives, copied(operation))


def _pixels(operation: Operation) -> Extents | None:
    """The pixels of images whose channels stay together."""
    shapes = {*operation.input_shapes, *operation.output_shapes}
    shape = operation.input_shapes[0]
    if len(shapes) > 1 or len(shape) != 4 or operation.layout != "NHWC":
        return None
    return dict(zip((Axis.SAMPLE, Axis.HEIGHT, Axis.WIDTH), shape[:3], strict=True))


def _part_of_pixels(operation: Operation, place: Place) -> OpPart:
    channels = (0, operation.input_shapes[0][3])
    box = (place[Axis.SAMPLE], place[Axis.HEIGHT], place[Axis.WIDTH], channels)
    return OpPart((box,) * len(operation.input_shapes), (box,), copied(operation))


_ELEMENTWISE = (
    # Activations and their gradients.
    "Relu ReluGrad Relu6 Relu6Grad LeakyRelu LeakyReluGrad Elu EluGrad Selu SeluGrad "
    "Softplus SoftplusGrad Softsign SoftsignGrad Sigmoid SigmoidGrad Tanh TanhGrad "
    # Arithmetic.
    "Add AddV2 AddN Sub Mul MulNoNan RealDiv Div DivNoNan Maximum Minimum Pow SquaredDifference "
    "Abs Neg Sign Square Sqrt SqrtGrad Rsqrt RsqrtGrad Reciprocal Inv ReciprocalGrad InvGrad "
    "Exp Expm1 Log Log1p Erf Floor Ceil Rint Round ClipByValue "
    # Comparisons and choices.
    "Greater GreaterEqual Less LessEqual Equal NotEqual SelectV2 "
    # Values that are passed on.
    "Identity Snapshot StopGradient PreventGradient Cast ZerosLike OnesLike"
)

ELEMENTWISE_OPS = frozenset(_ELEMENTWISE.split())
"""Ops whose result is as large as the largest operand, with every value computed alike."""

RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE_OPS, by_result(part_of_elementwise)),
    **dict.fromkeys((*_SUMS, "Max", "Min"), by_operand(_part_of_reduction)),
    **dict.fromkeys(("Tile", "BroadcastTo"), by_result(_part_of_repetition)),
    **dict.fromkeys(
        (
            *("Softmax", "LogSoftmax"),
            *("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"),
        ),
        Rule(_batch, _part_of_batch),
    ),
    **dict.fromkeys(("LRN", "LRNGrad"), Rule(_pixels, _part_of_pixels)),
}
