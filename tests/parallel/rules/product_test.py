"""Matrix products and biases in parts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from parallel.parts_runner import Array, check, operation_of, parts_of, stays_whole, values

from tf_interop.convolution import ConvolutionKind
from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.op_parts import are_addends

FORWARD, INPUT, FILTER = ConvolutionKind
TOLERANCE = 1e-14
"""Sums of up to 20 products in another order."""


def doubles(*shape: int) -> Array:
    return values(*shape, dtype=np.float64)


def product(rows: int = 6, inner: int = 20, **transposed: bool) -> tuple[str, list[Array], Any]:
    """A product with 7 columns, what it reads, and its attributes."""
    first, second = doubles(rows, inner), doubles(inner, 7)
    inputs = [
        first.T if transposed.get("transpose_a") else first,
        second.T if transposed.get("transpose_b") else second,
    ]
    return "MatMul", inputs, transposed


@pytest.mark.parametrize("role", ConvolutionKind)
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
def test_parts_give_what_the_whole_gives(
    transpose_a: bool, transpose_b: bool, role: ConvolutionKind
) -> None:
    divisions = [
        *(Degrees(), Degrees(sample=2), Degrees(filter=3), Degrees(channel=4)),
        Degrees(sample=2, filter=2, channel=2),
    ]
    case = product(transpose_a=transpose_a, transpose_b=transpose_b)
    found = check(*case, divisions, role=role, tolerance=TOLERANCE)
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
def test_reads_what_the_axis_of_its_layer_divides(
    role: ConvolutionKind, axis: str, expected: Any
) -> None:
    operation, _ = operation_of(*product(), role=role)
    first, *others = parts_of(operation, Degrees(**{axis: 2}))
    reads = [tuple(end for _, end in box or ()) for box in first.reads]
    given = tuple(end for _, end in first.gives[0])
    assert (reads, given, are_addends([first, *others])) == expected


def test_leaves_places_without_a_part_beyond_a_short_axis() -> None:
    degrees = Degrees(sample=2, height=2, channel=2)
    [parts] = check(*product(rows=1), [degrees], tolerance=TOLERANCE)
    assert [part.place for part in parts] == [0, 1]


@pytest.mark.parametrize("op", ["BiasAdd", "BiasAddGrad"])
@pytest.mark.parametrize("shape", [(3, 5), (3, 4, 5, 6)])
def test_a_bias_is_divided_as_the_channels(op: str, shape: tuple[int, ...]) -> None:
    divisions = [
        *(Degrees(sample=2), Degrees(filter=2), Degrees(channel=3), Degrees(filter=2, channel=2)),
        Degrees(sample=2, height=2, width=2, filter=2),
    ]
    inputs = [doubles(*shape), doubles(shape[-1])][: 2 if op == "BiasAdd" else 1]
    found = check(op, inputs, None, divisions, tolerance=TOLERANCE)
    for degrees, parts in zip(divisions, found, strict=True):
        assert are_addends(parts) == (op == "BiasAddGrad" and degrees.sample > 1)
        boxes = [part.reads + part.gives for part in parts]
        assert all(bias == (image[-1],) for image, bias, *_ in boxes)


def test_the_channels_of_nchw_are_second() -> None:
    operation, _ = operation_of("BiasAdd", [doubles(2, 4, 5, 6), doubles(6)])
    shape = (2, 6, 4, 5)
    nchw = dataclasses.replace(
        operation, input_shapes=(shape, (6,)), output_shapes=(shape,), layout="NCHW"
    )
    part = parts_of(nchw, Degrees(filter=2))[1]
    assert part.reads == (((0, 2), (3, 6), (0, 4), (0, 5)), ((3, 6),))


@pytest.mark.parametrize(
    "case",
    [
        ("BiasAdd", [doubles(2, 3, 4), doubles(4)]),
        ("BiasAddGrad", [doubles(2, 3, 4)]),
        product(inner=0),
    ],
    ids=["bias", "gradient of a bias", "empty product"],
)
def test_keeps_what_has_no_axes_of_a_layer_whole(case: Any) -> None:
    assert stays_whole(operation_of(*case)[0], Degrees(sample=2))
