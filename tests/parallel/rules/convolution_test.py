"""Convolutions, matrix products and biases in parts: same results, and no needless reads."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from parallel.parts_runner import (
    Array,
    check,
    check_parts,
    in_nchw,
    operation_of,
    parts_of,
    stays_whole,
    values,
)

from tf_interop.convolution import ConvolutionKind
from tf_interop.parallel.op_parts import Operation, are_addends
from tf_interop.parallel.types import Axis, Degrees

FORWARD, INPUT, FILTER = ConvolutionKind
TENSORS = {
    "Conv2D": ("image", "filter", "output"),
    "Conv2DBackpropInput": ("sizes", "filter", "output", "image"),
    "Conv2DBackpropFilter": ("image", "sizes", "output", "filter"),
}
OPS = tuple(TENSORS)
DEPTHWISE_OPS = tuple(op.replace("Conv2D", "DepthwiseConv2dNative") for op in OPS)
PADDINGS = ("SAME", "VALID", "EXPLICIT")
TOLERANCES = {"float64": 1e-13, "float32": 2e-5, "float16": 4e-3}
"""For sums of some hundred products in another order. Sums in float16 are float32 inside."""
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
    layout: str = "NHWC",
) -> tuple[Operation, list[Array], list[Array], int]:
    """A convolution of random values: the operation, inputs, results and multiply-adds.

    Shapes are in NHWC, whatever the layout.
    """
    images, filters = (values(*shape, dtype=dtype) for shape in (image, filter_))
    attributes: dict[str, Any] = {
        "T": tf.as_dtype(dtype),
        "strides": [1, stride, stride, 1],
        "dilations": [1, dilation, dilation, 1],
        "padding": padding,
        "data_format": layout,
    }
    of_sides = [[0, 0], paddings[:2], paddings[2:], [0, 0]]
    if layout == "NCHW":
        image, of_sides = in_nchw(image), in_nchw(of_sides)
        images = images.transpose(0, 3, 1, 2)
        attributes |= {name: in_nchw(attributes[name]) for name in ("strides", "dilations")}
    if paddings:
        attributes["explicit_paddings"] = list(np.ravel(of_sides).tolist())
    inputs = [images, filters]
    forward = DEPTHWISE_OPS[0] if op in DEPTHWISE_OPS else OPS[0]
    operation, results = operation_of(forward, inputs, attributes, layout=layout)
    per_output = filter_[0] * filter_[1] * (1 if op in DEPTHWISE_OPS else filter_[2])
    multiply_adds = results[0].size * per_output
    if op != forward:
        of_input = op.endswith("BackpropInput")
        inputs[0 if of_input else 1] = np.array(image if of_input else filter_, np.int32)
        inputs.append(values(*results[0].shape, seed=1, dtype=dtype))
        operation, results = operation_of(op, inputs, attributes, layout=layout)
    return operation, inputs, results, multiply_adds


def check_convolution(
    op: str, degrees: Iterable[Degrees], *shapes: Sequence[int], **geometry: Any
) -> None:
    operation, inputs, results, multiply_adds = convolution(op, *shapes, **geometry)
    tolerance = TOLERANCES[geometry.get("dtype", "float64")]
    for each in degrees:
        parts = check_parts(operation, inputs, results, each, tolerance=tolerance)
        assert sum(part.multiply_adds for part in parts) == multiply_adds, each


@pytest.mark.parametrize("op", OPS)
def test_divides_any_convolution(op: str) -> None:
    numbers = random.Random(op)
    for _ in range(80):
        padding, taps = numbers.choice(PADDINGS), (numbers.randint(1, 5), numbers.randint(1, 4))
        geometry: dict[str, Any] = {"padding": padding, "stride": numbers.randint(1, 3)}
        if padding == "EXPLICIT":
            most = (min(taps[0], 3) - 1, min(taps[1], 3) - 1)
            geometry["paddings"] = [numbers.randint(0, most[each // 2]) for each in range(4)]
            geometry["layout"] = numbers.choice(["NHWC", "NCHW"])
        elif numbers.random() < 0.3:
            # CPUs compute gradients of dilated ones only in float32, and not with EXPLICIT padding.
            geometry |= {"stride": 1, "dilation": 2, "dtype": "float32"}
        reach = [(each - 1) * geometry.get("dilation", 1) + 1 for each in taps]
        image = (numbers.randint(2 if padding == "SAME" else each, 10) for each in reach)
        degrees = numbers.choice([*AXES, *MIXED])
        check_convolution(op, [degrees], (3, *image, 4), (*taps, 4, 5), **geometry)


@pytest.mark.parametrize("op", DEPTHWISE_OPS)
@pytest.mark.parametrize("geometry", [{}, {"stride": 2, "padding": "VALID"}], ids=str)
def test_divides_depthwise_convolutions(op: str, geometry: Mapping[str, Any]) -> None:
    check_convolution(op, [*AXES, *MIXED], (3, 7, 6, 4), (3, 3, 4, 2), **geometry)
    check_convolution(op, AXES, (3, 7, 6, 1), (3, 3, 1, 4), **geometry)


@pytest.mark.parametrize("op", OPS)
def test_divides_grouped_convolutions_by_whole_groups(op: str) -> None:
    # CPUs compute their gradients in float32 only.
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
    degrees = [Degrees(height=2, width=2), Degrees(filter=2, channel=2)]
    check_convolution(op, degrees, dtype=dtype)


WHOLE = ((0, 2), (0, 8), (0, 8), (0, 4))
POINT = {"filter_": (1, 1, 4, 6)}


def boxes(op: str, degrees: Degrees, tensor: str, **geometry: Any) -> list[Any]:
    """The box of a tensor that each part reads or computes."""
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
        (
            *("Conv2DBackpropInput", "output", 8, {"stride": 2} | POINT),
            [(0, 1), None, (1, 2), None, (2, 3), None, (3, 4), None],
        ),
    ],
)
def test_a_part_reads_the_rows_of_its_windows(
    op: str, tensor: str, count: int, geometry: dict[str, Any], rows: list[Any]
) -> None:
    read = boxes(op, Degrees(height=count), tensor, **geometry)
    assert [box and box[1] for box in read] == rows


def test_parts_of_the_filters_read_the_whole_image() -> None:
    # No window reads the last row and column, but leaving them out would copy the rest.
    assert boxes("Conv2D", Degrees(filter=2), "image", **POINT, stride=2) == [WHOLE, WHOLE]


def test_keeps_operations_whole_that_have_nothing_to_compute() -> None:
    for op in OPS:
        # A window lies entirely in the padding.
        geometry = {"padding": "EXPLICIT", "paddings": (0, 3, 0, 0), "filter_": (2, 2, 4, 5)}
        assert stays_whole(convolution(op, **geometry)[0], Degrees(sample=2))
    assert stays_whole(convolution("Conv2D", (0, 7, 6, 4))[0], Degrees(filter=2))
    assert stays_whole(operation_of(*product(inner=0))[0], Degrees(sample=2))


def doubles(*shape: int) -> Array:
    return values(*shape, dtype=np.float64)


def product(inner: int = 20, **transposed: bool) -> tuple[str, list[Array], Any]:
    """A matrix product with 7 columns, its inputs and attributes."""
    first, second = doubles(6, inner), doubles(inner, 7)
    inputs = [
        first.T if transposed.get("transpose_a") else first,
        second.T if transposed.get("transpose_b") else second,
    ]
    return "MatMul", inputs, transposed


@pytest.mark.parametrize("role", ConvolutionKind)
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
def test_products_in_parts_give_the_same(
    transpose_a: bool, transpose_b: bool, role: ConvolutionKind
) -> None:
    divisions = [
        *(Degrees(), Degrees(sample=2), Degrees(filter=3), Degrees(channel=4)),
        Degrees(sample=2, filter=2, channel=2),
    ]
    case = product(transpose_a=transpose_a, transpose_b=transpose_b)
    found = check(*case, divisions, role=role, tolerance=1e-14)
    for degrees, parts in zip(divisions, found, strict=True):
        assert len(parts) == degrees.count
        assert sum(part.multiply_adds for part in parts) == 6 * 20 * 7


ROWS = [(3, 20), (20, 7)], (3, 7), False
COLUMNS = [(6, 20), (20, 4)], (6, 4), False
ADDENDS = [(6, 10), (10, 7)], (6, 7), True


@pytest.mark.parametrize(
    ("role", "axis", "expected"),
    [
        *((FORWARD, "sample", ROWS), (FORWARD, "filter", COLUMNS), (FORWARD, "channel", ADDENDS)),
        *((INPUT, "sample", ROWS), (INPUT, "filter", ADDENDS), (INPUT, "channel", COLUMNS)),
        *((FILTER, "sample", ADDENDS), (FILTER, "filter", COLUMNS), (FILTER, "channel", ROWS)),
    ],
)
def test_the_role_of_a_product_says_which_axis_divides_what(
    role: ConvolutionKind, axis: str, expected: Any
) -> None:
    operation, _ = operation_of(*product(), role=role)
    first, *others = parts_of(operation, Degrees(**{axis: 2}))
    reads = [tuple(end for _, end in box or ()) for box in first.reads]
    given = tuple(end for _, end in first.gives[0])
    assert (reads, given, are_addends([first, *others])) == expected


@pytest.mark.parametrize("op", ["BiasAdd", "BiasAddGrad"])
@pytest.mark.parametrize("shape", [(3, 5), (3, 4, 5, 6)])
def test_a_bias_is_divided_as_the_channels(op: str, shape: tuple[int, ...]) -> None:
    divisions = [
        *(Degrees(sample=2), Degrees(filter=2), Degrees(channel=3), Degrees(filter=2, channel=2)),
        Degrees(sample=2, height=2, width=2, filter=2),
    ]
    inputs = [doubles(*shape), doubles(shape[-1])][: 2 if op == "BiasAdd" else 1]
    found = check(op, inputs, None, divisions, tolerance=1e-14)
    for degrees, parts in zip(divisions, found, strict=True):
        assert are_addends(parts) == (op == "BiasAddGrad" and degrees.sample > 1)
        boxes = [part.reads + part.gives for part in parts]
        assert all(bias == (image[-1],) for image, bias, *_ in boxes)
    if len(shape) == 4:
        inputs[0] = inputs[0].transpose(0, 3, 1, 2)
        nchw = {"data_format": "NCHW"}
        check(op, inputs, nchw, divisions, tolerance=1e-14, layout="NCHW")
