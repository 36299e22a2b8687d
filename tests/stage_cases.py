"""Convolutions of images as cases of the ConvStage op, beside what TensorFlow's own ops give.

Their tensors hold small whole numbers, whose products and sums are exact in every dtype.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from stage_program import Document, arguments, lane, operation, program, schedule
from tensorflow.core.framework import node_def_pb2

DTYPES = [tf.float32, tf.float16, tf.bfloat16, tf.float64]


@dataclasses.dataclass(frozen=True)
class Case:
    """A convolution: an op, its operands and its attributes."""

    op: str
    operands: tuple[Any, ...]
    attributes: dict[str, Any]

    def own(self) -> tf.Tensor:
        """What TensorFlow's own op gives."""
        names = {
            "Conv2D": ("input", "filter"),
            "DepthwiseConv2dNative": ("input", "filter"),
            "Conv2DBackpropInput": ("input_sizes", "filter", "out_backprop"),
            "DepthwiseConv2dNativeBackpropInput": ("input_sizes", "filter", "out_backprop"),
            "Conv2DBackpropFilter": ("input", "filter_sizes", "out_backprop"),
            "DepthwiseConv2dNativeBackpropFilter": ("input", "filter_sizes", "out_backprop"),
            "Conv3D": ("input", "filter"),
            "Conv3DBackpropInputV2": ("input_sizes", "filter", "out_backprop"),
            "Conv3DBackpropFilterV2": ("input", "filter_sizes", "out_backprop"),
        }[self.op]
        operands = dict(zip(names, self.operands, strict=True))
        return getattr(tf.raw_ops, self.op)(**operands, **self.attributes)

    def own_in_nhwc(self) -> tf.Tensor:
        """The same, by way of NHWC or NDHWC where TensorFlow has no other kernel on this device."""
        layout = self.attributes.get("data_format", "NHWC")
        try:
            return self.own()
        except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError):
            if layout not in ("NCHW", "NCDHW"):
                raise
        nhwc = layout.replace("C", "") + "C"
        to_nhwc = [layout.index(dimension) for dimension in nhwc]
        to_nchw = [nhwc.index(dimension) for dimension in layout]
        attributes = dict(self.attributes, data_format=nhwc)
        for name in ("strides", "dilations"):
            attributes[name] = [self.attributes[name][axis] for axis in to_nhwc]
        if "explicit_paddings" in attributes:
            pads = self.attributes["explicit_paddings"]
            attributes["explicit_paddings"] = pads[:2] + pads[4:] + pads[2:4]
        operands = list(self.operands)
        filter_position = 1
        for position, operand in enumerate(operands):
            if position == filter_position:
                continue
            if isinstance(operand, list):
                operands[position] = [operand[axis] for axis in to_nhwc]
            else:
                operands[position] = np.transpose(operand, to_nhwc)
        result = Case(self.op, tuple(operands), attributes).own()
        return result if "BackpropFilter" in self.op else tf.transpose(result, to_nchw)

    def step(self, inputs: list[Any], sizes: list[Any]) -> node_def_pb2.NodeDef:
        """The operation of this case; its operands are appended to the lists."""
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
    cases: list[Case],
    inputs: list[Any],
    sizes: list[Any],
    lanes: list[int] | None = None,
    algorithm: str | None = None,
) -> Document:
    """A program of cases, each on a lane of its own unless `lanes` says which; see Case.step."""
    of_lane: dict[int, list[tuple[int, Any]]] = {}
    for place, number in enumerate(lanes or range(len(cases))):
        of_lane.setdefault(number, []).append((place, algorithm))
    operations = [case.step(inputs, sizes) for case in cases]
    return program(operations, schedule(*(lane(*steps) for steps in of_lane.values())))


def run_stage(
    conv_stage: Any,
    cases: list[Case],
    lanes: list[int] | None = None,
    algorithm: str | None = None,
) -> list[tf.Tensor]:
    """Runs cases as one stage."""

    # In a graph: eager execution was seen to take a kernel that it had made for other steps.
    @tf.function(autograph=False)
    def stage() -> list[tf.Tensor]:
        inputs: list[Any] = []
        sizes: list[Any] = []
        document = program_of(cases, inputs, sizes, lanes, algorithm)
        return conv_stage(**arguments(as_constants(inputs), as_constants(sizes), document))

    return stage()


