from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from parallel.parts_runner import check_parts, operation_of

from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.rules.elementwise import RULES

IMAGE = (5, 7, 6, 9)
MATRIX = (6, 11)
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
)
POSITIVE = ("Sqrt", "Rsqrt", "Log", "Reciprocal", "Inv")
BINARY = (
    *("Add", "AddV2", "Sub", "Mul", "RealDiv", "Div", "Maximum", "Minimum", "SquaredDifference"),
    *("Greater", "GreaterEqual", "Less", "LessEqual"),
)
GRADIENTS = (
    *("ReluGrad", "Relu6Grad", "LeakyReluGrad", "EluGrad", "SeluGrad", "SoftplusGrad"),
    *("SoftsignGrad", "SigmoidGrad", "TanhGrad", "RsqrtGrad", "SqrtGrad", "ReciprocalGrad"),
)
# Vectorized loops and their remainders may round the last bit differently, so how a tensor is cut
# may count.
ROUNDING = 1e-6


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("op", [*UNARY, *POSITIVE])
@pytest.mark.parametrize("shape", [IMAGE, MATRIX])
def test_divides_an_op_of_one_operand(op: str, shape: tuple[int, ...]) -> None:
    inputs = [values(*shape)]
    if op in POSITIVE:
        inputs = [np.abs(inputs[0]) + 0.5]
    operation, results = operation_of(op, inputs, {"T": tf.float32})
    for degrees in (DEGREES[3], DEGREES[4]):
        check_parts(RULES[op], operation, inputs, results, degrees, tolerance=ROUNDING)


@pytest.mark.parametrize("op", [*BINARY, *GRADIENTS])
def test_divides_an_op_of_two_operands(op: str) -> None:
    inputs = [values(*IMAGE), np.abs(values(*IMAGE, seed=1)) + 0.5]
    operation, results = operation_of(op, inputs, {"T": tf.float32})
    for degrees in DEGREES[3:5]:
        check_parts(RULES[op], operation, inputs, results, degrees, tolerance=ROUNDING)


@pytest.mark.parametrize("degrees", DEGREES, ids=str)
@pytest.mark.parametrize("shape", [(), (9,), (1,), (1, 1, 1, 9), (5, 1, 1, 1), (7, 1, 9), IMAGE])
@pytest.mark.parametrize("is_first", [False, True])
def test_reads_what_a_broadcast_operand_has_of_the_box(
    degrees: Degrees, shape: tuple[int, ...], is_first: bool
) -> None:
    inputs = [values(*IMAGE), values(*shape, seed=1)]
    if is_first:
        inputs.reverse()
    operation, results = operation_of("Sub", inputs, {"T": tf.float32})
    check_parts(RULES["Sub"], operation, inputs, results, degrees)


@pytest.mark.parametrize("shapes", [((6, 1), (1, 11)), ((6, 11), (11,)), ((), (6, 11))])
def test_broadcasts_matrices(shapes: tuple[tuple[int, ...], ...]) -> None:
    inputs = [values(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    operation, results = operation_of("Mul", inputs, {"T": tf.float32})
    for degrees in DEGREES:
        check_parts(RULES["Mul"], operation, inputs, results, degrees)


def test_divides_a_sum_of_many() -> None:
    inputs = [values(*IMAGE, seed=seed) for seed in range(4)]
    operation, results = operation_of("AddN", inputs, {"T": tf.float32, "N": 4})
    check_parts(RULES["AddN"], operation, inputs, results, DEGREES[4])


def test_divides_a_choice_of_values() -> None:
    inputs = [values(*IMAGE) > 0, values(9), values(*IMAGE, seed=2)]
    operation, results = operation_of("SelectV2", inputs, {"T": tf.float32})
    check_parts(RULES["SelectV2"], operation, inputs, results, DEGREES[4])


def test_keeps_the_attributes_of_the_node() -> None:
    inputs = [values(*IMAGE)]
    operation, results = operation_of("LeakyRelu", inputs, {"T": tf.float32, "alpha": 0.7})
    check_parts(RULES["LeakyRelu"], operation, inputs, results, DEGREES[1])
    attributes = {"SrcT": tf.float32, "DstT": tf.float16}
    operation, results = operation_of("Cast", inputs, attributes)
    check_parts(RULES["Cast"], operation, inputs, results, DEGREES[1])


def test_divides_channels_by_filter_and_channel_together_in_nchw() -> None:
    inputs = [values(2, 9, 7, 6), values(9, 1, 1, seed=1)]
    operation, results = operation_of("Mul", inputs, {"T": tf.float32}, layout="NCHW")
    parts = check_parts(RULES["Mul"], operation, inputs, results, Degrees(filter=2, channel=2))
    assert [part.reads[1] for part in parts.parts] == [
        ((begin, end), (0, 1), (0, 1)) for begin, end in ((0, 3), (3, 5), (5, 7), (7, 9))
    ]


def test_leaves_out_places_beyond_a_short_axis() -> None:
    inputs = [values(4, 1, 1, 3)]
    operation, results = operation_of("Relu", inputs, {"T": tf.float32})
    parts = check_parts(RULES["Relu"], operation, inputs, results, Degrees(sample=2, height=2))
    assert [part.place for part in parts.parts] == [0, 2]


@pytest.mark.parametrize("shape", [(), (9,), (3, 4, 5), (0, 4)])
def test_keeps_a_tensor_whole_that_has_no_axes_of_a_layer(shape: tuple[int, ...]) -> None:
    operation, _ = operation_of("Relu", [values(*shape)], {"T": tf.float32})
    assert RULES["Relu"](operation, Degrees(sample=2)) is None
