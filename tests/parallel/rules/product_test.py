"""Matrix products and biases in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from parallel.parts_runner import Array, check_parts, operation_of

from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.op_parts import Operation, Role
from tf_interop.parallel.rules.product import RULES

TOLERANCE = 1e-14
"""Sums of up to 20 products in another order."""


def values(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape)


def product(
    rows: int = 6, inner: int = 20, columns: int = 7, role: Role = Role.FORWARD, **transposed: bool
) -> tuple[Operation, list[Array], list[Array]]:
    """A product, what it reads and what it gives."""
    first, second = values(rows, inner), values(inner, columns)
    inputs = [
        first.T if transposed.get("transpose_a") else first,
        second.T if transposed.get("transpose_b") else second,
    ]
    operation, results = operation_of("MatMul", inputs, {"T": tf.float64, **transposed}, role=role)
    return operation, inputs, results


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
def test_parts_give_what_the_whole_gives(transpose_a: bool, transpose_b: bool, role: Role) -> None:
    operation, inputs, results = product(
        role=role, transpose_a=transpose_a, transpose_b=transpose_b
    )
    divisions = [
        Degrees(),
        Degrees(sample=2),
        Degrees(filter=3),
        Degrees(channel=4),
        Degrees(sample=2, filter=2, channel=2),
    ]
    for degrees in divisions:
        parts = check_parts(
            RULES["MatMul"], operation, inputs, results, degrees, tolerance=TOLERANCE
        )
        assert len(parts.parts) == degrees.count
        assert sum(part.multiply_adds for part in parts.parts) == 6 * 20 * 7


@pytest.mark.parametrize(
    ("role", "degrees", "reads", "gives", "is_sum"),
    [
        (Role.FORWARD, Degrees(sample=2), [(3, 20), (20, 7)], (3, 7), False),
        (Role.FORWARD, Degrees(filter=2), [(6, 20), (20, 4)], (6, 4), False),
        (Role.FORWARD, Degrees(channel=2), [(6, 10), (10, 7)], (6, 7), True),
        (Role.BACKWARD_INPUT, Degrees(sample=2), [(3, 20), (20, 7)], (3, 7), False),
        (Role.BACKWARD_INPUT, Degrees(filter=2), [(6, 10), (10, 7)], (6, 7), True),
        (Role.BACKWARD_INPUT, Degrees(channel=2), [(6, 20), (20, 4)], (6, 4), False),
        (Role.BACKWARD_FILTER, Degrees(sample=2), [(6, 10), (10, 7)], (6, 7), True),
        (Role.BACKWARD_FILTER, Degrees(filter=2), [(6, 20), (20, 4)], (6, 4), False),
        (Role.BACKWARD_FILTER, Degrees(channel=2), [(3, 20), (20, 7)], (3, 7), False),
    ],
)
def test_reads_what_the_axis_of_its_layer_divides(
    role: Role, degrees: Degrees, reads: Any, gives: Any, is_sum: bool
) -> None:
    operation, _, _ = product(role=role)
    parts = RULES["MatMul"](operation, degrees)
    assert parts is not None
    first = parts.parts[0]
    assert [tuple(end for _, end in box or ()) for box in first.reads] == reads
    assert tuple(end for _, end in first.gives[0]) == gives
    assert parts.are_sums == (is_sum,)


def test_leaves_places_without_a_part_beyond_a_short_axis() -> None:
    operation, inputs, results = product(rows=1)
    parts = check_parts(
        *(RULES["MatMul"], operation, inputs, results),
        Degrees(sample=2, height=2, channel=2),
        tolerance=TOLERANCE,
    )
    assert [part.place for part in parts.parts] == [0, 1]


DIVISIONS = [
    *(Degrees(sample=2), Degrees(filter=2), Degrees(channel=3), Degrees(filter=2, channel=2)),
    Degrees(sample=2, height=2, width=2, filter=2),
]


@pytest.mark.parametrize("degrees", DIVISIONS, ids=str)
@pytest.mark.parametrize("shape", [(3, 5), (3, 4, 5, 6)])
def test_a_part_adds_the_bias_of_its_channels(shape: tuple[int, ...], degrees: Degrees) -> None:
    inputs = [values(*shape), values(shape[-1])]
    operation, results = operation_of("BiasAdd", inputs, {"T": tf.float64})
    parts = check_parts(RULES["BiasAdd"], operation, inputs, results, degrees)
    assert parts.are_sums == (False,)
    assert all(part.reads[1] == (part.gives[0][-1],) for part in parts.parts)


@pytest.mark.parametrize("degrees", DIVISIONS, ids=str)
@pytest.mark.parametrize("shape", [(3, 5), (3, 4, 5, 6)])
def test_parts_of_the_gradient_of_a_bias_are_addends_where_samples_are_divided(
    shape: tuple[int, ...], degrees: Degrees
) -> None:
    inputs = [values(*shape)]
    operation, results = operation_of("BiasAddGrad", inputs, {"T": tf.float64})
    parts = check_parts(
        RULES["BiasAddGrad"], operation, inputs, results, degrees, tolerance=TOLERANCE
    )
    assert parts.are_sums == (degrees.sample > 1,)


def test_the_channels_of_nchw_are_second() -> None:
    inputs = [values(2, 6, 4, 5), values(6)]
    operation, _ = operation_of(
        "BiasAdd", [inputs[0].transpose(0, 2, 3, 1), inputs[1]], {"T": tf.float64}
    )
    node = operation.node
    node.attr["data_format"].s = b"NCHW"
    nchw = Operation(node, ((2, 6, 4, 5), (6,)), ((2, 6, 4, 5),), (None, None), "NCHW")
    parts = RULES["BiasAdd"](nchw, Degrees(filter=2))
    assert parts is not None
    assert parts.parts[1].reads == (((0, 2), (3, 6), (0, 4), (0, 5)), ((3, 6),))


@pytest.mark.parametrize("op", ["BiasAdd", "BiasAddGrad"])
def test_keeps_what_has_no_axes_of_a_layer_whole(op: str) -> None:
    inputs = [values(2, 3, 4), values(4)][: 2 if op == "BiasAdd" else 1]
    operation, _ = operation_of(op, inputs, {"T": tf.float64})
    assert RULES[op](operation, Degrees(sample=2)) is None


def test_keeps_an_empty_product_whole() -> None:
    operation, _, _ = product(inner=0)
    assert RULES["MatMul"](operation, Degrees(sample=2)) is None
