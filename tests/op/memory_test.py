"""Stages that run out of memory, and the user's limit for their workspaces."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from convolution_cases import digits
from stage_program import arguments, lane, operation, program, schedule
from tensorflow.python.framework import config
from unnoticed import assert_same, counted, run_python

from tf_interop.runtime.plugin import get_plugin

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")

PLAIN: Any = {"strides": [1] * 4, "padding": "SAME"}
OPERANDS = ["inputs:0", "inputs:1"]
VARIABLE = "TF_INTEROP_HOST_REFUSES"


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        ("BUFFERED", "an algorithm other than the plan's"),
        ("BUFFERED DIRECT", "no algorithm, so a stage ran without its plan"),
    ],
    ids=["a_pinned_algorithm", "every_algorithm"],
)
def test_tries_refused_algorithms_again(
    conv_stage: Any, refused: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, filter_ = digits([2, 6, 6, 4]), digits([3, 3, 4, 4])
    document = program(
        [operation(name, "Conv2D", OPERANDS, **PLAIN) for name in "ab"],
        schedule(lane((0, "BUFFERED")), lane((1, "BUFFERED"))),
    )
    inputs = tf.constant(image), tf.constant(filter_)
    stage = tf.function(lambda: conv_stage(**arguments(inputs, [], document)), autograph=False)
    expected = tf.nn.conv2d(image, filter_, 1, "SAME")

    def fallbacks() -> dict[str, int]:
        with counted() as new:
            assert_same(stage(), [expected] * 2)
        return new.fallbacks

    monkeypatch.setenv(VARIABLE, refused)
    first = fallbacks()
    assert any(each.startswith(reason) and VARIABLE in each for each in first)
    time.sleep(1.1)
    tried = time.monotonic()
    assert fallbacks() == first
    monkeypatch.delenv(VARIABLE)
    assert fallbacks() == first or time.monotonic() > tried + 1, "tried too early"
    time.sleep(1.1)
    assert fallbacks() == {}
    # A stage that is prepared as planned stays, until one of TensorFlow's switches changes.
    monkeypatch.setenv(VARIABLE, refused)
    time.sleep(1.1)
    assert fallbacks() == {}
    tf.config.experimental.enable_op_determinism()
    try:
        assert fallbacks() == first
    finally:
        config.disable_op_determinism()
    assert fallbacks() == {}


# TensorFlow's allocator for GPUs, here on the CPU, waits ten seconds until others free memory.
SHORT_OF_MEMORY = """
import time

import numpy as np, tensorflow as tf
from stage_program import arguments, lane, operation, program, schedule
from tf_interop.runtime.kernel_library import load_kernel_library
from unnoticed import counted

conv_stage = tf.load_op_library(str(load_kernel_library().build_info.path)).tf_interop_conv_stage
plain = {"dtype": tf.float16, "strides": [1, 1, 1, 1], "padding": "SAME"}
document = program(
    [operation("deep", "Conv2D", ["inputs:0", "inputs:1"], **plain),
     operation("wide", "Conv2D", ["inputs:2", "inputs:3"], **plain)],
    schedule(lane((0, "DIRECT")), lane((1, "DIRECT"))),  # no workspaces
    kept_inputs=[1],
)
deep = tf.ones([1, 1, 1, 512], tf.float16), tf.ones([1, 1, 512, 1024], tf.float16)
one = tf.ones([1, 1, 1, 1], tf.float16)
# Two kernels: one holds the memory that the other needs.
first, second = (
    tf.function(lambda *inputs: conv_stage(**arguments(inputs, [], document)), autograph=False)
    for _ in range(2)
)

tf.zeros([10 << 20], tf.uint8)  # so that the allocator's memory is in one piece
narrow, wide = (tf.ones([1, 1024, width, 1], tf.float16) for width in (1, 1024))
with counted() as new:
    first(*deep, narrow, one)
