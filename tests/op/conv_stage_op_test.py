"""The ConvStage op against TensorFlow's own ops, on the CPU.

Most tensors hold small whole numbers, whose products and sums are exact in every dtype, so the
comparison is to the bit wherever no exponential function is involved.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from stage_cases import (
    DTYPES,
    EPSILON,
    Case,
    assert_infers_shapes,
    cases_of,
    digits,
    matrix_of,
    output_size,
    program_of,
    run_stage,
)
from stage_program import arguments, assert_names

import tf_interop
from tf_interop.runtime.kernel_library import load_kernel_library


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("padding", ["SAME", "VALID", "EXPLICIT"])
def test_gives_what_the_own_ops_give(
    conv_stage: Any, layout: str, dtype: tf.DType, padding: str
) -> None:
    cases = matrix_of(layout, dtype, padding)
    compared = 0
    for case, result in zip(cases, run_stage(conv_stage, cases), strict=True):
        try:
            own = case.own_in_nhwc()
        except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError):
            continue  # TensorFlow has no kernel for it on this CPU: nothing to compare with
        np.testing.assert_array_equal(result, own, err_msg=f"{case.op} {case.attributes}")
        compared += 1
    assert compared >= len(cases) // 3


@pytest.mark.parametrize("algorithm", ["IM2COL_GEMM", "EIGEN_SPATIAL", "DIRECT"])
def test_every_pinned_host_algorithm_gives_the_same(conv_stage: Any, algorithm: str) -> None:
    cases = list(cases_of("NHWC", tf.float32, "SAME", 2, 1, 1))
    for case, result in zip(cases, run_stage(conv_stage, cases, algorithm=algorithm), strict=True):
        np.testing.assert_array_equal(result, case.own())


@pytest.mark.parametrize("activation", [None, "Relu", "Relu6", "LeakyRelu", "Elu"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_fuses_bias_and_activation(
    conv_stage: Any, activation: str | None, dtype: tf.DType
) -> None:
    image = digits([2, 7, 7, 3], dtype)
    filter_ = digits([3, 3, 3, 5], dtype, seed=1)
    bias = digits([5], dtype, seed=2)
    fused_ops = ["BiasAdd"] + ([activation] if activation else [])
    case = Case(
        "_FusedConv2D",
        (image, filter_, bias),
        {
            "strides": [1, 1, 1, 1],
            "padding": "SAME",
            "fused_ops": fused_ops,
            "leakyrelu_alpha": 0.25,
        },
    )
    [result] = run_stage(conv_stage, [case])
    expected = tf.nn.bias_add(tf.nn.conv2d(image, filter_, 1, "SAME"), bias)
    if activation == "LeakyRelu":
        expected = tf.nn.leaky_relu(expected, 0.25)
    elif activation:
        expected = getattr(tf.nn, activation.lower())(expected)
    # Elu alone is not exact: one rounding of the exponential function on either side.
    tolerance = 0 if activation != "Elu" else 2 * EPSILON[dtype]
    result, expected = tf.cast(result, tf.float64), tf.cast(expected, tf.float64)
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_adds_up_in_float32_and_rounds_once(conv_stage: Any, layout: str, dtype: tf.DType) -> None:
    def with_values(case: Case, dtype_of_values: tf.DType) -> Case:
        random = np.random.default_rng(5)
        operands = tuple(
            operand
            if isinstance(operand, list)
            else random.standard_normal(operand.shape)
            .astype(dtype.as_numpy_dtype)
            .astype(dtype_of_values.as_numpy_dtype)
            for operand in case.operands
        )
        return dataclasses.replace(case, operands=operands)

    cases = list(cases_of(layout, dtype, "SAME", 1, 1, 1))
    results = run_stage(conv_stage, [with_values(case, dtype) for case in cases])
    for case, result in zip(cases, results, strict=True):
        exact = with_values(case, tf.float32).own_in_nhwc()
        # Half of the distance to the next number of the dtype, and what float32 sums differ by.
        bound = EPSILON[dtype] / 2 * np.abs(exact) + 1e-5
        error = np.abs(tf.cast(result, tf.float32) - exact)
        assert np.all(error <= bound), f"{case.op}: {np.max(error / bound)} times the bound"


def test_several_steps_of_a_lane_run_in_order(conv_stage: Any) -> None:
    cases = list(cases_of("NHWC", tf.float32, "SAME", 1, 1, 1))
    for lanes in ([0] * 6, [0, 0, 1, 1, 2, 2]):
        for case, result in zip(cases, run_stage(conv_stage, cases, lanes), strict=True):
            np.testing.assert_array_equal(result, case.own())


def one_pixel_cases(batch: int) -> list[Case]:
    """The three kinds on images of one pixel, with a filter that is larger."""
    attributes = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    image, filter_ = digits([batch, 1, 1, 3]), digits([5, 5, 3, 4], seed=1)
    gradient = digits([batch, 1, 1, 4], seed=2)
    return [
        Case("Conv2D", (image, filter_), attributes),
        Case("Conv2DBackpropInput", ([batch, 1, 1, 3], filter_, gradient), attributes),
        Case("Conv2DBackpropFilter", (image, [5, 5, 3, 4], gradient), attributes),
    ]


def test_takes_one_pixel_images(conv_stage: Any) -> None:
    cases = one_pixel_cases(batch=2)
    for case, result in zip(cases, run_stage(conv_stage, cases), strict=True):
        np.testing.assert_array_equal(result, case.own())


def test_takes_empty_batches(conv_stage: Any) -> None:
    # Not compared: with oneDNN, TensorFlow's Conv2D gives a wrong shape here, and its
    # Conv2DBackpropInput an error.
    output, image_gradient, filter_gradient = run_stage(conv_stage, one_pixel_cases(batch=0))
    assert output.shape == [0, 1, 1, 4]
    assert image_gradient.shape == [0, 1, 1, 3]
    np.testing.assert_array_equal(filter_gradient, np.zeros([5, 5, 3, 4]))


@pytest.mark.parametrize("depthwise", [False, True], ids=["plain", "depthwise"])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(
    ("image_shape", "filter_shape"),
    [
        ([2, 5, 5, 3], [0, 3, 3, 4]),
        ([2, 5, 5, 3], [3, 0, 3, 4]),
        ([2, 5, 5, 3], [3, 3, 3, 0]),
        ([2, 5, 5, 0], [3, 3, 0, 4]),
        ([2, 0, 5, 3], [3, 3, 3, 4]),
        ([0, 5, 5, 3], [3, 3, 3, 4]),
    ],
)
def test_gradients_of_empty_tensors_are_zeros(
    conv_stage: Any, image_shape: list[int], filter_shape: list[int], padding: str, depthwise: bool
) -> None:
    stem = "DepthwiseConv2dNative" if depthwise else "Conv2D"
    height, width = (
        max(0, output_size(size, filter_size, 1, 1, padding, (0, 0)))
        for size, filter_size in zip(image_shape[1:3], filter_shape[:2], strict=True)
    )
    channels = filter_shape[3] * (filter_shape[2] if depthwise else 1)
    image, filter_ = digits(image_shape), digits(filter_shape, seed=1)
    gradient = digits([image_shape[0], height, width, channels], seed=2)
    attributes = {"strides": [1, 1, 1, 1], "padding": padding}
    cases = [
        Case(f"{stem}BackpropInput", (image_shape, filter_, gradient), attributes),
        Case(f"{stem}BackpropFilter", (image, filter_shape, gradient), attributes),
    ]
    # TensorFlow gives the same with oneDNN; without, some are errors and others end the process.
    results = run_stage(conv_stage, cases)
    for result, shape in zip(results, (image_shape, filter_shape), strict=True):
        np.testing.assert_array_equal(result, np.zeros(shape, np.float32))


def test_infers_shapes(conv_stage: Any) -> None:
    cases = list(cases_of("NCHW", tf.float32, "SAME", 2, 1, 1))
    assert_infers_shapes(conv_stage, cases)


@pytest.mark.parametrize(
    ("operands", "got"),
    [
        ((digits([1, 5, 5, 3]), digits([3, 3, 2, 2])), "[3,3,2,2]"),
        ((digits([5, 5, 3]), digits([3, 3, 3, 2])), "[5,5,3]"),
    ],
)
def test_refuses_shapes_that_do_not_fit(
    conv_stage: Any, operands: tuple[Any, ...], got: str
) -> None:
    case = Case("Conv2D", operands, {"strides": [1, 1, 1, 1], "padding": "SAME"})

    # Of unknown shape, so that it is the kernel that sees them.
    @tf.function(input_signature=[tf.TensorSpec(None)] * 2, autograph=False)
    def stage(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return conv_stage(**arguments(tensors, [], program_of([case], [], [])))

    with pytest.raises(tf.errors.InvalidArgumentError) as refused:
        stage(*operands)
    assert_names(refused, "step 'case_0'", got)


def test_an_unknown_pin_falls_back_and_is_counted(conv_stage: Any) -> None:
    case = next(iter(cases_of("NHWC", tf.float32, "SAME", 1, 1, 1)))
    before = sum(load_kernel_library().read_counters().fallbacks.values())
    [result] = run_stage(conv_stage, [case], algorithm="eng3_k2=1")
    np.testing.assert_array_equal(result, case.own())
    counters = load_kernel_library().read_counters()
    assert sum(counters.fallbacks.values()) == before + 1
    assert any("eng3_k2=1" in reason for reason in counters.fallbacks)


def test_counts_for_the_device_that_a_stage_runs_on(conv_stage: Any) -> None:
    case = next(iter(cases_of("NHWC", tf.float32, "SAME", 1, 1, 1)))
    before = load_kernel_library().read_counters()
    run_stage(conv_stage, [case], algorithm="eng9_k9=9")
    counters = load_kernel_library().read_counters()
    cpu = counters.devices["CPU:0"]
    assert counters.stages_run == before.stages_run + 1
    assert sum(each.stages_run for each in counters.devices.values()) == counters.stages_run
    assert [cpu.fallbacks[reason] for reason in cpu.fallbacks if "eng9_k9=9" in reason] == [1]


def test_a_reason_of_several_lines_is_one_reason(conv_stage: Any) -> None:
    # Reasons quote the drivers' own messages, which may be of any form.
    case = next(iter(cases_of("NHWC", tf.float32, "SAME", 1, 1, 1)))
    for algorithm in ("FIRST\nsecond \x0b\x1e\x85\u2028third\r\n", "FIRST \x7f\x00\n"):
        run_stage(conv_stage, [case], algorithm=algorithm)
    counters = tf_interop.status().counters
    of_lines = [reason for reason in counters.fallbacks if "FIRST" in reason]
    assert [counters.fallbacks[reason] for reason in of_lines] == [1, 1]
    assert all("Expected an algorithm" in reason for reason in of_lines)
    assert any("second" in reason and "third" in reason for reason in of_lines)
    assert str(tf_interop.status())
