"""Evaluates nodes at a few random pixels, to prove what a part of a graph computes.

Grappler writes one expression in many ways: it hoists factors, joins additions, replaces divisions.
So a pass does not compare such a part with a list of forms. It evaluates both the part and the
formula with random numbers and compares the results. The expressions are rational functions and a
reciprocal root of their inputs. Two different ones agree only at the zeros of their difference, and
a random point is none of them, except with a probability of zero.

The images are large, so only `SAMPLES` pixels of each are evaluated. Each stands for an equal part
of the image. A mean over all pixels is then the mean over the samples, and a sum is that mean times
the number of pixels. Channels do not meet in a normalization, so the channels of a sample are
`POINTS` independent evaluations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, types_pb2

from tf_interop.graph.ops import attribute_of

SAMPLES = 5
"""The pixels of an image that are evaluated."""

POINTS = 4
"""The independent random points."""

# Results are in float64, but constants of the graph are in float32: within 6e-8 of the number that
# they stand for.
_TOLERANCE = 2e-6
_TOLERANCE_OF_ONE = 1e-3
# The most elements of a constant that is read: the channels of a wide layer.
_MOST_CONSTANTS = 16384

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Sampled(NamedTuple):
    """A tensor of real numbers.

    Attributes:
        data: `[SAMPLES, POINTS]`, where a 1 stands for equal values.
        shape: the shape of the whole tensor.
        in_other_layout: whether its axes are in the other order of `NHWC` and `NCHW`. TensorFlow
            changes the layout of convolutions on a GPU, and transposes around some operations.
    """

    data: Floats
    shape: tuple[int, ...]
    in_other_layout: bool = False


Value = Sampled | Integers
"""The value of a tensor: real numbers at sampled pixels, or all integers."""


class ImageShapes:
    """The shapes of one normalization's tensors: its images, vectors of channels, and scalars.

    Attributes:
        image: the shape of its images, `[N, H, W, C]` or `[N, C, H, W]`.
        channel_axis: 3 or 1.
        pixels: N times H times W.
        vectors: the shapes of vectors: flat, in the layout of the image, and in the other one.
    """

    def __init__(self, image: tuple[int, ...], channel_axis: int) -> None:
        """Every size is known, and there are at least two pixels."""
        self.image, self.channel_axis = image, channel_axis
        channels = image[channel_axis]
        self.pixels = math.prod(image) // channels
        vector = tuple(channels if i == channel_axis else 1 for i in range(4))
        self._known = {image, (channels,), vector, *((1,) * rank for rank in range(5))}
        self._to_other = _TO_NCHW if channel_axis == 3 else _TO_NHWC
        other_image, other_vector = (
            tuple(each[i] for i in self._to_other) for each in (image, vector)
        )
        self._others = {other_image, other_vector}
        self.vectors = ((channels,), vector, other_vector)

    def is_image(self, sampled: Sampled) -> bool:
        """Whether a tensor has the shape and the layout of the images."""
        return sampled.shape == self.image and not sampled.in_other_layout

    def placed(
        self, data: Floats, shape: tuple[int, ...], in_other_layout: bool = False
    ) -> Sampled | None:
        """The numbers in a shape; None if it is not understood."""
        is_known = shape in (self._others if in_other_layout else self._known)
        return Sampled(data, shape, in_other_layout) if is_known else None

    def reshaped(self, sampled: Sampled, shape: tuple[int, ...]) -> Sampled | None:
        """As many numbers in another shape; None if that is not understood."""
        if shape == sampled.shape:
            return sampled
        # The numbers of an image get other places.
        return (
            self.vector(sampled.data, shape) if math.prod(shape) < math.prod(self.image) else None
        )

    def vector(self, data: Floats, shape: tuple[int, ...]) -> Sampled | None:
        """A vector or scalar in a shape; None if it is not understood."""
        return self.placed(data, shape) or self.placed(data, shape, True)

    def broadcast(self, *operands: Sampled) -> tuple[tuple[int, ...], bool] | None:
        """The shape and layout of an elementwise result; None if it is not understood."""
        shape = _broadcast(tuple(each.shape for each in operands))
        if shape is None:
            return None
        layouts = {each.in_other_layout for each in operands if _has_layout(each.shape)}
        in_other_layout = layouts == {True}
        # A flat vector meets the last axis of an image, which must be the axis of channels.
        is_flat = len(shape) == 4 and any(each.shape == self.vectors[0] for each in operands)
        is_channels_last = (self.channel_axis == 3) != in_other_layout
        if len(layouts) > 1 or (is_flat and not is_channels_last):
            return None
        return shape, in_other_layout

    def transposed(self, sampled: Sampled, order: Sequence[int]) -> Sampled | None:
        """The tensor with its axes in another order; None if it is not understood."""
        to_own = _TO_NHWC if self._to_other == _TO_NCHW else _TO_NCHW
        if order != (to_own if sampled.in_other_layout else self._to_other):
            return None
        shape = tuple(sampled.shape[axis] for axis in order)
        return self.placed(sampled.data, shape, not sampled.in_other_layout)


_TO_NCHW, _TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]


def _has_layout(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4 and math.prod(shape) > 1


@functools.lru_cache(maxsize=1024)
def _broadcast(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def agree(first: Floats, second: Floats) -> bool:
    """Whether two evaluations are equal at every point, up to the rounding of constants."""
    # Most pairs differ in their first number already, which may be a small one of its point.
    one, other = first[0, 0], second[0, 0]
    if not abs(one - other) <= _TOLERANCE_OF_ONE * max(abs(one), abs(other)):
        return False
    largest = np.maximum(np.abs(first), np.abs(second)).max(0)
    return bool((np.abs(first - second) <= _TOLERANCE * largest).all())


def constant_value(node: node_def_pb2.NodeDef) -> Value | None:
    """The value of a Const: integers, or one real number in any shape; None for others."""
    tensor = node.attr["value"].tensor
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    if math.prod(shape) > _MOST_CONSTANTS:
        return None
    if tensor.dtype in (types_pb2.DT_INT32, types_pb2.DT_INT64):
        return np.asarray(tf.make_ndarray(tensor), np.int64)
    if tensor.dtype not in (types_pb2.DT_FLOAT, types_pb2.DT_DOUBLE):
        return None
    values = np.asarray(tf.make_ndarray(tensor), np.float64)
    if not values.size or (values != values.flat[0]).any():
        return None
    return Sampled(values.reshape(-1)[:1].reshape(1, 1), shape)


def evaluate(
    node: node_def_pb2.NodeDef, operands: Sequence[Value], shapes: ImageShapes
) -> Value | None:
    """The result of a node; None if its op, operands or result are not understood."""
    numbers = [each for each in operands if isinstance(each, Sampled)]
    integers = [each for each in operands if not isinstance(each, Sampled)]
    if node.op in _ELEMENTWISE and not integers:
        place = shapes.broadcast(*numbers)
        data = (each.data for each in numbers)
        return None if place is None else shapes.placed(_ELEMENTWISE[node.op](*data), *place)
    rule = _RULES.get((node.op, len(numbers), len(integers)))
    return None if rule is None else rule(node, *numbers, *integers, shapes)


def _reduce(
    node: node_def_pb2.NodeDef, image: Sampled, axes: Integers, shapes: ImageShapes
) -> Value | None:
    """Mean or Sum over the pixels of an image."""
    reduced = {int(axis) % 4 for axis in axes.reshape(-1)}
    keeps_rank = attribute_of(node, "keep_dims").b
    # Grappler leaves out axes of size 1.
    left = [axis for axis in range(4) if axis not in reduced | {shapes.channel_axis}]
    if (
        not shapes.is_image(image)
        or shapes.channel_axis in reduced
        or any(shapes.image[axis] != 1 for axis in left)
        or (left and not keeps_rank)
    ):
        return None
    data = np.broadcast_to(image.data, (SAMPLES, image.data.shape[1])).mean(0, keepdims=True)
    return Sampled(data * (shapes.pixels if node.op == "Sum" else 1), shapes.vectors[keeps_rank])


def _reshape(
    _node: node_def_pb2.NodeDef, sampled: Sampled, sizes: Integers, shapes: ImageShapes
) -> Value | None:
    shape = tuple(sizes.reshape(-1).tolist())
    count = math.prod(sampled.shape)
    if shape.count(-1) == 1:
        shape = tuple(count // -math.prod(shape) if size == -1 else size for size in shape)
    return shapes.reshaped(sampled, shape) if math.prod(shape) == count else None


def _squeeze(node: node_def_pb2.NodeDef, sampled: Sampled, shapes: ImageShapes) -> Value | None:
    axes = {axis % len(sampled.shape) for axis in attribute_of(node, "squeeze_dims").list.i}
    shape = [
        size for axis, size in enumerate(sampled.shape) if axis not in axes and (axes or size != 1)
    ]
    return shapes.reshaped(sampled, tuple(shape))


def _tile(
    _node: node_def_pb2.NodeDef, sampled: Sampled, multiples: Integers, shapes: ImageShapes
) -> Value | None:
    if multiples.shape != (len(sampled.shape),):
        return None
    pairs = list(zip(sampled.shape, multiples.tolist(), strict=True))
    is_repetition = all(1 in pair for pair in pairs)
    shape = tuple(map(math.prod, pairs))
    return shapes.placed(sampled.data, shape, sampled.in_other_layout) if is_repetition else None


def _broadcast_to(
    _node: node_def_pb2.NodeDef, sampled: Sampled, sizes: Integers, shapes: ImageShapes
) -> Value | None:
    shape = tuple(sizes.reshape(-1).tolist())
    place = shapes.broadcast(sampled, Sampled(sampled.data, shape, sampled.in_other_layout))
    is_larger = place is not None and place[0] == shape
    return shapes.placed(sampled.data, shape, sampled.in_other_layout) if is_larger else None


def _transpose(
    _node: node_def_pb2.NodeDef, sampled: Sampled, order: Integers, shapes: ImageShapes
) -> Value | None:
    return shapes.transposed(sampled, order.reshape(-1).tolist())


def _cast(node: node_def_pb2.NodeDef, value: Integers, _shapes: ImageShapes) -> Value | None:
    is_number = node.attr["DstT"].type == types_pb2.DT_FLOAT and not value.ndim
    return Sampled(value.reshape(1, 1).astype(np.float64), ()) if is_number else None


def _shape(_node: node_def_pb2.NodeDef, sampled: Sampled, _shapes: ImageShapes) -> Value | None:
    return np.array(sampled.shape, np.int64)


def _gather(
    _node: node_def_pb2.NodeDef,
    values: Integers,
    indices: Integers,
    axis: Integers,
    _shapes: ImageShapes,
) -> Value | None:
    is_in_range = indices.size and indices.min() >= 0 and indices.max() < len(values)
    return values[indices] if values.ndim == 1 and axis.size == 1 and is_in_range else None


def _product(
    node: node_def_pb2.NodeDef, values: Integers, axes: Integers, _shapes: ImageShapes
) -> Value | None:
    is_whole = values.ndim == 1 and axes.reshape(-1).tolist() in ([0], [-1])
    keeps_rank = attribute_of(node, "keep_dims").b
    return np.asarray(values.prod(keepdims=keeps_rank), np.int64) if is_whole else None


_ELEMENTWISE: Mapping[str, Callable[..., Floats]] = {
    "Add": np.add,
    "AddV2": np.add,
    "AddN": lambda *values: functools.reduce(np.add, values),
    "Sub": np.subtract,
    "Mul": np.multiply,
    "RealDiv": np.divide,
    "SquaredDifference": lambda first, second: np.square(first - second),
    "Neg": np.negative,
    "Square": np.square,
    "Sqrt": np.sqrt,
    "Rsqrt": lambda value: 1 / np.sqrt(value),
    "RsqrtGrad": lambda result, gradient: -0.5 * gradient * result**3,
}
# By op, and the numbers of real and integer operands, which come in this order.
_RULES: Mapping[tuple[str, int, int], Callable[..., Any]] = {
    ("Mean", 1, 1): _reduce,
    ("Sum", 1, 1): _reduce,
    ("Reshape", 1, 1): _reshape,
    ("Squeeze", 1, 0): _squeeze,
    ("Tile", 1, 1): _tile,
    ("BroadcastTo", 1, 1): _broadcast_to,
    ("Transpose", 1, 1): _transpose,
    ("Cast", 0, 1): _cast,
    ("Shape", 1, 0): _shape,
    ("GatherV2", 0, 3): _gather,
    ("Prod", 0, 2): _product,
}

EVALUATED_OPS = frozenset(_ELEMENTWISE) | {op for op, _, _ in _RULES}
"""The ops that can be evaluated; none of them has a state or an effect."""
