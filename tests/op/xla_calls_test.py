"""Depthwise convolutions in functions that XLA compiles for a CPU run TensorFlow's own kernels.

The values are whole numbers, so results are compared to the bit, with those of XLA.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from unnoticed import digits, in_threads

import tf_interop
from tf_interop.runtime.kernel_library import XlaCalls
from tf_interop.tensorflow_internals import is_onednn_on

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")

SIZES = (2, 9, 8, 3)

Convolution = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def depthwise(
    *,
    strides: tuple[int, int] = (1, 1),
    padding: Any = "SAME",
    data_format: str = "NHWC",
    dilations: int = 1,
) -> Convolution:
    """The op itself: `tf.nn.depthwise_conv2d` divides dilated ones."""
    is_last = data_format == "NHWC"

    def along_space(first: int, second: int) -> list[int]:
        return [1, first, second, 1] if is_last else [1, 1, first, second]

    explicit = [] if isinstance(padding, str) else [0, 0, *padding, 0, 0]

    def convolution(image: tf.Tensor, filters: tf.Tensor) -> tf.Tensor:
        if not is_last:
            image = tf.transpose(image, [0, 3, 1, 2])
        return tf.raw_ops.DepthwiseConv2dNative(
            input=image,
            filter=filters,
            strides=along_space(*strides),
            padding="EXPLICIT" if explicit else padding,
            explicit_paddings=explicit,
            data_format=data_format,
            dilations=along_space(dilations, dilations),
        )

    return convolution


def step_of(convolution: Convolution, *, compiled: bool = True) -> Any:
    """A new function, so XLA compiles it anew: the results and both gradients."""

    @tf.function(jit_compile=compiled, autograph=False)
    def step(image: tf.Tensor, filters: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([image, filters])
            result = convolution(image, filters)
            loss = tf.reduce_sum(result * result)
        return [result, *tape.gradient(loss, [image, filters])]

    return step


def new_calls(before: XlaCalls) -> XlaCalls:
    now = tf_interop.status().xla_calls
    return XlaCalls(*(a - b for a, b in zip(now, before, strict=True)))


def compare(convolution: Convolution, *, dtype: Any = tf.float32, multiplier: int = 1) -> XlaCalls:
    """The calls of one step, whose results must be XLA's."""
    image = tf.constant(digits(0, *SIZES), dtype)
    filters = tf.constant(digits(1, 3, 3, SIZES[3], multiplier), dtype)
    tf_interop.disable()
    before = tf_interop.status().xla_calls
    expected = step_of(convolution)(image, filters)
    assert new_calls(before) == XlaCalls(left=3 if dtype == tf.float32 else 0)
    tf_interop.enable()
    before = tf_interop.status().xla_calls
    for got, wanted in zip(step_of(convolution)(image, filters), expected, strict=True):
        assert np.any(wanted.numpy() != 0)
        np.testing.assert_array_equal(got, wanted)
    return new_calls(before)


@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize(
    ("padding", "stride"),
    [*itertools.product(["SAME", "VALID"], [1, 2, 3]), ((1, 0, 2, 1), 1), ((0, 1, 1, 2), 2)],
)
def test_forward_and_both_gradients_run_as_calls(
    padding: Any, stride: int, multiplier: int
) -> None:
    convolution = depthwise(padding=padding, strides=(stride, stride))
    assert compare(convolution, multiplier=multiplier) == XlaCalls(compiled=3, run=3)


@pytest.mark.parametrize(
    ("options", "dtype", "calls"),
    [
        # What TensorFlow's kernels do not take, and other dtypes, stay XLA's.
        ({"data_format": "NCHW"}, tf.float32, XlaCalls(refused=3)),
        ({"dilations": 2}, tf.float32, XlaCalls(refused=3)),
        *(({}, dtype, XlaCalls()) for dtype in (tf.float16, tf.bfloat16, tf.float64)),
        # Without oneDNN the kernels take equal strides only.
        (
            {"strides": (1, 2)},
            tf.float32,
            XlaCalls(compiled=3, run=3) if is_onednn_on() else XlaCalls(refused=3),
        ),
    ],
)
def test_calls_what_tensorflows_kernels_take(
    options: dict[str, Any], dtype: tf.DType, calls: XlaCalls
) -> None:
    assert compare(depthwise(**options), dtype=dtype) == calls


def test_an_empty_batch_and_an_error_of_xlas_stay() -> None:
    tf_interop.enable()
    empty = step_of(depthwise())(tf.zeros([0, *SIZES[1:]]), tf.ones([3, 3, 3, 1]))
    assert empty[0].shape == [0, *SIZES[1:]]
    unknown = tf.TensorSpec([None] * 4)
    function = tf.function(depthwise(), [unknown, unknown], jit_compile=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Depth of input must be a multiple"):
        function(tf.ones(SIZES), tf.ones([3, 3, 4, 1]))


def test_turning_it_on_reaches_functions_unless_others_call_them(logged: list[str]) -> None:
    inputs = tf.constant(digits(0, *SIZES)), tf.constant(digits(1, 3, 3, 3, 1))
    called, inner = step_of(depthwise()), step_of(depthwise())
    outer = tf.function(lambda *inputs: inner(*inputs)[0] + 0)
    tf_interop.disable()
    for function in (called, outer):
        function(*inputs)
    tf_interop.enable()
    [warning] = logged
    left = tf_interop.status().xla_calls.left
    assert left >= 6
    assert warning.startswith(f"XLA compiled {left} depthwise convolutions")
    for function, calls in ((called, 3), (outer, 0)):
        before = tf_interop.status().xla_calls
        function(*inputs)
        assert new_calls(before) == XlaCalls(compiled=calls, run=calls)
    tf_interop.disable()
    before = tf_interop.status().xla_calls
    called(*inputs)
    assert new_calls(before).run == 0
    line = "depthwise convolutions that XLA compiled for a CPU: "
    assert line in str(tf_interop.status())


def test_calls_that_run_at_the_same_time_and_on_threads_of_the_pool() -> None:
    """Independent calls, which XLA's threads may run, and functions called from threads."""
    filters = [tf.random.stateless_normal([5, 5, 32, 1], [i, 0]) for i in range(12)]

    def branches(image: tf.Tensor) -> tf.Tensor:
        strides = [1, 1, 1, 1]
        return tf.concat(
            [tf.nn.depthwise_conv2d(image, each, strides, "SAME") for each in filters], -1
        )

    image = tf.random.stateless_normal([4, 56, 56, 32], [1, 2])
    expected = branches(image)
    tf_interop.enable()
    before = tf_interop.status().xla_calls
    compiled = tf.function(branches, jit_compile=True)
    compiled(image)

    def call(_: int) -> None:
        for _ in range(10):
            np.testing.assert_allclose(compiled(image), expected, rtol=1e-5, atol=1e-5)

    in_threads(call, range(4))
    assert new_calls(before) == XlaCalls(compiled=12, run=12 * 41)
