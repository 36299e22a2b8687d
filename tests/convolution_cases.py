"""Convolutions of many kinds as cases of the ConvStage op, with references in float64."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from stage_program import Document, arguments, in_graph, lane, operation, program, schedule
from tensorflow.core.framework import node_def_pb2

from tf_interop.convolution import ConvolutionKind
from tf_interop.graph.ops import CONVOLUTION_KINDS, SUPPORTED_DTYPES

DTYPES = tuple(tf.as_dtype(dtype) for dtype in SUPPORTED_DTYPES)

CHANNELS = 4
FILTERS = 8

# By the number of spatial dimensions. TensorFlow has no explicit padding for volumes.
PADDINGS = {2: ("SAME", "VALID", "EXPLICIT"), 3: ("SAME", "VALID")}
STRIDES = {2: ((1, 1), (2, 2), (1, 2), (3, 1)), 3: ((1, 1, 1), (2, 2, 2), (1, 2, 3))}
DILATIONS = {2: ((1, 1), (2, 2), (1, 3)), 3: ((1, 1, 1), (2, 2, 2), (1, 3, 2))}
GROUPS = {2: (1, 2, 4), 3: (1, 2)}
EXPLICIT_PADS = ((1, 2), (0, 3))
LAYOUTS = {2: ("NHWC", "NCHW"), 3: ("NDHWC", "NCDHW")}
MULTIPLIERS = (1, 2, 3)

OPERANDS = {
    ConvolutionKind.FORWARD: ("input", "filter"),
    ConvolutionKind.BACKWARD_INPUT: ("input_sizes", "filter", "out_backprop"),
    ConvolutionKind.BACKWARD_FILTER: ("input", "filter_sizes", "out_backprop"),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A convolution op with operands (a shape is a list) and attributes."""

    op: str
    operands: tuple[Any, ...]
    attributes: dict[str, Any]

    def own(self) -> tf.Tensor:
        """The result of TensorFlow's own op."""
        operands = dict(zip(OPERANDS[CONVOLUTION_KINDS[self.op]], self.operands, strict=True))
        return getattr(tf.raw_ops, self.op)(**operands, **self.attributes)

    def own_in_graph(self) -> np.ndarray:
        """The same in a graph, where the ops get oneDNN's kernels."""
        # Tensors from outside the function; otherwise Grappler would compute the op.
        operands = (each if isinstance(each, list) else tf.constant(each) for each in self.operands)
        own = dataclasses.replace(self, operands=tuple(operands)).own
        return tf.function(own, autograph=False)().numpy()

    def step(self, inputs: list[Any], sizes: list[Any]) -> node_def_pb2.NodeDef:
        """Appends the operands to the lists, and returns the operation."""
        name, operands = f"case_{len(inputs)}", []
        for operand in self.operands:
            is_size = isinstance(operand, list)
            chosen = sizes if is_size else inputs
            operands.append(f"{'sizes' if is_size else 'inputs'}:{len(chosen)}")
            chosen.append(np.array(operand, np.int32) if is_size else operand)
        attributes = dict(self.attributes)
        if self.op.startswith("_Fused"):
            attributes |= {"num_args": 1, "TArgs": [self.dtype]}
        return operation(name, self.op, operands, self.dtype, **attributes)

    @property
    def dtype(self) -> tf.DType:
        return next(tf.as_dtype(each.dtype) for each in self.operands if hasattr(each, "dtype"))


def program_of(
    cases: Sequence[Case], lanes: Sequence[int] | None = None, algorithm: str | None = None
) -> tuple[list[Any], list[Any], Document]:
    """Inputs, sizes and program of cases, each on its own lane unless `lanes` numbers them."""
    inputs: list[Any] = []
    sizes: list[Any] = []
    of_lane: dict[int, list[tuple[int, Any]]] = {}
    for place, number in enumerate(lanes or range(len(cases))):
        of_lane.setdefault(number, []).append((place, algorithm))
    operations = [case.step(inputs, sizes) for case in cases]
    for each in operations:  # sizes come after all inputs
        each.input[:] = [
            f"inputs:{len(inputs) + int(number)}" if kind == "sizes" else f"{kind}:{number}"
            for kind, number in (text.split(":") for text in each.input)
        ]
    document = program(operations, schedule(*(lane(*steps) for steps in of_lane.values())))
    return inputs, sizes, document


def run_stage(
    conv_stage: Any,
    cases: Sequence[Case],
    lanes: Sequence[int] | None = None,
    algorithm: str | None = None,
    *,
    jit_compile: bool = False,
) -> list[tf.Tensor]:
    """Runs cases as one stage."""
    of_op = arguments(*program_of(cases, lanes, algorithm))
    return in_graph(conv_stage, jit_compile=jit_compile, **of_op)


def digits(shape: Sequence[int], dtype: tf.DType = tf.float32, seed: int = 0) -> np.ndarray:
    """Small whole numbers, whose products and sums are exact in every dtype."""
    random = np.random.default_rng((seed, *shape))
    return random.integers(-2, 3, shape).astype(dtype.as_numpy_dtype)


