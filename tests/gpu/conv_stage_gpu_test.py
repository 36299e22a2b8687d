"""The ConvStage op and the plugin on a GPU, against TensorFlow's own convolutions there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from stage_cases import DTYPES, Case, digits, matrix_of, run_stage
from stage_program import (
    arguments,
    assert_refused,
    in_graph,
    lane,
    operation,
    program,
    schedule,
)
from volume_cases import volume_cases_of

import tf_interop
from tf_interop.runtime.plugin import get_plugin

# The numbers are exact in TF32 and half, but Winograd and FFT algorithms round.
TOLERANCE = {tf.float32: 2e-3, tf.float16: 5e-3, tf.bfloat16: 4e-2, tf.float64: 1e-12}


def assert_close(result: tf.Tensor, expected: tf.Tensor, dtype: tf.DType, what: str) -> None:
    tolerance = TOLERANCE[dtype]
    result, expected = tf.cast(result, tf.float64), tf.cast(expected, tf.float64)
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance, err_msg=what)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("padding", ["SAME", "VALID", "EXPLICIT"])
def test_gives_what_the_own_ops_give(
    conv_stage: Any, layout: str, dtype: tf.DType, padding: str
) -> None:
    cases = matrix_of(layout, dtype, padding)
    compared = 0
    with tf.device("/GPU:0"):
        results = run_stage(conv_stage, cases)
        for case, result in zip(cases, results, strict=True):
            assert "GPU" in result.device
            try:
                own = case.own()
            except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError):
                continue
            assert_close(result, own, dtype, f"{case.op} {case.attributes}")
            compared += 1
    assert compared >= len(cases) // 3


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("layout", ["NDHWC", "NCDHW"])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_gives_what_the_own_ops_give_for_volumes(
    conv_stage: Any, layout: str, dtype: tf.DType, padding: str
) -> None:
    cases = [
        case
        for strides in ((1, 1, 1), (1, 3, 2))
        for case in volume_cases_of(layout, dtype, padding, strides=strides)
    ]
    with tf.device("/GPU:0"):
        for case, result in zip(cases, run_stage(conv_stage, cases), strict=True):
            assert "GPU" in result.device
            assert_close(result, case.own(), dtype, f"{case.op} {case.attributes}")


@pytest.mark.parametrize("batch_size", [None, 7], ids=["planned", "without a plan"])
def test_a_lane_of_dependent_steps(conv_stage: Any, batch_size: int | None) -> None:
    plain = {"strides": [1] * 4, "padding": "SAME"}
    image, first, second = (digits(shape) for shape in ([2, 7, 7, 4], [3, 3, 4, 8], [1, 1, 8, 4]))
    operations = [
        operation("first", "Conv2D", ["inputs:0", "inputs:1"], **plain),
        operation("second", "Conv2D", ["steps:0", "inputs:2"], **plain),
        operation("back", "Conv2DBackpropInput", ["sizes:0", "inputs:2", "steps:1"], **plain),
        operation("beside", "Conv2D", ["inputs:0", "inputs:1"], **plain),
    ]
    document = program(
        operations, schedule(lane(0, 1, 2), lane(3), batch_size=batch_size), outputs=[2, 1, 3]
    )
    with tf.device("/GPU:0"):
        results = in_graph(
            conv_stage, **arguments([image, first, second], [[2, 7, 7, 8]], document)
        )
        beside = tf.nn.conv2d(image, first, 1, "SAME")
        chain = tf.nn.conv2d(beside, second, 1, "SAME")
        back = tf.nn.conv2d_transpose(chain, second, [2, 7, 7, 8], 1, "SAME")
    for result, expected in zip(results, (back, chain, beside), strict=True):
        assert "GPU" in result.device
        assert_close(result, expected, tf.float32, f"schedule for {batch_size}")


def test_refuses_steps_that_are_for_a_cpu(conv_stage: Any) -> None:
    document = program([operation("odd", "Relu", ["inputs:0"])])
    with tf.device("/GPU:0"):
        assert_refused(conv_stage, "step 'odd'", "Relu", **arguments([digits([2])], [], document))


@pytest.mark.parametrize("activation", [None, "Relu", "Relu6", "LeakyRelu", "Elu"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_fuses_bias_and_activation(
    conv_stage: Any, activation: str | None, dtype: tf.DType
) -> None:
    image, filter_ = digits([2, 7, 7, 4], dtype), digits([3, 3, 4, 8], dtype, seed=1)
    bias = digits([8], dtype, seed=2)
    case = Case(
        "_FusedConv2D",
        (image, filter_, bias),
        {
            "strides": [1, 1, 1, 1],
            "padding": "SAME",
            "fused_ops": ["BiasAdd"] + ([activation] if activation else []),
            "leakyrelu_alpha": 0.25,
        },
    )
    with tf.device("/GPU:0"):
        [result] = run_stage(conv_stage, [case])
        expected = tf.nn.bias_add(tf.nn.conv2d(image, filter_, 1, "SAME"), bias)
    if activation == "LeakyRelu":
        expected = tf.nn.leaky_relu(expected, 0.25)
    elif activation:
        expected = getattr(tf.nn, activation.lower())(expected)
    assert_close(result, expected, dtype, str(activation))


def test_follows_tensorflows_switch_for_tf32(conv_stage: Any) -> None:
    [major, _] = tf.config.experimental.get_device_details(
        tf.config.list_physical_devices("GPU")[0]
    )["compute_capability"]
    if major < 8:
        pytest.skip("needs a GPU with TF32")
    random = np.random.default_rng(0)
    shapes = [2, 16, 16, 64], [3, 3, 64, 64]
    image, filter_ = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    case = Case("Conv2D", (image, filter_), {"strides": [1, 1, 1, 1], "padding": "SAME"})
    with tf.device("/CPU:0"):
        exact = case.own()
    largest = np.abs(exact).max()

    def run(*, allow_tf32: bool) -> Any:
        tf.config.experimental.enable_tensor_float_32_execution(allow_tf32)
        try:
            with tf.device("/GPU:0"):
                return run_stage(conv_stage, [case])[0].numpy()
        finally:
            tf.config.experimental.enable_tensor_float_32_execution(True)

    in_tf32, in_float32 = run(allow_tf32=True), run(allow_tf32=False)
    # TF32 has 11 significant bits, float32 24: the errors are apart by far.
    assert np.abs(in_float32 - exact).max() < 1e-5 * largest < np.abs(in_tf32 - exact).max()
    np.testing.assert_array_equal(run(allow_tf32=True), in_tf32)
    np.testing.assert_array_equal(run(allow_tf32=False), in_float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_constant_filters_give_the_same_bits(dtype: tf.DType) -> None:
    image = tf.constant(digits([2, 16, 16, 8], dtype))
    filters = [digits([3, 3, 8, 8], dtype, seed=seed) for seed in range(3)]

    def make(of_filters: list[Any]) -> tf.types.experimental.GenericFunction:
        @tf.function(jit_compile=False)
        def branches(x: tf.Tensor) -> tf.Tensor:
            return tf.concat([tf.nn.conv2d(x, f, 1, "SAME") for f in of_filters], -1)

        return branches

    tf_interop.enable("always")
    with tf.device("/GPU:0"):
        constant = make(filters)
        first = constant(image)
        before = tf_interop.status().counters.filters_transformed
        variable = make([tf.Variable(each) for each in filters])(image)
        for _ in range(3):
            np.testing.assert_array_equal(constant(image), first)
    np.testing.assert_array_equal(first, variable)
    assert tf_interop.status().counters.filters_transformed == before
    tf_interop.disable()


def test_groups_on_the_gpu_with_tensorflows_layout_conversion_on() -> None:
    image = tf.constant(digits([2, 16, 16, 8]))
    filters = [tf.constant(digits([size, size, 8, 8], seed=size)) for size in (1, 3, 5)]

    def make() -> tf.types.experimental.GenericFunction:
        @tf.function(jit_compile=False)
        def branches(x: tf.Tensor) -> tf.Tensor:
            return tf.concat([tf.nn.conv2d(x, f, 1, "SAME") for f in filters], -1)

        return branches

    tf_interop.disable()
    expected = make()(image)
    get_plugin().forget_reports()
    tf_interop.enable("always")
    before = tf_interop.status().counters
    result = make()(image)
    status = tf_interop.status()
    tf_interop.disable()
    assert status.failures == ()
    [report] = [report for report in status.graphs if report.device_type == "GPU"]
    assert [len(stage.lanes) for stage in report.plan.stages] == [3]
    assert status.counters.stages_run == before.stages_run + 1
    assert status.counters.fallbacks == before.fallbacks
    assert_close(result, expected, tf.float32, "branches")