def as_constants(arrays: list[np.ndarray]) -> list[tf.Tensor]:
    """Constants of the values; one for all that are equal, as constants take most of the time."""
    made: dict[tuple[Any, ...], tf.Tensor] = {}
    constants = []
    for array in arrays:
        key = (array.dtype, array.shape, array.tobytes())
        if key not in made:
            made[key] = tf.constant(array)
        constants.append(made[key])
    return constants


def digits(shape: list[int], dtype: tf.DType = tf.float32, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng((seed, *shape))
    return random.integers(-2, 3, shape).astype(dtype.as_numpy_dtype)


def spatial(layout: str, height: int, width: int) -> list[int]:
    return [1, height, width, 1] if layout == "NHWC" else [1, 1, height, width]


def output_size(
    image: int, filter_size: int, stride: int, dilation: int, padding: str, pads: tuple[int, int]
) -> int:
    if padding == "SAME":
        return -(-image // stride)
    before, after = pads if padding == "EXPLICIT" else (0, 0)
    return (image + before + after - (filter_size - 1) * dilation - 1) // stride + 1


def cases_of(
    layout: str, dtype: tf.DType, padding: str, stride: int, dilation: int, groups: int
) -> Iterator[Case]:
    """The six ops for one choice of parameters."""
    height, width, channels, filters = 9, 8, 4, 8
    pads = ((1, 2), (0, 3))
    out_height = output_size(height, 3, stride, dilation, padding, pads[0])
    out_width = output_size(width, 2, stride, dilation, padding, pads[1])

    def shape(h: int, w: int, c: int) -> list[int]:
        return [2, h, w, c] if layout == "NHWC" else [2, c, h, w]

    attributes: dict[str, Any] = {
        "strides": spatial(layout, stride, stride),
        "dilations": spatial(layout, dilation, dilation),
        "padding": padding,
        "data_format": layout,
    }
    if padding == "EXPLICIT":
        (top, bottom), (left, right) = pads
        flat = [0, 0, top, bottom, left, right, 0, 0]
        attributes["explicit_paddings"] = (
            flat if layout == "NHWC" else [0, 0, 0, 0, top, bottom, left, right]
        )
    image_shape = shape(height, width, channels)
    image = digits(image_shape, dtype)
    for depthwise in (False, True):
        if depthwise and groups > 1:
            continue
        filter_shape = [3, 2, channels, 2] if depthwise else [3, 2, channels // groups, filters]
        filter_ = digits(filter_shape, dtype, seed=1)
        gradient = digits(shape(out_height, out_width, filters), dtype, seed=2)
        forward, stem = (
            ("DepthwiseConv2dNative", "DepthwiseConv2dNative")
            if depthwise
            else ("Conv2D", "Conv2D")
        )
        yield Case(forward, (image, filter_), attributes)
        if depthwise and dilation > 1:
            continue  # TensorFlow's kernels ignore the dilations; the finder refuses such nodes
        yield Case(f"{stem}BackpropInput", (image_shape, filter_, gradient), attributes)
        yield Case(f"{stem}BackpropFilter", (image, filter_shape, gradient), attributes)


def matrix_of(layout: str, dtype: tf.DType, padding: str) -> list[Case]:
    """The ops over strides, dilations and groups."""
    return [
        case
        for stride, dilation, groups in itertools.product((1, 2), (1, 2), (1, 2))
        if not (stride > 1 and dilation > 1)  # TensorFlow refuses both at once in some ops
        for case in cases_of(layout, dtype, padding, stride, dilation, groups)
    ]


def assert_infers_shapes(conv_stage: Any, cases: list[Case]) -> None:
    """Of a stage whose first image has an unknown batch size."""
    inputs: list[Any] = []
    sizes: list[Any] = []
    with tf.Graph().as_default():
        document = program_of(cases, inputs, sizes)
        inputs[0] = tf.compat.v1.placeholder(tf.float32, [None, *inputs[0].shape[1:]])
        outputs = conv_stage(**arguments(inputs, sizes, document))
    assert outputs[0].shape.as_list() == [None, *cases[0].own().shape.as_list()[1:]]
    for output, case in list(zip(outputs, cases, strict=True))[1:]:
        assert output.shape.as_list() == case.own().shape.as_list()
