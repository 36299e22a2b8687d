"""Convolutions of many kinds for tests of the ConvStage op, with references in float64.

A reference is made of TensorFlow's plain convolutions in float64 alone, NHWC, without padding,
dilation and groups: images are padded, filters spread, groups computed one by one. It knows nothing
of what the op does about these.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from stage_cases import Case

from tf_interop.convolution import ConvolutionKind
from tf_interop.graph.convolution_ops import CONVOLUTION_KINDS, SUPPORTED_DTYPES

CHANNELS = 4
FILTERS = 8

# What the ops of each number of spatial dimensions are tried with. TensorFlow has no explicit
# padding of volumes.
PADDINGS = {2: ("SAME", "VALID", "EXPLICIT"), 3: ("SAME", "VALID")}
STRIDES = {
    2: ((1, 1), (2, 2), (1, 2), (3, 1)),
    3: ((1, 1, 1), (2, 2, 2), (1, 2, 3)),
}
DILATIONS = {
    2: ((1, 1), (2, 2), (1, 3)),
    3: ((1, 1, 1), (2, 2, 2), (1, 3, 2)),
}
GROUPS = {2: (1, 2, 4), 3: (1, 2)}
EXPLICIT_PADS = ((1, 2), (0, 3))
LAYOUTS = {2: ("NHWC", "NCHW"), 3: ("NDHWC", "NCDHW")}
MULTIPLIERS = (1, 2, 3)

DTYPES = tuple(tf.as_dtype(dtype) for dtype in SUPPORTED_DTYPES)


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Sizes of a convolution: those of its image and its filter, by spatial dimension."""

    name: str
    batch: int
    image: tuple[int, ...]
    filter: tuple[int, ...]


GEOMETRIES = {
    2: (
        Geometry("ordinary", 2, (9, 8), (3, 2)),
        Geometry("pointwise", 2, (5, 6), (1, 1)),
        Geometry("one row", 2, (1, 9), (1, 5)),
        Geometry("one pixel", 2, (1, 1), (3, 3)),
        Geometry("larger filter", 1, (3, 2), (5, 4)),
        Geometry("empty batch", 0, (5, 5), (3, 3)),
    ),
    3: (
        Geometry("ordinary", 2, (5, 4, 6), (3, 2, 2)),
        Geometry("pointwise", 2, (3, 2, 4), (1, 1, 1)),
        Geometry("one row", 2, (1, 1, 7), (1, 1, 4)),
        Geometry("one pixel", 2, (1, 1, 1), (2, 3, 3)),
        Geometry("larger filter", 1, (2, 3, 2), (3, 4, 2)),
        Geometry("empty batch", 0, (3, 4, 3), (2, 3, 2)),
    ),
}


