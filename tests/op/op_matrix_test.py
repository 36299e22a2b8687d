"""The ConvStage op over all kinds of convolutions, against TensorFlow's ops and against float64.

On sums of -1, 0 and 1, which are exact in every dtype and any order, a CPU has to give the
reference to the bit, and what TensorFlow's own op gives where it has a kernel.
On real numbers the bound is that of the arithmetic: a sum of n products in float32 is off by n
roundings of the sum of their magnitudes at most (Higham, Accuracy and Stability of Numerical
Algorithms, section 3.1), and is then rounded once to the dtype. A GPU is held to such a bound on
both, because its algorithms transform their operands.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from op_matrix import (
    DTYPES,
    LAYOUTS,
    PADDINGS,
    Geometry,
    Operands,
    Parameters,
    case_of,
    own_result,
    parameters_of,
    real_numbers,
    reference,
    reference_on_whole_numbers,
    to_layout,
    whole_numbers,
)
from stage_cases import Case, run_stage

LANES = 4
LARGEST_BIAS = 3

# Half of the distance from 1 to the next number, and the smallest number above 0.
UNIT_ROUNDOFF = {
    tf.float64: 2.0**-53,
    tf.float32: 2.0**-24,
    tf.float16: 2.0**-11,
    tf.bfloat16: 2.0**-8,
}
SMALLEST = {tf.float64: 0.0, tf.float32: 2.0**-149, tf.float16: 2.0**-24, tf.bfloat16: 2.0**-133}

# A GPU may round each factor to TF32 or half, or to bfloat16; Winograd and FFT algorithms after a
# transform, whose sums are a few times as large as its operands.
GPU_TRANSFORM_GROWTH = 4
GPU_FACTOR_ROUNDOFF = {
    tf.float64: 2.0**-53,
    tf.float32: 2.0**-11,
    tf.float16: 2.0**-11,
    tf.bfloat16: 2.0**-8,
}

# Where a filter is larger than the image, oneDNN in bfloat16 leaves rows of the result as it found
# them (seen with TensorFlow 2.21: numbers such as 2e35). For empty batches see docs/limits.md.
WRONG_WITH_ONEDNN = {tf.bfloat16: ("one pixel", "larger filter")}

ACTIVATIONS = {
    (): lambda x: x,
    ("Relu",): lambda x: np.maximum(x, 0),
    ("Relu6",): lambda x: np.clip(x, 0, 6),
    ("LeakyRelu",): lambda x: np.where(x < 0, 0.25 * x, x),
    ("Elu",): lambda x: np.where(x < 0, np.expm1(x), x),
}

COMBINATIONS = [
    pytest.param(rank, dtype, layout, padding, id=f"{rank}d-{dtype.name}-{layout}-{padding}")
    for rank, paddings in PADDINGS.items()
    for dtype in DTYPES
    for layout in LAYOUTS[rank]
    for padding in paddings
]
OF_OWN_OPS = [
    pytest.param(rank, dtype, padding, id=f"{rank}d-{dtype.name}-{padding}")
    for rank, paddings in PADDINGS.items()
    for dtype in DTYPES
    for padding in paddings
]
COMBINED = pytest.mark.parametrize(("rank", "dtype", "layout", "padding"), COMBINATIONS)


@pytest.fixture(params=["CPU", "GPU"])
def device(request: pytest.FixtureRequest) -> str:
    if not tf.config.list_physical_devices(request.param):
        pytest.skip(f"needs a {request.param}, TensorFlow sees none")
    return request.param


def run(conv_stage: Any, cases: list[Case], device: str) -> list[np.ndarray]:
    lanes = [index * LANES // len(cases) for index in range(len(cases))]
    with tf.device(f"/{device}:0"):
        return [result.numpy() for result in run_stage(conv_stage, cases, lanes)]


def sum_bound(
    parameters: Parameters, magnitudes: np.ndarray, dtype: tf.DType, device: str
) -> np.ndarray:
    """How far a sum of products may be off before it is rounded to the dtype."""
    roundoff = UNIT_ROUNDOFF[tf.float64 if dtype == tf.float64 else tf.float32]
    per_product = (parameters.product_count + 1) * roundoff
    if device == "GPU":
        per_product += 2 * GPU_FACTOR_ROUNDOFF[dtype] * GPU_TRANSFORM_GROWTH
    return per_product * magnitudes


def largest_sum(parameters: Parameters, result: np.ndarray) -> np.ndarray:
    """What the magnitudes of products of whole numbers, and of a bias, come to at most."""
    return np.full(result.shape, float(parameters.product_count + LARGEST_BIAS))


def assert_within(
    result: np.ndarray, exact: np.ndarray, bound: np.ndarray, dtype: tf.DType, what: object
) -> None:
    assert result.shape == exact.shape, what
    bound = bound + UNIT_ROUNDOFF[dtype] * (np.abs(exact) + bound) + SMALLEST[dtype]
    error = np.abs(result.astype(np.float64) - exact)
    assert np.all(error <= bound), f"{np.max(error / bound)} times the bound: {what}"


def assert_same(result: np.ndarray, expected: np.ndarray, what: object) -> None:
    assert result.dtype == expected.dtype, what
    np.testing.assert_array_equal(result, expected, err_msg=str(what))


def in_layout_of(parameters: Parameters, result: np.ndarray, layout: str) -> np.ndarray:
    """A reference result as the op gives it: filters are HWIO in either layout."""
    return result if result.shape == parameters.filter_shape else to_layout(result, layout)


@COMBINED
def test_gives_the_exact_sums_of_whole_numbers(
    conv_stage: Any, device: str, rank: int, dtype: tf.DType, layout: str, padding: str
) -> None:
    matrix = parameters_of(rank, padding)
    assert max(each.product_count for each in matrix) <= 256
    cases = [case_of(each, whole_numbers(each), dtype, layout) for each in matrix]
    for parameters, result in zip(matrix, run(conv_stage, cases, device), strict=True):
        exact = in_layout_of(parameters, reference_on_whole_numbers(parameters), layout)
        if device == "CPU":
            assert_same(result, exact.astype(dtype.as_numpy_dtype), parameters)
        else:
            bound = sum_bound(parameters, largest_sum(parameters, exact), dtype, device)
            assert_within(result, exact, bound, dtype, parameters)


@pytest.mark.parametrize(("rank", "dtype", "padding"), OF_OWN_OPS)
def test_exact_sums_are_what_tensorflows_own_ops_give(
    device: str, rank: int, dtype: tf.DType, padding: str
) -> None:
    # The op is held against these sums above. NHWC alone: of NCHW a CPU has few kernels. Those that
    # it has for dilations and groups depend on dtype and rank; without these it has all.
    expected = compared = 0
    for parameters in parameters_of(rank, padding):
        geometry = parameters.geometry
        if geometry.batch == 0 or geometry.name in WRONG_WITH_ONEDNN.get(dtype, ()):
            continue
        expected += parameters.groups == 1 and set(parameters.dilations) == {1}
        case = case_of(parameters, whole_numbers(parameters), dtype, LAYOUTS[rank][0])
        with tf.device(f"/{device}:0"):
            own = own_result(parameters, case)
        if own is None:
            continue
        compared += 1
        exact = reference_on_whole_numbers(parameters)
        if device == "CPU":
            assert_same(own, exact.astype(dtype.as_numpy_dtype), parameters)
        else:
            bound = sum_bound(parameters, largest_sum(parameters, exact), dtype, device)
            assert_within(own, exact, bound, dtype, parameters)
    assert compared >= expected > 20


@pytest.mark.parametrize("rank", PADDINGS)
def test_the_matrix_has_thousands_of_cases(rank: int) -> None:
    in_one_dtype_and_layout = sum(len(parameters_of(rank, padding)) for padding in PADDINGS[rank])
    assert in_one_dtype_and_layout * len(LAYOUTS[rank]) * len(DTYPES) > 4000


@COMBINED
def test_adds_up_in_float32_and_rounds_once(
    conv_stage: Any, device: str, rank: int, dtype: tf.DType, layout: str, padding: str
) -> None:
    matrix = [
        each
        for each in parameters_of(rank, padding)
        if each.geometry.name == "ordinary" and len(set(each.strides)) == 1
    ]
    assert len(matrix) > 20
    operands = [
        real_numbers(each).map(lambda x: x.astype(dtype.as_numpy_dtype).astype(np.float64))
        for each in matrix
    ]
    cases = [
        case_of(parameters, of_case, dtype, layout)
        for parameters, of_case in zip(matrix, operands, strict=True)
    ]
    for parameters, of_case, result in zip(
        matrix, operands, run(conv_stage, cases, device), strict=True
    ):
        exact = in_layout_of(parameters, reference(parameters, of_case), layout)
        magnitudes = in_layout_of(parameters, reference(parameters, of_case.map(np.abs)), layout)
        bound = sum_bound(parameters, magnitudes, dtype, device)
        assert_within(result, exact, bound, dtype, parameters)


def fused_case(
    parameters: Parameters, activation: tuple[str, ...], dtype: tf.DType, layout: str
) -> tuple[Case, np.ndarray]:
    """A fused convolution, and its exact result."""
    operands = whole_numbers(parameters)
    bias = np.random.default_rng(3).integers(
        -LARGEST_BIAS, LARGEST_BIAS + 1, parameters.output_channels
    )
    plain = case_of(parameters, operands, dtype, layout)
    case = dataclasses.replace(
        plain,
        operands=(*plain.operands, bias.astype(dtype.as_numpy_dtype)),
        attributes={
            **plain.attributes,
            "fused_ops": ["BiasAdd", *activation],
            "leakyrelu_alpha": 0.25,
        },
    )
    plain_parameters = dataclasses.replace(parameters, op=parameters.op.removeprefix("_Fused"))
    exact = ACTIVATIONS[activation](reference_on_whole_numbers(plain_parameters) + bias)
    return case, to_layout(exact, layout)


@COMBINED
def test_fuses_bias_and_activation(
    conv_stage: Any, device: str, rank: int, dtype: tf.DType, layout: str, padding: str
) -> None:
    matrix = [
        (dataclasses.replace(each, op=f"_Fused{each.op}"), activation)
        for each in parameters_of(rank, padding)
        if each.op == f"Conv{rank}D" and each.strides[0] == 1 and each.groups <= 2
        for activation in ACTIVATIONS
    ]
    assert len(matrix) > 100
    cases, exact_results = zip(
        *(fused_case(each, activation, dtype, layout) for each, activation in matrix), strict=True
    )
    results = run(conv_stage, list(cases), device)
    for (parameters, activation), exact, result in zip(matrix, exact_results, results, strict=True):
        what = (parameters, activation)
        if device == "CPU" and activation != ("Elu",):
            assert_same(result, exact.astype(dtype.as_numpy_dtype), what)
            continue
        bound = sum_bound(parameters, largest_sum(parameters, exact), dtype, device)
        if device == "CPU":
            # The sum is exact; exp(x) - 1 is two roundings of numbers of at most 1.
            bound = np.full(exact.shape, 4 * UNIT_ROUNDOFF[tf.float32])
        assert_within(result, exact, bound, dtype, what)


def test_a_wrong_reference_would_show() -> None:
    """The reference itself, against a sum that is written out."""
    geometry = Geometry("by hand", 1, (1, 4), (1, 2))
    parameters = Parameters("Conv2D", geometry, "EXPLICIT", (1, 2), (1, 2), 2)
    image = np.arange(16.0).reshape(parameters.image_shape)
    filter_ = np.arange(32.0).reshape(parameters.filter_shape)
    operands = Operands(image, filter_, np.ones(parameters.output_shape))
    result = reference(parameters, operands)
    # Pads ((1, 2), (0, 3)): row 1 of 4 is the image's; its column 1 reads pixels 2 and 4, of which
    # the second is padding. Output channel 5 is of the second group, channels 2 and 3.
    assert result.shape == (1, 4, 3, 8)
    expected = image[0, 0, 2, 2] * filter_[0, 0, 0, 5] + image[0, 0, 2, 3] * filter_[0, 0, 1, 5]
    assert result[0, 1, 1, 5] == expected
    assert not np.any(result[0, 0])
