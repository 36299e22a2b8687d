from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from parallel.parts_runner import (
    Array,
    check,
    in_nchw,
    operation_of,
    parts_of,
    stays_whole,
)
from tensorflow.core.framework import graph_pb2

from tf_interop.parallel.node_maker import NodeMaker
from tf_interop.parallel.types import Degrees

SHAPE = (3, 11, 10, 4)
# Many equal values, all below zero, so that padding with zeros would show.
IMAGE = np.random.default_rng(0).integers(-14, -6, SHAPE).astype(np.float32)
OPS = ("MaxPool", "AvgPool", "MaxPoolGrad", "AvgPoolGrad")
DEGREES = (
    Degrees(sample=2),
    Degrees(filter=3),
    Degrees(height=2),
    Degrees(height=5, width=3),
    Degrees(sample=2, height=2, width=2, channel=2),
)
# Kernel and stride (height, width), padding.
GEOMETRIES: tuple[tuple[tuple[int, int], tuple[int, int], str], ...] = (
    ((2, 2), (2, 2), "VALID"),
    ((3, 3), (2, 2), "SAME"),
    ((3, 3), (2, 2), "VALID"),
    ((3, 2), (1, 1), "SAME"),
    ((5, 3), (1, 2), "SAME"),
    ((1, 1), (2, 2), "VALID"),
    ((2, 1), (3, 4), "SAME"),
    ((2, 2), (3, 4), "VALID"),
    ((11, 10), (1, 1), "VALID"),
    ((3, 4), (2, 1), "EXPLICIT"),
)


def case(
    op: str,
    kernel: tuple[int, int] = (3, 3),
    stride: tuple[int, int] = (2, 2),
    padding: str = "VALID",
    image: Array = IMAGE,
    layout: str = "NHWC",
) -> tuple[str, list[Array], dict[str, Any]]:
    """A pooling or the gradient of one, its inputs and attributes."""
    attributes: dict[str, Any] = {"padding": padding, "data_format": layout}
    attributes |= {"ksize": [1, *kernel, 1], "strides": [1, *stride, 1]}
    if layout == "NCHW":
        image = image.transpose(0, 3, 1, 2)
        attributes |= {name: in_nchw(attributes[name]) for name in ("ksize", "strides")}
    if padding == "EXPLICIT":
        attributes["explicit_paddings"] = [0, 0, 2, 0, 1, 2, 0, 0]
    pooling = op.removesuffix("Grad"), [image], attributes
    if pooling[0] == op:
        return pooling
    _, [output] = operation_of(*pooling)
    gradient = np.random.default_rng(1).normal(size=output.shape).astype(np.float32)
    if op == "MaxPoolGrad":
        return op, [image, output, gradient], attributes
    return op, [np.array(image.shape, np.int32), gradient], attributes


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_parts_give_the_same(op: str, geometry: Any) -> None:
    if geometry[2] == "EXPLICIT" and "Avg" in op:
        pytest.skip("TensorFlow has no AvgPool with explicit padding")
    # Maxima are exact; gradients are sums in another order.
    check(*case(op, *geometry), DEGREES, tolerance=0 if op == "MaxPool" else 1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_pads_with_the_lowest_number_of_a_dtype(dtype: str) -> None:
    image = IMAGE.astype(tf.as_dtype(dtype).as_numpy_dtype)
    check(*case("MaxPool", padding="SAME", image=image), DEGREES[3:4])


@pytest.mark.parametrize("padding", ["SAME", "EXPLICIT"])
def test_windows_of_nothing_but_minus_infinity(padding: str) -> None:
    image = IMAGE.copy()
    image[0, :4, :4] = image[1, -5:, -5:] = image[2, 4:8] = -np.inf
    pooling = case("MaxPool", (3, 4), (2, 1), padding, image=image)
    check(*pooling, DEGREES)
    # A CPU ignores what is below its lowest number. A GPU does not.
    graph_def = graph_pb2.GraphDef()
    part = parts_of(operation_of(*pooling)[0], Degrees(height=2))[0]
    part.emit(NodeMaker(graph_def, "", "part", set()), ["image"])
    values = [
        tf.make_ndarray(node.attr["value"].tensor) for node in graph_def.node if node.op == "Const"
    ]
    assert any(np.all(value == -np.inf) for value in values)


def test_a_part_reads_only_its_windows() -> None:
    [parts] = check(*case("MaxPool"), [Degrees(height=2)])
    assert [(part.reads[0][1], part.gives[0][1]) for part in parts] == [
        ((0, 7), (0, 3)),
        ((6, 11), (3, 5)),
    ]


def test_a_part_without_windows_reads_nothing() -> None:
    [parts] = check(*case("AvgPoolGrad", (1, 1), (10, 1)), [Degrees(height=3)])
    assert parts[1].reads == (None, None)


@pytest.mark.parametrize("op", OPS)
def test_divides_nchw(op: str) -> None:
    pooling = case(op, (3, 2), (2, 1), "SAME", layout="NCHW")
    check(*pooling, DEGREES, layout="NCHW", tolerance=1e-6)


def test_keeps_a_pooling_of_channels_whole() -> None:
    attributes = {"padding": "VALID", "ksize": [1, 1, 1, 2], "strides": [1, 1, 1, 2]}
    assert stays_whole(operation_of("MaxPool", [IMAGE], attributes)[0], Degrees(sample=2))
