"""Steps that a benchmark calls, of functions that are no Keras models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_interop.model.graphs import trace_step

FILTERS = tf.ones([3, 3, 3, 4])
ANY_IMAGE = tf.TensorSpec([None, None, None, 3], name="image")


@pytest.mark.parametrize("jit_compile", [None, True])
def test_a_function_is_called_with_inputs_of_known_shapes(jit_compile: bool | None) -> None:
    function = tf.function(
        lambda image, scale: {"result": tf.nn.conv2d(image, FILTERS, 1, "SAME") * scale},
        input_signature=[ANY_IMAGE, tf.TensorSpec([], name="scale")],
    )
    traced = trace_step(function, 2, (8, 6), jit_compile=jit_compile)
    assert [each.shape for each in tf.nest.flatten(traced.inputs)] == [(2, 8, 6, 3), ()]
    values = tf.nest.map_structure(lambda each: tf.ones(each.shape), traced.inputs)
    expected = function(tf.ones([2, 8, 6, 3]), 1.0)["result"]
    np.testing.assert_array_equal(traced.function(values)["result"], expected)


@pytest.mark.parametrize(
    ("arguments", "training", "said"),
    [
        ([ANY_IMAGE, 3], False, "is 3, not a tensor"),
        ([ANY_IMAGE], True, "Training needs a Keras model"),
    ],
)
def test_refuses(arguments: list[Any], training: bool, said: str) -> None:
    function = tf.function(lambda image, count=1: tf.nn.conv2d(image, FILTERS, count, "SAME"))
    with pytest.raises(ValueError, match=said):
        trace_step(function.get_concrete_function(*arguments), 1, (8, 8), training=training)
