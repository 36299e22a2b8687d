"""Convolutions in parts: they give what the whole gives, and read no more than they need."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from parallel.parts_runner import Array, check_parts, operation_of
from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop.convolution import computed_output_shape
from tf_interop.parallel.degrees import Axis, Degrees
from tf_interop.parallel.node_maker import NodeMaker
from tf_interop.parallel.op_parts import Operation, OpPart
from tf_interop.parallel.rules.convolution import RULES

OPS = ("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter")
DEPTHWISE_OPS = (
    "DepthwiseConv2dNative",
    "DepthwiseConv2dNativeBackpropInput",
    "DepthwiseConv2dNativeBackpropFilter",
)
TENSORS = {
    "Conv2D": ("image", "filter", "output"),
    "Conv2DBackpropInput": ("sizes", "filter", "output", "image"),
    "Conv2DBackpropFilter": ("image", "sizes", "output", "filter"),
}
PADDINGS = ("SAME", "VALID", "EXPLICIT")
TOLERANCES = {"float64": 1e-13, "float32": 2e-5, "float16": 4e-3}
"""Sums of some hundred products in another order; those in float16 are of float32 inside."""
AXES = [Degrees(**{axis.value: 2}) for axis in Axis]
MIXED = [
    *(Degrees(), Degrees(height=3), Degrees(width=5), Degrees(sample=2, height=2)),
    *(Degrees(height=2, width=3), Degrees(height=2, filter=3), Degrees(width=2, channel=3)),
    *(Degrees(filter=2, channel=2), Degrees(2, 2, 2, 2, 2)),
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


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("op", OPS)
def test_divides_dilated_convolutions(op: str, padding: str) -> None:
    # TensorFlow computes their gradients on a CPU in float32 alone, and not with EXPLICIT padding.
    check(op, [*AXES, *MIXED], dtype="float32", dilation=2, padding=padding)


def test_divides_dilated_convolutions_with_explicit_padding() -> None:
    check("Conv2D", [*AXES, *MIXED], dilation=3, padding="EXPLICIT", paddings=(2, 3, 0, 3))


@pytest.mark.parametrize("op", DEPTHWISE_OPS)
@pytest.mark.parametrize("geometry", [{}, {"stride": 2, "padding": "VALID"}], ids=str)
def test_divides_depthwise_convolutions(op: str, geometry: Mapping[str, Any]) -> None:
    check(op, [*AXES, *MIXED], (3, 7, 6, 4), (3, 3, 4, 2), **geometry)
    check(op, AXES, (3, 7, 6, 1), (3, 3, 1, 4), **geometry)


@pytest.mark.parametrize("op", OPS)
def test_divides_grouped_convolutions_by_whole_groups(op: str) -> None:
    # TensorFlow computes their gradients on a CPU in float32 alone.
    operation, inputs, results, _ = convolution(op, (3, 5, 4, 6), (3, 3, 2, 9), dtype="float32")
    for degrees in [*AXES, *MIXED]:
        parts = check_parts(
            RULES[op], operation, inputs, results, degrees, tolerance=TOLERANCES["float32"]
        )
        for part in parts.parts:
            read = dict(zip(TENSORS[op], (*part.reads, *part.gives), strict=True))
            groups = [divmod(end, 3) for end in read["filter"][-1]]
            assert groups == [divmod(end, 2) for end in read["image"][-1]], degrees
            assert all(remainder == 0 for _, remainder in groups), degrees


@pytest.mark.parametrize("op", [*OPS, *DEPTHWISE_OPS])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_divides_convolutions_of_other_dtypes(op: str, dtype: str) -> None:
    check(op, [Degrees(height=2, width=2), Degrees(filter=2, channel=2)], dtype=dtype)


def test_divides_any_convolution() -> None:
    numbers = random.Random(0)
    divided = 0
    for _ in range(60):
        stride = numbers.randint(1, 3)
        geometry: dict[str, Any] = {"stride": stride, "padding": numbers.choice(PADDINGS)}
        taps = numbers.randint(1, 4), numbers.randint(1, 4)
        if geometry["padding"] == "EXPLICIT":
            most = [min(each, 3) - 1 for each in (taps[0], taps[0], taps[1], taps[1])]
            geometry["paddings"] = [numbers.randint(0, each) for each in most]
        shapes = (2, numbers.randint(4, 9), numbers.randint(4, 9), 3), (*taps, 3, 2)
        degrees = Degrees(*(numbers.randint(1, 2) for _ in Axis))
        check(numbers.choice(OPS), [degrees], *shapes, **geometry)
        divided += degrees.count > 1
    assert divided > 50


def boxes(
    op: str, degrees: Degrees, tensor: str, *shapes: Sequence[int], **geometry: Any
) -> list[Any]:
    """The box of a tensor that each part reads or gives."""
    operation, _, _, _ = convolution(op, *shapes, **geometry)
    parts = RULES[op](operation, degrees)
    assert parts is not None
    place = TENSORS[op].index(tensor)
    return [(*part.reads, *part.gives)[place] for part in parts.parts]


SQUARE = (2, 8, 8, 4), (3, 3, 4, 6)
WHOLE = ((0, 2), (0, 8), (0, 8), (0, 4))


@pytest.mark.parametrize(
    ("op", "read"),
    [("Conv2D", "image"), ("Conv2DBackpropInput", "output"), ("Conv2DBackpropFilter", "image")],
)
def test_three_rows_of_filter_read_a_halo_of_one(op: str, read: str) -> None:
    rows = [box[1] for box in boxes(op, Degrees(height=3), read, *SQUARE)]
    assert rows == [(0, 4), (2, 7), (5, 8)]


def test_stride_2_reads_a_halo_on_one_side() -> None:
    rows = [box[1] for box in boxes("Conv2D", Degrees(height=2), "image", *SQUARE, stride=2)]
    assert rows == [(0, 5), (4, 8)]


def test_one_row_of_filter_reads_no_halo() -> None:
    rows = boxes("Conv2D", Degrees(height=2), "image", SQUARE[0], (1, 1, 4, 6))
    assert [box[1] for box in rows] == [(0, 4), (4, 8)]


def test_what_is_not_divided_is_read_as_it_is() -> None:
    # The last row and column are read by no window: to leave them out would be to copy the rest.
    shapes = SQUARE[0], (1, 1, 4, 6)
    assert boxes("Conv2D", Degrees(filter=2), "image", *shapes, stride=2) == [WHOLE, WHOLE]


def test_filters_read_the_whole_image() -> None:
    assert boxes("Conv2D", Degrees(filter=2), "image", *SQUARE) == [WHOLE, WHOLE]
    filters = [box[2:] for box in boxes("Conv2D", Degrees(filter=2), "filter", *SQUARE)]
    assert filters == [((0, 4), (0, 3)), ((0, 4), (3, 6))]


def test_channels_give_addends_of_the_whole_output() -> None:
    operation, _, _, _ = convolution("Conv2D", *SQUARE)
    parts = RULES["Conv2D"](operation, Degrees(channel=2))
    assert parts is not None
    assert parts.are_sums == (True,)
    assert {part.gives for part in parts.parts} == {(((0, 2), (0, 8), (0, 8), (0, 6)),)}


@pytest.mark.parametrize(
    ("op", "axes"),
    [
        ("Conv2D", {Axis.CHANNEL}),
        ("Conv2DBackpropInput", {Axis.FILTER}),
        ("Conv2DBackpropFilter", {Axis.SAMPLE, Axis.HEIGHT, Axis.WIDTH}),
        ("DepthwiseConv2dNative", set()),
        ("DepthwiseConv2dNativeBackpropInput", set()),
        ("DepthwiseConv2dNativeBackpropFilter", {Axis.SAMPLE, Axis.HEIGHT, Axis.WIDTH}),
    ],
)
def test_adds_up_what_is_no_axis_of_the_result(op: str, axes: set[Axis]) -> None:
    operation, _, _, _ = convolution(op)
    sums = set()
    for axis in Axis:
        parts = RULES[op](operation, Degrees(**{axis.value: 2}))
        assert parts is not None
        assert len(parts.parts) == 2
        sums |= {axis} if parts.are_sums[0] else set()
    assert sums == axes


def test_what_no_window_reaches_reads_nothing() -> None:
    shapes = (1, 4, 4, 2), (1, 1, 2, 3)
    read = boxes("Conv2DBackpropInput", Degrees(height=4), "output", *shapes, stride=2)
    assert [box and box[1] for box in read] == [(0, 1), None, (1, 2), None]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("degrees", [*AXES, *MIXED], ids=str)
def test_nchw_is_divided_like_nhwc(op: str, degrees: Degrees) -> None:
    operation, _, _, _ = convolution(op, padding="EXPLICIT", paddings=(2, 1, 0, 2), stride=2)
    nhwc = RULES[op](operation, degrees)
    nchw = RULES[op](in_nchw(operation), degrees)
    assert nhwc is not None
    assert nchw is not None
    assert nchw.are_sums == nhwc.are_sums
    for part, other in zip(nhwc.parts, nchw.parts, strict=True):
        assert (other.place, other.multiply_adds) == (part.place, part.multiply_adds)
        for tensor, box, box_in_nchw in zip(
            TENSORS[op], part.reads + part.gives, other.reads + other.gives, strict=True
        ):
            is_image = tensor in ("image", "output") and box is not None
            assert box_in_nchw == (transposed(box) if is_image else box)
        for node, node_in_nchw in zip(nodes_of(part), nodes_of(other), strict=True):
            assert node_in_nchw.op == node.op
            if node.op == "Const":
                value, value_in_nchw = (
                    tf.make_ndarray(each.attr["value"].tensor).tolist()
                    for each in (node, node_in_nchw)
                )
                is_filter = op == "Conv2DBackpropFilter" and isinstance(value[0], int)
                assert value_in_nchw == (value if is_filter else [*transposed(value)])


def transposed(values: Sequence[Any]) -> tuple[Any, ...]:
    """Of values along NHWC those along NCHW."""
    return values[0], values[3], values[1], values[2]


def in_nchw(operation: Operation) -> Operation:
    """The same in the other layout."""
    node = node_def_pb2.NodeDef()
    node.CopyFrom(operation.node)
    node.attr["data_format"].s = b"NCHW"
    for name in ("strides", "dilations"):
        node.attr[name].list.i[:] = transposed(node.attr[name].list.i)
    paddings = node.attr["explicit_paddings"].list.i
    pairs = list(zip(paddings[::2], paddings[1::2], strict=True))
    paddings[:] = [each for pair in transposed(pairs) for each in pair]
    tensors = TENSORS[node.op]
    shapes = [
        transposed(shape) if tensor in ("image", "output") else shape
        for tensor, shape in zip(
            tensors, operation.input_shapes + operation.output_shapes, strict=True
        )
    ]
    return dataclasses.replace(
        operation, node=node, input_shapes=shapes[:-1], output_shapes=shapes[-1:], layout="NCHW"
    )


def nodes_of(part: OpPart) -> list[node_def_pb2.NodeDef]:
    """What a part makes."""
    graph_def = graph_pb2.GraphDef()
    names = map(str, itertools.count())
    maker = NodeMaker(graph_def, "", "", lambda _: next(names))
    part.emit(maker, ["" if box is None else "x" for box in part.reads])
    return list(graph_def.node)


@pytest.mark.parametrize("op", OPS)
def test_takes_defaults_for_attributes_that_were_stripped(op: str) -> None:
    operation, inputs, results, _ = convolution(op)
    for name in ("dilations", "data_format"):
        del operation.node.attr[name]
    before = operation.node.SerializeToString(deterministic=True)
    check_parts(
        *(RULES[op], operation, inputs, results, Degrees(height=2)), tolerance=TOLERANCES["float64"]
    )
    assert operation.node.SerializeToString(deterministic=True) == before


def test_keeps_a_convolution_whole_with_a_window_in_the_padding_alone() -> None:
    for op in OPS:
        operation, _, _, _ = convolution(
            op, padding="EXPLICIT", paddings=(0, 3, 0, 0), filter_=(2, 2, 4, 5)
        )
        assert RULES[op](operation, Degrees(sample=2)) is None


def test_keeps_an_empty_convolution_whole() -> None:
    operation, _, _, _ = convolution("Conv2D", (0, 7, 6, 4))
    assert RULES["Conv2D"](operation, Degrees(filter=2)) is None
