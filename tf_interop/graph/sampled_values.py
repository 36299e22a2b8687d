"""Evaluates nodes at a few random pixels, to prove what a part of a graph computes.

Grappler writes one expression in many ways: it hoists factors, joins additions, replaces divisions.
So a pass does not compare such a part with a list of forms. It evaluates both the part and the
formula with random numbers and compares the results. The expressions are rational functions and a
reciprocal root of their inputs. Two different ones agree only at the zeros of their difference, and
a random point is none of them, except with a probability of zero.

The images are large, so only `SAMPLES` pixels of each are evaluated. Each stands for an equal part
of the image: its value occurs `pixels / SAMPLES` times. A mean over all pixels is then the mean
over the samples, and a sum is that mean times the number of pixels. Channels do not meet in a
normalization, so the channels of a sample are `POINTS` independent evaluations.

The results are in float64. Constants of the graph are in float32, which `agree` allows for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, types_pb2

SAMPLES = 5
"""The pixels of an image that are evaluated."""

POINTS = 4
"""The independent random points."""

# A constant is within 6e-8 of the number that it stands for. Different expressions differ by much
# more at one of the points.
_TOLERANCE = 1e-5
# The most elements of a constant that is read: the channels of a wide layer.
_MOST_CONSTANTS = 16384

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Sampled(NamedTuple):
    """A tensor of real numbers.

    Attributes:
        data: `[SAMPLES, POINTS]`, where a 1 stands for equal values.
        shape: the shape of the whole tensor.
    """

    data: Floats
    shape: tuple[int, ...]


Value = Sampled | Integers
"""The value of a tensor: real numbers at sampled pixels, or all integers."""


class ImageShapes:
    """The shapes of one normalization's tensors: its images, vectors of channels, and scalars.

    Attributes:
        image: the shape of its images, `[N, H, W, C]` or `[N, C, H, W]`.
        channel_axis: 3 or 1.
        pixels: N times H times W.
    """

    def __init__(self, image: tuple[int, ...], channel_axis: int) -> None:
        """Every size is known, and there are at least two pixels."""
        self.image, self.channel_axis = image, channel_axis
        channels = image[channel_axis]
        self.pixels = math.prod(image) // channels
        self.axes = tuple(axis for axis in range(4) if axis != channel_axis)
        vector = [1] * 4
        vector[channel_axis] = channels
        self.vectors = ((channels,), tuple(vector))
        scalars = tuple((1,) * rank for rank in range(5))
        self._known = {image, *self.vectors, *scalars}
        self._broadcasts: dict[tuple[tuple[int, ...], ...], tuple[int, ...] | None] = {}

    def is_known(self, shape: tuple[int, ...]) -> bool:
        """Whether tensors of this shape can be evaluated."""
        return shape in self._known

    def broadcast(self, *shapes: tuple[int, ...]) -> tuple[int, ...] | None:
        """The shape of an elementwise result; None if it cannot be evaluated."""
        if shapes not in self._broadcasts:
            self._broadcasts[shapes] = self._broadcast(shapes)
        return self._broadcasts[shapes]

    def _broadcast(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
        try:
            result = np.broadcast_shapes(*shapes)
        except ValueError:
            return None
        # A flat vector meets the last axis of an image, which must be the axis of channels.
        is_flat = len(result) == 4 and any(len(shape) == 1 for shape in shapes)
        if not self.is_known(result) or (is_flat and self.channel_axis != 3):
            return None
        return result

    def random_image(self, random: np.random.Generator) -> Sampled:
        """An image of random numbers."""
        return Sampled(random.uniform(-2, 3, (SAMPLES, POINTS)), self.image)

    def random_vector(self, random: np.random.Generator, shape: tuple[int, ...]) -> Sampled:
        """A positive random number for each channel."""
        return Sampled(random.uniform(0.5, 2, (1, POINTS)), shape)


def agree(first: Floats, second: Floats) -> bool:
    """Whether two evaluations are equal up to the rounding of constants."""
    # Most pairs differ in their first number already.
    one, other = first[0, 0], second[0, 0]
    if not abs(one - other) <= _TOLERANCE * max(abs(one), abs(other), 1):
        return False
    scale = np.maximum(np.abs(first), np.abs(second)).max(initial=1.0)
    return bool(np.abs(first - second).max() <= _TOLERANCE * scale)


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
    """The result of a node; None if its op or the shape of the result is not understood."""
    rule = _RULES.get(node.op)
    return None if rule is None else rule(node, operands, shapes)


_Rule = Callable[[node_def_pb2.NodeDef, Sequence[Value], ImageShapes], Value | None]


def _elementwise(function: Callable[..., Floats]) -> _Rule:
    def rule(
        node: node_def_pb2.NodeDef, operands: Sequence[Value], shapes: ImageShapes
    ) -> Value | None:
        sampled = [each for each in operands if isinstance(each, Sampled)]
        if len(sampled) != len(operands):
            return None
        shape = sampled[0].shape
        if any(each.shape != shape for each in sampled):
            broadcast = shapes.broadcast(*(each.shape for each in sampled))
            if broadcast is None:
                return None
            shape = broadcast
        return Sampled(function(*(each.data for each in sampled)), shape)

    return rule


def _add_all(*values: Floats) -> Floats:
    return functools.reduce(np.add, values)


def _rsqrt_gradient(result: Floats, gradient: Floats) -> Floats:
    return -0.5 * gradient * result**3


def _reduce(
    node: node_def_pb2.NodeDef, operands: Sequence[Value], shapes: ImageShapes
) -> Value | None:
    """Mean or Sum over the pixels of an image."""
    image, axes = operands
    if isinstance(axes, Sampled) or not isinstance(image, Sampled) or image.shape != shapes.image:
        return None
    reduced = {int(axis) % 4 for axis in axes.reshape(-1)}
    # Grappler leaves out axes of size 1.
    kept = [axis for axis in shapes.axes if axis not in reduced]
    if shapes.channel_axis in reduced or any(shapes.image[axis] != 1 for axis in kept):
        return None
    keeps_dimensions = "keep_dims" in node.attr and node.attr["keep_dims"].b
    if kept and not keeps_dimensions:
        return None
    data = np.broadcast_to(image.data, (SAMPLES, image.data.shape[1])).mean(0, keepdims=True)
    if node.op == "Sum":
        data = data * shapes.pixels
    return Sampled(data, shapes.vectors[keeps_dimensions])


def _reshape(
    node: node_def_pb2.NodeDef, operands: Sequence[Value], shapes: ImageShapes
) -> Value | None:
    sampled, sizes = operands
    if not isinstance(sampled, Sampled) or isinstance(sizes, Sampled):
        return None
    shape = tuple(sizes.reshape(-1).tolist())
    if -1 in shape:
        known = math.prod(size for size in shape if size != -1)
        rest = math.prod(sampled.shape) // known if known else 0
        shape = tuple(rest if size == -1 else size for size in shape)
    if math.prod(shape) != math.prod(sampled.shape):
        return None
    return _with_shape(sampled, shape, shapes)


def _squeeze(
    node: node_def_pb2.NodeDef, operands: Sequence[Value], shapes: ImageShapes
) -> Value | None:
    (sampled,) = operands
    if not isinstance(sampled, Sampled):
        return None
    rank = len(sampled.shape)
    dims = node.attr["squeeze_dims"].list.i if "squeeze_dims" in node.attr else ()
    axes = {axis % rank for axis in dims} or {
        axis for axis, size in enumerate(sampled.shape) if size == 1
    }
    shape = tuple(size for axis, size in enumerate(sampled.shape) if axis not in axes)
    return _with_shape(sampled, shape, shapes)


def _tile(
    node: node_def_pb2.NodeDef, operands: Sequence[Value], shapes: ImageShapes
) -> Value | None:
    sampled, multiples = operands
    if not isinstance(sampled, Sampled) or isinstance(multiples, Sampled):
        return None
    if multiples.shape != (len(sampled.shape),):
        return None
    shape = tuple((np.array(sampled.shape, np.int64) * multiples).tolist())
    return _with_shape(sampled, shape, shapes)


def _broadcast_to(
    node: node_def_pb2.NodeDef, operands: Sequence[Value], shapes: ImageShapes
) -> Value | None:
    sampled, sizes = operands
    if not isinstance(sampled, Sampled) or isinstance(sizes, Sampled):
        return None
    shape = tuple(sizes.reshape(-1).tolist())
    if shapes.broadcast(sampled.shape, shape) != shape:
        return None
    return Sampled(sampled.data, shape)


def _with_shape(sampled: Sampled, shape: tuple[int, ...], shapes: ImageShapes) -> Sampled | None:
    """The same numbers in another shape: an image stays one, and a vector only becomes larger."""
    if not shapes.is_known(shape) or (sampled.shape == shapes.image != shape):
        return None
    if sampled.shape == shapes.vectors[0] and shape == shapes.image:
        return None
    return Sampled(sampled.data, shape)


def _cast(
    node: node_def_pb2.NodeDef, operands: Sequence[Value], shapes: ImageShapes
) -> Value | None:
    (value,) = operands
    if isinstance(value, Sampled) or node.attr["DstT"].type != types_pb2.DT_FLOAT or value.ndim:
        return None
    return Sampled(value.reshape(1, 1).astype(np.float64), ())


def _shape(
    node: node_def_pb2.NodeDef, operands: Sequence[Value], shapes: ImageShapes
) -> Value | None:
    (value,) = operands
    return np.array(value.shape, np.int64)


def _gather(
    node: node_def_pb2.NodeDef, operands: Sequence[Value], shapes: ImageShapes
) -> Value | None:
    values, indices, axis = operands
    if isinstance(values, Sampled) or isinstance(indices, Sampled) or isinstance(axis, Sampled):
        return None
    is_in_range = indices.size and indices.min() >= 0 and indices.max() < len(values)
    if values.ndim != 1 or axis.ndim or axis != 0 or not is_in_range:
        return None
    return values[indices]


def _product(
    node: node_def_pb2.NodeDef, operands: Sequence[Value], shapes: ImageShapes
) -> Value | None:
    values, axes = operands
    if isinstance(values, Sampled) or isinstance(axes, Sampled) or values.ndim != 1:
        return None
    if axes.reshape(-1).tolist() not in ([0], [-1]):
        return None
    keeps_dimensions = "keep_dims" in node.attr and node.attr["keep_dims"].b
    return np.asarray(values.prod(keepdims=keeps_dimensions), np.int64)


_RULES: Mapping[str, _Rule] = {
    "Add": _elementwise(np.add),
    "AddV2": _elementwise(np.add),
    "AddN": _elementwise(_add_all),
    "Sub": _elementwise(np.subtract),
    "Mul": _elementwise(np.multiply),
    "RealDiv": _elementwise(np.divide),
    "SquaredDifference": _elementwise(lambda first, second: np.square(first - second)),
    "Neg": _elementwise(np.negative),
    "Square": _elementwise(np.square),
    "Sqrt": _elementwise(np.sqrt),
    "Rsqrt": _elementwise(lambda value: 1 / np.sqrt(value)),
    "RsqrtGrad": _elementwise(_rsqrt_gradient),
    "Mean": _reduce,
    "Sum": _reduce,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "BroadcastTo": _broadcast_to,
    "Cast": _cast,
    "Shape": _shape,
    "GatherV2": _gather,
    "Prod": _product,
}

EVALUATED_OPS = frozenset(_RULES)
"""The ops that can be evaluated; none of them has a state or an effect."""