assert new.filters_transformed == 1, new
in_use = tf.config.experimental.get_memory_info("CPU:0")["current"]
others = tf.zeros([(15 << 20) - in_use], tf.uint8)  # leaves 1 MiB; the results take 2
begin = time.monotonic()
with counted() as new:
    results = second(*deep, wide, one)
elapsed_s = time.monotonic() - begin
for result, value in zip(results, (512, 1)):
    np.testing.assert_array_equal(result, np.full(result.shape, value))
[reason] = new.fallbacks
assert "stages gave up their transformed filters" in reason, reason
assert elapsed_s < 10, elapsed_s
"""

# Stock TensorFlow frees the image of a convolution that nobody else reads.
CHAIN_SHORT_OF_MEMORY = """
import time

import numpy as np, tensorflow as tf
from stage_program import arguments, lane, operation, program, schedule
from tf_interop.runtime.kernel_library import load_kernel_library
from unnoticed import counted

conv_stage = tf.load_op_library(str(load_kernel_library().build_info.path)).tf_interop_conv_stage
plain = {"dtype": tf.float16, "strides": [1, 1, 1, 1], "padding": "SAME"}
names = "abcd"
operands = [["inputs:0", "inputs:1"], *([f"steps:{i}:0", "inputs:2"] for i in range(3))]
document = program(
    [operation(name, "Conv2D", each, **plain) for name, each in zip(names, operands)],
    schedule(lane(*((i, "DIRECT") for i in range(4)))),
    outputs=[3],
)
stage = tf.function(lambda *inputs: conv_stage(**arguments(inputs, [], document)), autograph=False)
tf.zeros([10 << 20], tf.uint8)  # so that the allocator's memory is in one piece
image = tf.ones([1, 1024, 1024, 1], tf.float16)  # 2 MiB; each of the four results takes 4
inputs = image, tf.ones([1, 1, 1, 2], tf.float16), tf.ones([1, 1, 2, 2], tf.float16)
begin = time.monotonic()
with counted() as new:
    [result] = stage(*inputs)
elapsed_s = time.monotonic() - begin
np.testing.assert_array_equal(result, np.full(result.shape, 8))
[reason] = new.fallbacks
assert "no memory for all results of a stage at once" in reason, reason
assert elapsed_s < 10, elapsed_s
"""


@pytest.mark.parametrize(
    "text",
    [SHORT_OF_MEMORY, CHAIN_SHORT_OF_MEMORY],
    ids=["gives_up_transformed_filters", "frees_results_as_stock_tensorflow_does"],
)
def test_a_stage_that_is_short_of_memory(text: str) -> None:
    run_python(text, TF_CPU_ALLOCATOR_USE_BFC="1", TF_CPU_BFC_MEM_LIMIT_IN_MB="16")


def test_a_stage_over_the_limit_needs_less(conv_stage: Any) -> None:
    half = PLAIN | {"dtype": tf.float16}
    operations = [operation(f"convolution_{i}", "Conv2D", OPERANDS, **half) for i in range(8)]
    document = program(operations, kept_inputs=[1])
    filter_ = tf.ones([3, 3, 4, 4], tf.float16)

    @tf.function(autograph=False)
    def stage(image: tf.Tensor) -> list[tf.Tensor]:
        return conv_stage(**arguments([image, filter_], [], document))

    # A new limit also applies to existing stages, such as those of Sessions.
    for limit_bytes, reason in (
        (1 << 20, "it ran on fewer lanes"),
        (0, "algorithms that need less"),
        (None, ""),
    ):
        get_plugin().library.set_workspace_limit(limit_bytes)
        with counted() as new:
            for _ in range(3):
                for result in stage(tf.ones([2, 60, 60, 4], tf.float16)):
                    assert np.all(result[:, 1:-1, 1:-1] == 36)
        assert list(new.fallbacks.values()) == [3] * bool(reason)
        for each in new.fallbacks:
            assert "no memory for the workspaces of a stage" in each and reason in each
        if limit_bytes:  # the lesser stage is kept with its transformed filters
            assert new.filters_transformed == len(operations)
