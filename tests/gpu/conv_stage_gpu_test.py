"""The ConvStage op and the plugin on a GPU, against TensorFlow's own convolutions there.

op/op_matrix_test.py has all kinds of convolutions, on a GPU as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from convolution_cases import DTYPES, Case, digits, run_stage
from stage_program import (
    arguments,
    assert_refused,
    in_graph,
    lane,
    operation,
    program,
    schedule,
)
from unnoticed import counted

import tf_interop

# The numbers are exact in TF32 and half, but Winograd and FFT algorithms round.
TOLERANCE = {tf.float32: 2e-3, tf.float16: 5e-3, tf.bfloat16: 4e-2, tf.float64: 1e-12}


def assert_close(result: tf.Tensor, expected: tf.Tensor, dtype: tf.DType, what: str) -> None:
    tolerance = TOLERANCE[dtype]
    result, expected = tf.cast(result, tf.float64), tf.cast(expected, tf.float64)
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance, err_msg=what)


@pytest.mark.parametrize("batch_size", [None, 7], ids=["planned", "without a plan"])
def test_a_lane_of_dependent_steps(conv_stage: Any, batch_size: int | None) -> None:
    plain = {"strides": [1] * 4, "padding": "SAME"}
    image, first, second = (digits(shape) for shape in ([2, 7, 7, 4], [3, 3, 4, 8], [1, 1, 8, 4]))
    operations = [
        operation("first", "Conv2D", ["inputs:0", "inputs:1"], **plain),
        operation("second", "Conv2D", ["steps:0:0", "inputs:2"], **plain),
        operation("back", "Conv2DBackpropInput", ["inputs:3", "inputs:2", "steps:1:0"], **plain),
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


def make_branches(filters: list[Any]) -> tf.types.experimental.GenericFunction:
    @tf.function(jit_compile=False)
    def branches(x: tf.Tensor) -> tf.Tensor:
        return tf.concat([tf.nn.conv2d(x, each, 1, "SAME") for each in filters], -1)

    return branches


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.usefixtures("plugin_as_after_import")
def test_held_filters_give_the_same_bits(dtype: tf.DType) -> None:
    image = tf.constant(digits([2, 16, 16, 8], dtype))
    filters = [digits([3, 3, 8, 8], dtype, seed=seed) for seed in range(3)]
    tf_interop.enable("always")
    with tf.device("/GPU:0"):
        variables = [tf.Variable(each) for each in filters]
        both = [make_branches(filters), make_branches(variables)]
        first, _ = [compute(image) for compute in both]
        with counted() as new:
            for compute in 3 * both:
                np.testing.assert_array_equal(compute(image), first)
    assert new.filters_transformed == 0


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16], ids=lambda dtype: dtype.name)
@pytest.mark.usefixtures("plugin_as_after_import")
def test_an_inception_module_with_tensorflows_layout_conversion_on(dtype: tf.DType) -> None:
    random = np.random.default_rng(0)

    def make_convolution(size: int, inputs: int, outputs: int) -> Any:
        deviation = (2 / (size * size * inputs)) ** 0.5
        filter_ = random.normal(0, deviation, [size, size, inputs, outputs])
        filter_, bias = tf.constant(filter_, dtype), tf.fill([outputs], tf.cast(0.1, dtype))
        return lambda x: tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, filter_, 1, "SAME"), bias))

    # Module 3a of GoogLeNet.
    one, projection = make_convolution(1, 192, 64), make_convolution(1, 192, 32)
    reduce_3, three = make_convolution(1, 192, 96), make_convolution(3, 96, 128)
    reduce_5, five = make_convolution(1, 192, 16), make_convolution(5, 16, 32)

    @tf.function(jit_compile=False)
    def module(x: tf.Tensor) -> tf.Tensor:
        pooled = tf.nn.max_pool2d(x, 3, 1, "SAME")
        branches = [one(x), three(reduce_3(x)), five(reduce_5(x)), projection(pooled)]
        return tf.concat(branches, -1)

    image = tf.constant(random.normal(size=[8, 28, 28, 192]), dtype)
    tf_interop.disable()
    expected = module(image)
    tf_interop.enable("always")
    with counted() as new:
        result = module(image)
    status = tf_interop.status()
    assert status.failures == ()
    [report] = [report for report in status.graphs if report.device_type == "GPU"]
    lanes = [len(stage.stage.lanes) for stage in report.plan.stages]
    assert max(lanes) >= 3
    assert (new.stages_run, new.fallbacks) == (len(lanes), {})
    largest = tf.reduce_max(tf.abs(expected))
    assert_close(result / largest, expected / largest, dtype, "module")