@dataclasses.dataclass(frozen=True)
class Parameters:
    """One convolution op with everything but its dtype, its layout and its data."""

    op: str
    geometry: Geometry
    padding: str
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int
    multiplier: int | None = None

    @property
    def kind(self) -> ConvolutionKind:
        return CONVOLUTION_KINDS[self.op]

    @property
    def pads(self) -> tuple[tuple[int, int], ...]:
        """The padding before and after each spatial dimension."""
        if self.padding == "VALID":
            return ((0, 0),) * len(self.strides)
        if self.padding == "EXPLICIT":
            return EXPLICIT_PADS[: len(self.strides)]
        pads = []
        for size, reach, stride in zip(
            self.geometry.image, self._reaches, self.strides, strict=True
        ):
            total = max((-(-size // stride) - 1) * stride + reach - size, 0)
            pads.append((total // 2, total - total // 2))
        return tuple(pads)

    @property
    def output(self) -> tuple[int, ...]:
        """The spatial sizes of the output; below 1 where there is no such convolution."""
        return tuple(
            (size + sum(pads) - reach) // stride + 1
            for size, pads, reach, stride in zip(
                self.geometry.image, self.pads, self._reaches, self.strides, strict=True
            )
        )

    @property
    def output_channels(self) -> int:
        return FILTERS if self.multiplier is None else CHANNELS * self.multiplier

    @property
    def image_shape(self) -> tuple[int, ...]:
        """[N, spatial sizes, C]."""
        return (self.geometry.batch, *self.geometry.image, CHANNELS)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """[N, spatial sizes, K]."""
        return (self.geometry.batch, *self.output, self.output_channels)

    @property
    def filter_shape(self) -> tuple[int, ...]:
        """[spatial sizes, C / groups, K], depthwise [spatial sizes, C, multiplier]."""
        if self.multiplier is not None:
            return (*self.geometry.filter, CHANNELS, self.multiplier)
        return (*self.geometry.filter, CHANNELS // self.groups, FILTERS)

    @property
    def product_count(self) -> int:
        """How many products an element of the result is the sum of, at most."""
        inside = int(np.prod(self.geometry.filter))
        if self.kind is ConvolutionKind.FORWARD:
            return inside * CHANNELS // self.groups
        if self.kind is ConvolutionKind.BACKWARD_INPUT:
            return inside * self.output_channels // self.groups
        return self.geometry.batch * int(np.prod(self.output))

    @property
    def _reaches(self) -> tuple[int, ...]:
        return tuple(
            (size - 1) * dilation + 1
            for size, dilation in zip(self.geometry.filter, self.dilations, strict=True)
        )


def parameters_of(rank: int, padding: str) -> tuple[Parameters, ...]:
    """All convolutions of `rank` spatial dimensions with that padding."""
    return tuple(
        each
        for op in CONVOLUTION_KINDS
        if not op.startswith("_") and ("3D" in op) == (rank == 3)
        for each in _parameters_of_op(op, rank, padding)
        # TensorFlow refuses a filter that is larger than the padded image when it infers shapes.
        if min(each.output) >= 1
    )


def _parameters_of_op(op: str, rank: int, padding: str) -> Iterator[Parameters]:
    choices = itertools.product(GEOMETRIES[rank], STRIDES[rank])
    for geometry, strides in choices:
        if not op.startswith("Depthwise"):
            for dilations, groups in itertools.product(DILATIONS[rank], GROUPS[rank]):
                yield Parameters(op, geometry, padding, strides, dilations, groups)
        elif len(set(strides)) == 1:
            # Unequal strides and dilations TensorFlow's kernels refuse or ignore; so does the pass.
            for multiplier in MULTIPLIERS:
                ones = (1,) * rank
                yield Parameters(op, geometry, padding, strides, ones, CHANNELS, multiplier)


@dataclasses.dataclass(frozen=True)
class Operands:
    """Image, filter and output gradient, NHWC and HWIO; a case reads two of them."""

    image: np.ndarray
    filter: np.ndarray
    gradient: np.ndarray

    def map(self, function: Any) -> Operands:
        return Operands(*(function(each) for each in (self.image, self.filter, self.gradient)))


@functools.cache
def whole_numbers(parameters: Parameters) -> Operands:
    """Operands of -1, 0 and 1: sums of up to 256 products of them are exact in every dtype."""
    return _operands(parameters, lambda random, shape: random.integers(-1, 2, shape))


def real_numbers(parameters: Parameters) -> Operands:
    """Operands of a normal distribution."""
    return _operands(parameters, lambda random, shape: random.standard_normal(shape))


def _operands(parameters: Parameters, draw: Any) -> Operands:
    shapes = (parameters.image_shape, parameters.filter_shape, parameters.output_shape)
    return Operands(
        *(
            draw(np.random.default_rng((seed, *shape)), shape).astype(np.float64)
            for seed, shape in enumerate(shapes)
        )
    )


@functools.cache
def reference_on_whole_numbers(parameters: Parameters) -> np.ndarray:
    """The reference for `whole_numbers`; the same for all dtypes and layouts."""
    return reference(parameters, whole_numbers(parameters))


def reference(parameters: Parameters, operands: Operands) -> np.ndarray:
    """The result in float64, NHWC or HWIO."""
    p = parameters
    padded = np.pad(operands.image, [(0, 0), *p.pads, (0, 0)])
    # A depthwise convolution has as many groups as channels.
    grouped_shape = (*p.geometry.filter, CHANNELS // p.groups, p.output_channels)
    spread = _spread(operands.filter.reshape(grouped_shape), p.dilations)
    results = [
        _plain(p, padded_of_group, filter_of_group, gradient_of_group)
        for padded_of_group, filter_of_group, gradient_of_group in zip(
            np.split(padded, p.groups, axis=-1),
            np.split(spread, p.groups, axis=-1),
            np.split(operands.gradient, p.groups, axis=-1),
            strict=True,
        )
    ]
    result = np.concatenate(results, axis=-1)
    if p.kind is ConvolutionKind.FORWARD:
        return result
    if p.kind is ConvolutionKind.BACKWARD_INPUT:
        inner = tuple(
            slice(before, before + size)
            for (before, _), size in zip(p.pads, p.geometry.image, strict=True)
        )
        return result[(slice(None), *inner)]
    steps = tuple(slice(None, None, dilation) for dilation in p.dilations)
    return result[steps].reshape(p.filter_shape)


def _spread(filter_: np.ndarray, dilations: Sequence[int]) -> np.ndarray:
    """The filter with `dilation - 1` zeros between its elements."""
    sizes = [(size - 1) * d + 1 for size, d in zip(filter_.shape, dilations, strict=False)]
    spread = np.zeros((*sizes, *filter_.shape[len(sizes) :]))
    spread[tuple(slice(None, None, dilation) for dilation in dilations)] = filter_
    return spread


def _plain(
    parameters: Parameters, padded: np.ndarray, filter_: np.ndarray, gradient: np.ndarray
) -> np.ndarray:
    """One group, without padding and dilation."""
    kind = parameters.kind
    if not (padded.size and filter_.size and gradient.size):
        empty = {
            ConvolutionKind.FORWARD: gradient,
            ConvolutionKind.BACKWARD_INPUT: padded,
            ConvolutionKind.BACKWARD_FILTER: filter_,
        }
        return np.zeros_like(empty[kind])
    stem = f"Conv{len(parameters.strides)}D"
    version = "V2" if stem == "Conv3D" else ""
    attributes = {"strides": [1, *parameters.strides, 1], "padding": "VALID"}
    if kind is ConvolutionKind.FORWARD:
        op = getattr(tf.raw_ops, stem)
        return op(input=padded, filter=filter_, **attributes).numpy()
    if kind is ConvolutionKind.BACKWARD_INPUT:
        op = getattr(tf.raw_ops, f"{stem}BackpropInput{version}")
        sizes = padded.shape
        return op(input_sizes=sizes, filter=filter_, out_backprop=gradient, **attributes).numpy()
    op = getattr(tf.raw_ops, f"{stem}BackpropFilter{version}")
    sizes = filter_.shape
    return op(input=padded, filter_sizes=sizes, out_backprop=gradient, **attributes).numpy()


def case_of(parameters: Parameters, operands: Operands, dtype: tf.DType, layout: str) -> Case:
    """The convolution as TensorFlow's op, in `dtype` and `layout`."""
    p = parameters
    rounded = operands.map(lambda each: each.astype(dtype.as_numpy_dtype))
    image, gradient = (to_layout(each, layout) for each in (rounded.image, rounded.gradient))
    chosen: dict[ConvolutionKind, tuple[Any, ...]] = {
        ConvolutionKind.FORWARD: (image, rounded.filter),
        ConvolutionKind.BACKWARD_INPUT: (list(image.shape), rounded.filter, gradient),
        ConvolutionKind.BACKWARD_FILTER: (image, list(p.filter_shape), gradient),
    }
    attributes: dict[str, Any] = {
        "strides": _in_layout([1, *p.strides, 1], layout),
        "dilations": _in_layout([1, *p.dilations, 1], layout),
        "padding": p.padding,
        "data_format": layout,
    }
    if p.padding == "EXPLICIT":
        pads = _in_layout([(0, 0), *p.pads, (0, 0)], layout)
        attributes["explicit_paddings"] = list(itertools.chain.from_iterable(pads))
    return Case(p.op, chosen[p.kind], attributes)


def own_result(parameters: Parameters, case: Case) -> np.ndarray | None:
    """What TensorFlow's own op gives, or None where it has no kernel for the case."""
    names = {
        ConvolutionKind.FORWARD: ("input", "filter"),
        ConvolutionKind.BACKWARD_INPUT: ("input_sizes", "filter", "out_backprop"),
        ConvolutionKind.BACKWARD_FILTER: ("input", "filter_sizes", "out_backprop"),
    }[parameters.kind]
    operands = dict(zip(names, case.operands, strict=True))
    try:
        return getattr(tf.raw_ops, case.op)(**operands, **case.attributes).numpy()
    except (
        tf.errors.UnimplementedError,
        tf.errors.InvalidArgumentError,
        tf.errors.NotFoundError,  # cuDNN has no algorithm
    ):
        return None


def to_layout(tensor: np.ndarray, layout: str) -> np.ndarray:
    """A tensor in NHWC transposed to `layout`."""
    return tensor if layout.endswith("C") else np.moveaxis(tensor, -1, 1)


def _in_layout(values: list[Any], layout: str) -> list[Any]:
    return values if layout.endswith("C") else [values[0], values[-1], *values[1:-1]]
