"""The ConvStage op for all kinds of convolutions, against TensorFlow's plain ones in float64.

Sums of -1, 0 and 1 are exact in every dtype and any order, so a CPU must match the reference to the
bit. For real numbers the bound follows from the arithmetic: a sum of n products in float32 is off
by at most n roundings of the sum of their magnitudes (Higham, Accuracy and Stability of Numerical
Algorithms, section 3.1), and is then rounded once to the dtype. A GPU has such a bound for both,
because its algorithms transform their operands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from convolution_cases import (
    DTYPES,
    LAYOUTS,
    PADDINGS,
    Case,
    Parameters,
    case_of,
    parameters_of,
    real_numbers,
    reference,
    reference_on_whole_numbers,
    run_stage,
    to_layout,
    whole_numbers,
)

from tf_interop.runtime.kernel_library import load_kernel_library

LANES = 4
MOST_RESULTS_IN_XLA = 255
LARGEST_BIAS = 3

# Half the distance from 1 to the next number, and the smallest positive number.
UNIT_ROUNDOFF = {
    tf.float64: 2.0**-53,
    tf.float32: 2.0**-24,
    tf.float16: 2.0**-11,
    tf.bfloat16: 2.0**-8,
}
SMALLEST = {tf.float64: 0.0, tf.float32: 2.0**-149, tf.float16: 2.0**-24, tf.bfloat16: 2.0**-133}

# A GPU may round each factor to TF32, half or bfloat16. Winograd and FFT algorithms do so after a
# transform, whose sums are a few times as large as its operands.
GPU_TRANSFORM_GROWTH = 4
GPU_FACTOR_ROUNDOFF = UNIT_ROUNDOFF | {tf.float32: 2.0**-11}

ACTIVATIONS = {
    (): lambda x: x,
    ("Relu",): lambda x: np.maximum(x, 0),
    ("Relu6",): lambda x: np.clip(x, 0, 6),
    ("LeakyRelu",): lambda x: np.where(x < 0, 0.25 * x, x),
    ("Elu",): lambda x: np.where(x < 0, np.expm1(x), x),
}

COMBINED = pytest.mark.parametrize(
    ("rank", "dtype", "layout", "padding"),
    [
        pytest.param(
            *(rank, dtype, layout, padding),
            id=f"{rank}d-{dtype.name}-{layout}-{padding}",
            # Each dtype, layout and padding is in some of the others.
            marks=(
                ()
                if dtype == tf.float32 or (padding, layout) == (paddings[0], LAYOUTS[rank][0])
                else pytest.mark.slow
            ),
        )
        for rank, paddings in PADDINGS.items()
        for dtype in DTYPES
        for layout in LAYOUTS[rank]
        for padding in paddings
    ],
)


@pytest.fixture(params=["CPU", "CPU in XLA", "GPU", "GPU in XLA"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where the stage runs, perhaps in a function that XLA compiles."""
    library = load_kernel_library()
    library.set_xla_calls(True)
    before = library.read_xla_calls()
    device_type = request.param[:3]
    if not tf.config.list_physical_devices(device_type):
        pytest.skip(f"needs a {device_type}, TensorFlow sees none")
    if request.param == "CPU in XLA" and request.node.callspec.params["padding"] != "SAME":
        pytest.skip("saves time: the kernel is the same as outside XLA")
    yield request.param
    calls = library.read_xla_calls()
    library.set_xla_calls(False)
    if "XLA" in request.param:
        assert calls.run > before.run
        assert calls.translated_stages == before.translated_stages


