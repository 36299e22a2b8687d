from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from parallel.parts_runner import check, operation_of, stays_whole, values

from tf_interop.parallel.types import Degrees

IMAGE = (5, 7, 6, 9)
DEGREES = (
    Degrees(),
    Degrees(sample=2),
    Degrees(height=3, width=2),
    Degrees(filter=2, channel=2),
    Degrees(sample=3, height=2, filter=2),
    Degrees(sample=4, width=5),
)
UNARY = (
    *("Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Sigmoid", "Tanh", "Softplus", "Softsign"),
    *("Identity", "Snapshot", "StopGradient", "PreventGradient", "ZerosLike", "OnesLike"),
    *("Neg", "Abs", "Sign", "Square", "Exp", "Floor"),
    *("Sqrt", "Rsqrt", "Log", "Reciprocal", "Inv"),
)
BINARY = (
    *("Add", "AddV2", "Sub", "Mul", "RealDiv", "Div", "Maximum", "Minimum", "SquaredDifference"),
    *("Greater", "GreaterEqual", "Less", "LessEqual"),
    *("ReluGrad", "Relu6Grad", "LeakyReluGrad", "EluGrad", "SeluGrad", "SoftplusGrad"),
    *("SoftsignGrad", "SigmoidGrad", "TanhGrad", "RsqrtGrad", "SqrtGrad", "ReciprocalGrad"),
)
# Vectorized loops and their remainders may round the last bit differently, so how a tensor is cut
# may count.
ROUNDING = 1e-6


@pytest.mark.parametrize("op", [*UNARY, *BINARY])
def test_divides_an_op(op: str) -> None:
    for shape in (IMAGE, (6, 11)):
        inputs = [np.abs(values(*shape, seed=seed)) + 0.5 for seed in (0, 1)]
        count = 1 if op in UNARY else 2
        check(op, inputs[:count], None, DEGREES[3:5], tolerance=ROUNDING)


@pytest.mark.parametrize("degrees", DEGREES, ids=str)
@pytest.mark.parametrize(
    "shapes",
    [
        *((IMAGE, each) for each in ((), (9,), (1,), (1, 1, 1, 9), (5, 1, 1, 1), (7, 1, 9))),
        *((each, IMAGE) for each in ((), (9,), (5, 1, 1, 1))),
        *(((6, 1), (1, 11)), ((6, 11), (11,)), ((), (6, 11))),
    ],
    ids=str,
)
def test_reads_what_a_broadcast_operand_has_of_the_box(
    degrees: Degrees, shapes: tuple[tuple[int, ...], ...]
) -> None:
    check("Sub", [values(*shape, seed=seed) for seed, shape in enumerate(shapes)], None, [degrees])


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("AddN", [values(*IMAGE, seed=seed) for seed in range(4)], {"N": 4}),
        ("SelectV2", [values(*IMAGE) > 0, values(9), values(*IMAGE, seed=2)], {}),
        ("LeakyRelu", [values(*IMAGE)], {"alpha": 0.7}),
        ("Cast", [values(*IMAGE)], {"T": None, "SrcT": tf.float32, "DstT": tf.float16}),
    ],
)
def test_divides_ops_of_other_operands_and_attributes(
    op: str, inputs: list[Any], attributes: dict[str, Any]
) -> None:
    check(op, inputs, attributes, DEGREES[4:5])


def test_divides_channels_by_filter_and_channel_together_in_nchw() -> None:
    inputs = [values(2, 9, 7, 6), values(9, 1, 1, seed=1)]
    [parts] = check("Mul", inputs, None, [Degrees(filter=2, channel=2)], layout="NCHW")
    assert [part.reads[1] for part in parts] == [
        ((begin, end), (0, 1), (0, 1)) for begin, end in ((0, 3), (3, 5), (5, 7), (7, 9))
    ]


def test_leaves_out_places_beyond_a_short_axis() -> None:
    [parts] = check("Relu", [values(4, 1, 1, 3)], None, [Degrees(sample=2, height=2)])
    assert [part.place for part in parts] == [0, 2]


@pytest.mark.parametrize("shape", [(), (9,), (3, 4, 5), (0, 4)])
def test_keeps_a_tensor_whole_that_has_no_axes_of_a_layer(shape: tuple[int, ...]) -> None:
    assert stays_whole(operation_of("Relu", [values(*shape)])[0], Degrees(sample=2))