class Geometry(NamedTuple):
    """The spatial sizes of a convolution's image and filter."""

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
    """One convolution op without dtype, layout and data."""

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
        """The explicit padding before and after each spatial dimension."""
        rank = len(self.strides)
        return EXPLICIT_PADS[:rank] if self.padding == "EXPLICIT" else ((0, 0),) * rank

    @property
    def output(self) -> tuple[int, ...]:
        """The spatial sizes of the output; below 1 if there is no such convolution."""
        sizes = zip(self.geometry.image, self.pads, self.reaches, self.strides, strict=True)
        if self.padding == "SAME":
            return tuple(-(-size // stride) for size, _, _, stride in sizes)
        return tuple(
            (size + sum(pads) - reach) // stride + 1 for size, pads, reach, stride in sizes
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
        """The most products in an element of the result."""
        inside = int(np.prod(self.geometry.filter))
        if self.kind is ConvolutionKind.FORWARD:
            return inside * CHANNELS // self.groups
        if self.kind is ConvolutionKind.BACKWARD_INPUT:
            return inside * self.output_channels // self.groups
        return self.geometry.batch * int(np.prod(self.output))

    @property
    def reaches(self) -> tuple[int, ...]:
        """The sizes of the dilated filter."""
        return tuple(
            (size - 1) * dilation + 1
            for size, dilation in zip(self.geometry.filter, self.dilations, strict=True)
        )


def parameters_of(rank: int, padding: str) -> list[Parameters]:
    """All convolutions with `rank` spatial dimensions and this padding."""
    ops = [op for op in CONVOLUTION_KINDS if op[0] != "_" and ("3D" in op) == (rank == 3)]
    found = []
    for op, geometry, strides in itertools.product(ops, GEOMETRIES[rank], STRIDES[rank]):
        usual = (op, geometry, padding, strides)
        if not op.startswith("Depthwise"):
            others = itertools.product(DILATIONS[rank], GROUPS[rank])
            found += [Parameters(*usual, dilations, groups) for dilations, groups in others]
        elif len(set(strides)) == 1:
            # TensorFlow's kernels refuse or ignore unequal strides and dilations; so does the pass.
            ones = (1,) * rank
            found += [Parameters(*usual, ones, CHANNELS, multiplier) for multiplier in MULTIPLIERS]
    # TensorFlow's shape inference refuses a filter that is larger than the padded image.
    return [each for each in found if min(each.output) >= 1]


class Operands(NamedTuple):
    """Image, filter and output gradient, in NHWC and HWIO; a case reads two of them."""

    image: np.ndarray
    filter: np.ndarray
    gradient: np.ndarray

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> Operands:
        return Operands(*map(function, self))


def _operands(parameters: Parameters, draw: Any) -> Operands:
    shapes = (parameters.image_shape, parameters.filter_shape, parameters.output_shape)
    generators = [np.random.default_rng((seed, *shape)) for seed, shape in enumerate(shapes)]
    drawn = (draw(*each) for each in zip(generators, shapes, strict=True))
    return Operands(*(each.astype(np.float64) for each in drawn))


@functools.cache
def whole_numbers(parameters: Parameters) -> Operands:
    """Operands of -1, 0 and 1; sums of up to 256 products are exact in every dtype."""
    return _operands(parameters, lambda random, shape: random.integers(-1, 2, shape))


def real_numbers(parameters: Parameters) -> Operands:
    """Operands from a normal distribution."""
    return _operands(parameters, lambda random, shape: random.standard_normal(shape))


def ordinary_cases(
    dtype: tf.DType = tf.float32,
    layout: str = "NHWC",
    padding: str = "SAME",
    *,
    stride: int = 1,
    numbers: Callable[[Parameters], Operands] = whole_numbers,
) -> list[Case]:
    """A case of each op."""
    return [
        case_of(each, numbers(each), dtype, layout)
        for each in parameters_of(len(layout) - 2, padding)
        if each.geometry.name == "ordinary"
        and set(each.strides) == {stride}
        and set(each.dilations) == {1}
        and (each.groups == 1 or each.multiplier == 2)
    ]


@functools.cache
def reference_on_whole_numbers(parameters: Parameters) -> np.ndarray:
    """The reference for `whole_numbers`, for all dtypes and layouts."""
    return reference(parameters, whole_numbers(parameters))


def reference(p: Parameters, operands: Operands) -> np.ndarray:
    """The result in float64, NHWC or HWIO, from TensorFlow's plain convolutions.

    A dilated filter becomes one with zeros between its elements; groups are convolved one by one.
    """
    taps = tuple(slice(None, None, dilation) for dilation in p.dilations)
    inner_shape = (CHANNELS // p.groups, p.output_channels)
    dilated = np.zeros((*p.reaches, *inner_shape))
    dilated[taps] = operands.filter.reshape(*p.geometry.filter, *inner_shape)
    # TensorFlow's gradients of volumes in double fail on a GPU.
    with tf.device("/CPU:0"):
        with tf.GradientTape() as tape:
            image, filter_ = tf.constant(operands.image), tf.constant(dilated)
            tape.watch([image, filter_])
            padded = tf.pad(image, [(0, 0), *p.pads, (0, 0)])
            groups = tf.split(padded, p.groups, -1), tf.split(filter_, p.groups, -1)
            padding = "SAME" if p.padding == "SAME" else "VALID"
            like = (p.strides, padding, LAYOUTS[len(p.strides)][0])
            outputs = [tf.nn.convolution(*each, *like) for each in zip(*groups, strict=True)]
            output = tf.concat(outputs, -1)
        if p.kind is ConvolutionKind.FORWARD:
            return output.numpy()
        given = tf.constant(operands.gradient)
        by_image, by_filter = tape.gradient(output, [image, filter_], given)
    if p.kind is ConvolutionKind.BACKWARD_INPUT:
        return by_image.numpy()
    return by_filter.numpy()[taps].reshape(p.filter_shape)


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


def to_layout(tensor: np.ndarray, layout: str) -> np.ndarray:
    """Transposes a tensor from NHWC."""
    return tensor if layout.endswith("C") else np.moveaxis(tensor, -1, 1)


def _in_layout(values: list[Any], layout: str) -> list[Any]:
    return values if layout.endswith("C") else [values[0], values[-1], *values[1:-1]]
