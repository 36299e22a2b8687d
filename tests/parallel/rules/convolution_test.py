"""Convolutions in parts: they give what the whole gives, and read no more than they need."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from parallel.parts_runner import (
    Array,
    check_nchw,
    check_parts,
    operation_of,
    parts_of,
    stays_whole,
)

from tf_interop.convolution import (
    ConvolutionConfiguration,
    ConvolutionKind,
    computed_output_shape,
)
from tf_interop.parallel.degrees import Axis, Degrees
from tf_interop.parallel.op_parts import Operation, are_addends

TENSORS = {
    "Conv2D": ("image", "filter", "output"),
    "Conv2DBackpropInput": ("sizes", "filter", "output", "image"),
    "Conv2DBackpropFilter": ("image", "sizes", "output", "filter"),
}
OPS = tuple(TENSORS)
DEPTHWISE_OPS = tuple(op.replace("Conv2D", "DepthwiseConv2dNative") for op in OPS)
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
    of_spaces = (*spatial, padding, paddings)
    shapes = (image, filter_, None)
    output = computed_output_shape(
        ConvolutionConfiguration(
            op, ConvolutionKind.FORWARD, depthwise, dtype, "NHWC", *shapes, *of_spaces
        )
    )
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
        parts = check_parts(operation, inputs, results, each, tolerance=tolerance)
        assert sum(part.multiply_adds for part in parts) == multiply_adds, each


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


@pytest.mark.parametrize(
    ("op", "geometry"),
    [
        # TensorFlow computes their gradients on a CPU in float32 alone, and not with EXPLICIT
        # padding.
        *(
            (op, {"dtype": "float32", "dilation": 2, "padding": padding})
            for op in OPS
            for padding in ("SAME", "VALID")
        ),
        ("Conv2D", {"dilation": 3, "padding": "EXPLICIT", "paddings": (2, 3, 0, 3)}),
    ],
)
def test_divides_dilated_convolutions(op: str, geometry: Mapping[str, Any]) -> None:
    check(op, [*AXES, *MIXED], **geometry)


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
        tolerance = TOLERANCES["float32"]
        for part in check_parts(operation, inputs, results, degrees, tolerance=tolerance):
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


WHOLE = ((0, 2), (0, 8), (0, 8), (0, 4))
POINT = {"filter_": (1, 1, 4, 6)}


def boxes(op: str, degrees: Degrees, tensor: str, **geometry: Any) -> list[Any]:
    """The box of a tensor that each part reads or gives."""
    geometry = {"image": (2, 8, 8, 4), "filter_": (3, 3, 4, 6)} | geometry
    operation, _, _, _ = convolution(op, **geometry)
    place = TENSORS[op].index(tensor)
    return [(*part.reads, *part.gives)[place] for part in parts_of(operation, degrees)]


@pytest.mark.parametrize(
    ("op", "tensor", "count", "geometry", "rows"),
    [
        # Three rows of the filter reach one row beyond the part's own.
        ("Conv2D", "image", 3, {}, [(0, 4), (2, 7), (5, 8)]),
        ("Conv2DBackpropInput", "output", 3, {}, [(0, 4), (2, 7), (5, 8)]),
        ("Conv2DBackpropFilter", "image", 3, {}, [(0, 4), (2, 7), (5, 8)]),
        ("Conv2D", "image", 2, {"stride": 2}, [(0, 5), (4, 8)]),
        ("Conv2D", "image", 2, POINT, [(0, 4), (4, 8)]),
        # No window reaches every second row.
        ("Conv2DBackpropInput", "output", 8, {"stride": 2} | POINT, [(0, 1), None] * 4),
    ],
)
def test_a_part_reads_the_rows_of_its_windows(
    op: str, tensor: str, count: int, geometry: dict[str, Any], rows: list[Any]
) -> None:
    read = [box and box[1] for box in boxes(op, Degrees(height=count), tensor, **geometry)]
    if None in rows:
        rows = [each and (place // 2, place // 2 + 1) for place, each in enumerate(rows)]
    assert read == rows


def test_filters_read_the_whole_image() -> None:
    assert boxes("Conv2D", Degrees(filter=2), "image") == [WHOLE, WHOLE]
    filters = [box[2:] for box in boxes("Conv2D", Degrees(filter=2), "filter")]
    assert filters == [((0, 4), (0, 3)), ((0, 4), (3, 6))]
    # The last row and column are read by no window: to leave them out would be to copy the rest.
    assert boxes("Conv2D", Degrees(filter=2), "image", **POINT, stride=2) == [WHOLE, WHOLE]


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
    divided = {axis: parts_of(operation, Degrees(**{axis.value: 2})) for axis in Axis}
    assert all(len(parts) == 2 for parts in divided.values())
    assert {axis for axis, parts in divided.items() if are_addends(parts)} == axes


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("degrees", [*AXES, *MIXED], ids=str)
def test_nchw_is_divided_like_nhwc(op: str, degrees: Degrees) -> None:
    operation, _, _, _ = convolution(op, padding="EXPLICIT", paddings=(2, 1, 0, 2), stride=2)
    images = [place for place, each in enumerate(TENSORS[op]) if each in ("image", "output")]
    check_nchw(operation, degrees, images=images)


@pytest.mark.parametrize("op", OPS)
def test_takes_defaults_for_attributes_that_were_stripped(op: str) -> None:
    operation, inputs, results, _ = convolution(op)
    for name in ("dilations", "data_format"):
        del operation.node.attr[name]
    before = operation.node.SerializeToString(deterministic=True)
    check_parts(operation, inputs, results, Degrees(height=2), tolerance=TOLERANCES["float64"])
    assert operation.node.SerializeToString(deterministic=True) == before


def test_keeps_what_has_nothing_to_compute_whole() -> None:
    for op in OPS:
        # A window lies in the padding alone.
        geometry = {"padding": "EXPLICIT", "paddings": (0, 3, 0, 0), "filter_": (2, 2, 4, 5)}
        assert stays_whole(convolution(op, **geometry)[0], Degrees(sample=2))
    assert stays_whole(convolution("Conv2D", (0, 7, 6, 4))[0], Degrees(filter=2))