def run(conv_stage: Any, cases: list[Case], device: str) -> list[np.ndarray]:
    in_xla = "XLA" in device
    if in_xla and len(cases) > MOST_RESULTS_IN_XLA:
        rest = run(conv_stage, cases[MOST_RESULTS_IN_XLA:], device)
        return run(conv_stage, cases[:MOST_RESULTS_IN_XLA], device) + rest
    lanes = [index * LANES // len(cases) for index in range(len(cases))]
    with tf.device(f"/{device[:3]}:0"):
        results = run_stage(conv_stage, cases, lanes, jit_compile=in_xla)
    assert all(device[:3] in result.device for result in results)
    return [result.numpy() for result in results]


def sum_bound(
    parameters: Parameters, magnitudes: np.ndarray, dtype: tf.DType, device: str
) -> np.ndarray:
    """The bound for a sum of products before it is rounded to the dtype."""
    roundoff = UNIT_ROUNDOFF[tf.float64 if dtype == tf.float64 else tf.float32]
    per_product = (parameters.product_count + 1) * roundoff
    if "GPU" in device:
        per_product += 2 * GPU_FACTOR_ROUNDOFF[dtype] * GPU_TRANSFORM_GROWTH
    return per_product * magnitudes


def assert_within(
    result: np.ndarray, exact: np.ndarray, bound: np.ndarray, dtype: tf.DType, what: object
) -> None:
    assert result.shape == exact.shape, what
    bound = bound + UNIT_ROUNDOFF[dtype] * (np.abs(exact) + bound) + SMALLEST[dtype]
    error = np.abs(result.astype(np.float64) - exact)
    assert np.all(error <= bound), f"{np.max(error / bound)} times the bound: {what}"


def assert_sums(
    result: np.ndarray, exact: np.ndarray, parameters: Parameters, dtype: tf.DType, device: str
) -> None:
    """Compares sums of whole numbers, perhaps with a bias; on a CPU they are exact."""
    if "GPU" not in device:
        assert result.dtype == dtype.as_numpy_dtype, parameters
        expected = exact.astype(dtype.as_numpy_dtype)
        np.testing.assert_array_equal(result, expected, err_msg=str(parameters))
        return
    magnitudes = np.full(exact.shape, float(parameters.product_count + LARGEST_BIAS))
    bound = sum_bound(parameters, magnitudes, dtype, device)
    assert_within(result, exact, bound, dtype, parameters)


def is_for_stages(parameters: Parameters, device: str) -> bool:
    """Whether a stage runs it: a GPU's pads by no more than the filter's reach and the image."""
    if "GPU" not in device:
        return True
    sizes = zip(
        map(max, parameters.pads), parameters.reaches, parameters.image_shape[1:-1], strict=True
    )
    return all(pad < reach and pad <= image for pad, reach, image in sizes)


def in_layout_of(parameters: Parameters, result: np.ndarray, layout: str) -> np.ndarray:
    """A reference result in the op's layout; filters are always HWIO."""
    return result if result.shape == parameters.filter_shape else to_layout(result, layout)


@COMBINED
def test_sums_of_whole_numbers_are_exact(
    conv_stage: Any, device: str, rank: int, dtype: tf.DType, layout: str, padding: str
) -> None:
    """Also with bias and activation."""
    matrix: list[tuple[Parameters, Any]] = [
        (each, None) for each in parameters_of(rank, padding) if is_for_stages(each, device)
    ]
    # TensorFlow has no kernel for a fused convolution of doubles on a GPU, nor has cuDNN.
    if (device[:3], dtype) != ("GPU", tf.float64):
        matrix += [
            (each, activation)
            for each, _ in matrix
            if each.op == f"Conv{rank}D" and each.strides[0] == 1 and each.groups <= 2
            for activation in ACTIVATIONS
            # Not every cuDNN has an engine for it.
            if "GPU" not in device or activation != ("LeakyRelu",)
        ]
    assert len(matrix) > 100
    assert max(each.product_count for each, _ in matrix) <= 256
    bias = np.random.default_rng(3).integers(-LARGEST_BIAS, LARGEST_BIAS + 1, 8)
    cases = []
    for parameters, activation in matrix:
        case = case_of(parameters, whole_numbers(parameters), dtype, layout)
        if activation is not None:
            fused = {"fused_ops": ["BiasAdd", *activation], "leakyrelu_alpha": 0.25}
            operands = (*case.operands, bias.astype(dtype.as_numpy_dtype))
            case = Case(f"_Fused{case.op}", operands, case.attributes | fused)
        cases.append(case)
    for (parameters, activation), result in zip(
        matrix, run(conv_stage, cases, device), strict=True
    ):
        exact = reference_on_whole_numbers(parameters)
        if activation is not None:
            exact = ACTIVATIONS[activation](exact + bias)
        exact = in_layout_of(parameters, exact, layout)
        if "GPU" not in device and activation == ("Elu",):
            # The sum is exact; exp(x) - 1 is two roundings of numbers of at most 1.
            bound = np.full(exact.shape, 4 * UNIT_ROUNDOFF[tf.float32])
            assert_within(result, exact, bound, dtype, parameters)
        else:
            assert_sums(result, exact, parameters, dtype, device)


@COMBINED
def test_adds_up_in_float32_and_rounds_once(
    conv_stage: Any, device: str, rank: int, dtype: tf.DType, layout: str, padding: str
) -> None:
    matrix = [
        each
        for each in parameters_of(rank, padding)
        if each.geometry.name == "ordinary"
        and len(set(each.strides)) == 1
        and is_for_stages(each, device)
    ]
    assert len(matrix) >= 18
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
