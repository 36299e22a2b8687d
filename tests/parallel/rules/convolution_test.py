"""Convolutions in parts: they give what the whole gives, and read no more than they need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from parallel.parts_runner import Array, check_parts, operation_of

from tf_interop.convolution import computed_output_shape
from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.op_parts import Operation
from tf_interop.parallel.rules.convolution import RULES

OPS = ("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter")
DEPTHWISE_OPS = (
    "DepthwiseConv2dNative",
    "DepthwiseConv2dNativeBackpropInput",
    "DepthwiseConv2dNativeBackpropFilter",
)
TOLERANCES = {"float64": 1e-13, "float32": 2e-5, "float16": 4e-3}
"""Sums of some hundred products in another order; those in float16 are of float32 inside."""
AXES = [Degrees(**{axis: 2}) for axis in ("sample", "height", "width", "filter", "channel")]
MIXED = [
    Degrees(),
    Degrees(height=3),
    Degrees(width=5),
    Degrees(sample=2, height=2),
    Degrees(height=2, width=3),
    Degrees(height=2, filter=3),
    Degrees(width=2, channel=3),
    Degrees(filter=2, channel=2),
    Degrees(sample=2, height=2, width=2, filter=2, channel=2),
]


def convolution(
    op: str,
    image: Sequence[int] = (3, 7, 6, 4),
    filter_: Sequence[int] = (3, 3, 4, 5),
    *,
    stride: int = 1,
    dilation: int = 1,
    padding: str = "SAME",
    paddings: Sequence[int] = (),
    dtype: str = "float64",
) -> tuple[Operation, list[Array], list[Array], int]:
    """A convolution of random values, what it reads and gives, and how much it multiplies."""
    values = np.random.default_rng(0)
    depthwise = op in DEPTHWISE_OPS
    spatial = (stride, stride), (dilation, dilation)
    output = computed_output_shape(image, filter_, "NHWC", depthwise, *spatial, padding, paddings)
    tensors = {
        "image": values.standard_normal(image).astype(dtype),
        "filter": values.standard_normal(filter_).astype(dtype),
        "output": values.standard_normal(output).astype(dtype),
    }
    if op.endswith("BackpropInput"):
        inputs = [np.array(image, np.int32), tensors["filter"], tensors["output"]]
    elif op.endswith("BackpropFilter"):
        inputs = [tensors["image"], np.array(filter_, np.int32), tensors["output"]]
    else:
        inputs = [tensors["image"], tensors["filter"]]
    attributes: dict[str, Any] = {
        "T": tf.as_dtype(dtype),
        "strides": [1, stride, stride, 1],
        "dilations": [1, dilation, dilation, 1],
        "padding": padding,
        "data_format": "NHWC",
    }
    if paddings:
        attributes["explicit_paddings"] = [0, 0, *paddings, 0, 0]
    operation, results = operation_of(op, inputs, attributes)
    per_output = filter_[0] * filter_[1] * (1 if depthwise else filter_[2])
    return operation, inputs, results, math.prod(output) * per_output


def check(op: str, degrees: Iterable[Degrees], *shapes: Sequence[int], **geometry: Any) -> None:
    operation, inputs, results, multiply_adds = convolution(op, *shapes, **geometry)
    tolerance = TOLERANCES[geometry.get("dtype", "float64")]
    for each in degrees:
        parts = check_parts(RULES[op], operation, inputs, results, each, tolerance=tolerance)
        assert sum(part.multiply_adds for part in parts.parts) == multiply_adds, each


GEOMETRIES: dict[str, dict[str, Any]] = {
    "same": {},
    "valid": {"padding": "VALID"},
    "even taps": {"filter_": (2, 4, 4, 5)},
    "stride 2": {"stride": 2},
    "stride 2, valid": {"stride": 2, "padding": "VALID"},
    "stride 2, five taps": {"stride": 2, "filter_": (5, 5, 4, 5)},
    "stride longer than the filter": {"stride": 2, "filter_": (1, 1, 4, 5)},
    "stride longer than the filter, valid": {
        "stride": 3,
        "filter_": (2, 1, 4, 5),
        "padding": "VALID",
    },
    "explicit": {"padding": "EXPLICIT", "paddings": (2, 1, 0, 2)},
    "explicit, stride 2": {"padding": "EXPLICIT", "paddings": (1, 1, 2, 1), "stride": 2},
    "explicit, stride longer than the filter": {
        "padding": "EXPLICIT",
        "paddings": (1, 2, 0, 1),
        "stride": 3,
        "filter_": (2, 2, 4, 5),
    },
    "image of few rows": {"image": (3, 2, 6, 4), "filter_": (5, 5, 4, 5)},
}


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
@pytest.mark.parametrize("op", OPS)
def test_parts_give_what_the_whole_gives(op: str, geometry: Mapping[str, Any]) -> None:
    check(op, [*AXES, *MIXED], **geometry)
