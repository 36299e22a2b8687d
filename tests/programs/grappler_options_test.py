"""The plugin together with TensorFlow's own graph passes, with each of their options changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from unnoticed import (
    FILTERS,
    assert_unnoticed,
    conv,
    digits,
    gradients,
    in_function,
    v1,
)

import tf_interop

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")

# The options of tf.config.optimizer.set_experimental_options, with the value that is not default.
ON = (
    *("layout_optimizer", "constant_folding", "shape_optimization", "remapping"),
    *("arithmetic_optimization", "dependency_optimization", "loop_optimization"),
    *("function_optimization", "implementation_selector"),
)
OFF = (
    *("debug_stripper", "disable_model_pruning", "scoped_allocator_optimization"),
    *("pin_to_host_optimization", "auto_mixed_precision"),
    *("auto_mixed_precision_onednn_bfloat16", "auto_mixed_precision_mkl"),
)
OPTIONS = dict.fromkeys(ON, False) | dict.fromkeys(OFF, True) | {"min_graph_nodes": -1}


@pytest.fixture(autouse=True)
def fixture_options_as_before() -> Iterator[None]:
    yield
    # None makes TensorFlow use its default.
    tf.config.optimizer.set_experimental_options(dict.fromkeys(OPTIONS))


BIAS = np.float32([1, -2, 3, 0])


def network(image: tf.Tensor) -> tf.Tensor:
    """Has what the passes look for: fusions, layouts, constants, conditions, functions."""
    constant = tf.ones([1, 1, 1, 4]) * 2.0 - 1.0
    fused = tf.nn.relu(tf.nn.bias_add(conv(image, 0), BIAS))
    normalized, _, _ = v1.nn.fused_batch_norm(
        conv(image * constant, 1),
        scale=tf.ones([4]),
        offset=BIAS,
        mean=tf.zeros([4]),
        variance=tf.ones([4]),
        epsilon=0.0,
        is_training=False,
    )
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_max(image) < 100, [image])]):
        pooled = tf.nn.max_pool2d(image, 3, 1, "SAME")
    depthwise = tf.nn.depthwise_conv2d(image, digits(8, 3, 3, 4, 1), [1, 1, 1, 1], "SAME")
    branches = [fused, tf.nn.relu(normalized), conv(pooled, 2), conv(depthwise, 3)]
    together = tf.clip_by_value(tf.concat(branches, -1), -2, 2)
    projected = tf.nn.conv2d(together, np.concatenate(FILTERS, 2), 1, "SAME")
    inner = tf.function(lambda x: conv(x, 0) + conv(x, 1), autograph=False)
    return tf.cond(
        tf.reduce_sum(image) > -1e6, lambda: inner(projected), lambda: conv(projected, 2)
    )


@pytest.mark.parametrize(("name", "value"), OPTIONS.items())
def test_gives_the_same_numbers_and_makes_stages_with(name: str, value: Any) -> None:
    tf.config.optimizer.set_experimental_options({name: value})
    assert_unnoticed(in_function(gradients(network)))
    widest = max(
        len(each.stage.lanes)
        for report in tf_interop.status().graphs
        for each in report.plan.stages
    )
    # The first convolutions of three branches and the depthwise one are independent.
    assert widest >= 4
