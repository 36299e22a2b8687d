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
    run_stage,
)
from tensorflow.core.framework import node_def_pb2

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
    ("change", "message"),
    [
        ({"algorithms": ["", ""]}, "one entry for each of 1 steps in each of 1 schedules"),
        ({"batch_sizes": [8, 32]}, "one entry for each of 1 steps in each of 2 schedules"),
        ({"batch_sizes": [0]}, "batch_sizes of at least 1, ascending"),
        ({"step_lanes": [-1]}, "step_lanes of at least 0, got -1"),
        ({"step_lanes": [3]}, "lanes numbered 0, 1, 2"),
        ({"steps": [b"\xff"]}, "expected a serialized NodeDef as step 0"),
        ({"Tout": [tf.half]}, "expected Tout float, got half"),
        ({"lane_sm_counts": [8, 8]}, "one entry for each of 1 lanes, got 0, 2 and 0"),
        ({"lane_priorities": [0, 0]}, "one entry for each of 1 lanes, got 2, 0 and 0"),
        ({"lane_sm_counts": [-8]}, "SM count of at least 0, got -8 for lane 0"),
        ({"constant_inputs": [2]}, "constant_inputs below the number of inputs, 2, got 2"),
        ({"constant_inputs": [-1]}, "constant_inputs below the number of inputs, 2, got -1"),
    ],
)
def test_refuses_malformed_attributes(
    conv_stage: Any, change: dict[str, Any], message: str
) -> None:
    case = Case(
        "Conv2D",
        (digits([1, 5, 5, 2]), digits([3, 3, 2, 2])),
        {"strides": [1, 1, 1, 1], "padding": "SAME"},
    )
    inputs: list[Any] = []
    arguments = {
        "steps": [case.step(inputs, [])],
        "Tout": [tf.float32],
        "step_lanes": [0],
        "algorithms": [""],
    } | change
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
        tf.function(lambda: conv_stage(inputs=inputs, sizes=[], **arguments))()


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ((digits([1, 5, 5, 3]), digits([3, 3, 2, 2])), "to be a multiple of the filter's"),
        ((digits([5, 5, 3]), digits([3, 3, 3, 2])), "rank 4"),
    ],
)
def test_refuses_shapes_that_do_not_fit(
    conv_stage: Any, operands: tuple[Any, ...], message: str
) -> None:
    case = Case("Conv2D", operands, {"strides": [1, 1, 1, 1], "padding": "SAME"})
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
        run_stage(conv_stage, [case])


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


def _scheduled(conv_stage: Any, lanes: list[int], algorithms: list[str]) -> Any:
    """Two convolutions of a batch that is not known, with schedules for the sizes 2 and 5."""
    filters = [digits([3, 3, 2, 4], seed=seed) for seed in (1, 2)]
    attributes = {"strides": [1, 1, 1, 1], "padding": "SAME"}

    @tf.function(input_signature=[tf.TensorSpec([None, 6, 6, 2])])
    def stage(images: tf.Tensor) -> list[tf.Tensor]:
        steps, inputs = [], [images, *filters]
        for position in (1, 2):
            made: list[Any] = []
            step = node_def_pb2.NodeDef.FromString(
                Case("Conv2D", (digits([1, 6, 6, 2]), filters[0]), attributes).step(made, [])
            )
            step.name = f"step_{position}"
            step.input[:] = ["inputs:0", f"inputs:{position}"]
            steps.append(step.SerializeToString())
        return conv_stage(
            inputs=inputs,
            sizes=[],
            Tout=[tf.float32] * 2,
            steps=steps,
            batch_sizes=[2, 5],
            step_lanes=lanes,
            algorithms=algorithms,
        )

    def check(batch_size: int) -> dict[str, int]:
        """What fell back in a call with so many images, whose results are right."""
        images = digits([batch_size, 6, 6, 2])
        before = load_kernel_library().read_counters().fallbacks
        for result, filter_ in zip(stage(images), filters, strict=True):
            # oneDNN's Conv2D gives an empty batch the image's own channels.
            expected = (
                tf.nn.conv2d(images, filter_, 1, "SAME") if batch_size else digits([0, 6, 6, 4])
            )
            np.testing.assert_array_equal(result, expected)
        after = load_kernel_library().read_counters().fallbacks
        return {
            reason: count - before.get(reason, 0)
            for reason, count in after.items()
            if count != before.get(reason, 0)
        }

    return check


def test_a_call_runs_by_the_schedule_of_its_batch_size(conv_stage: Any) -> None:
    # Pins that do not exist say, by falling back, which of them were asked for.
    check = _scheduled(conv_stage, [0, 1, 0, 0], ["DIRECT", "NONE_A", "NONE_B", "NONE_C"])
    [(reason, count)] = check(2).items()
    assert count == 1
    assert "'step_2' with algorithm NONE_A" in reason
    in_sequence = check(5)
    assert set(in_sequence.values()) == {1}
    assert ["NONE_B" in reason or "NONE_C" in reason for reason in in_sequence] == [True, True]


def test_a_batch_size_without_a_schedule_falls_back_and_is_counted(conv_stage: Any) -> None:
    check = _scheduled(conv_stage, [0, 1, 0, 0], ["", "", "NONE", "NONE"])
    assert check(2) == {}
    assert set(check(7).values()) == {1}
    [reason] = check(7)
    assert "batch size 7 is not in the plan (2, 5)" in reason
    # Nothing is missing where nothing is computed.
    assert check(0) == {}


def test_a_reason_of_several_lines_is_one_reason(conv_stage: Any) -> None:
    # Reasons quote the drivers' own messages, which may be of any form.
    case = next(iter(cases_of("NHWC", tf.float32, "SAME", 1, 1, 1)))
    run_stage(conv_stage, [case], algorithm="FIRST\nsecond \x0b\x1e\x85\u2028third\r\n")
    run_stage(conv_stage, [case], algorithm=b"FIRST \xff\n")
    counters = tf_interop.status().counters
    of_lines = [reason for reason in counters.fallbacks if "FIRST" in reason]
    assert [counters.fallbacks[reason] for reason in of_lines] == [1, 1]
    assert all("Expected an algorithm" in reason for reason in of_lines)
    assert any("second" in reason and "third" in reason for reason in of_lines)
    assert str(tf_interop.status())
