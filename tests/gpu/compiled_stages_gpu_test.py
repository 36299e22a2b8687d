"""Stages inside functions that XLA compiles for a GPU, against XLA alone."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from branched_models import build_normalized
from unnoticed import IMAGE, branches, counted, digits, gradients

import tf_interop

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")

TOLERANCE = {"rtol": 2e-3, "atol": 2e-3}


def test_a_compiled_function_and_its_gradients() -> None:
    expected = tf.function(gradients(branches), jit_compile=True)(tf.constant(IMAGE))
    tf_interop.enable("always")
    with counted() as new:
        result = tf.function(gradients(branches), jit_compile=True)(tf.constant(IMAGE))
    for one, other in zip(result, expected, strict=True):
        assert "GPU" in one.device
        np.testing.assert_allclose(one, other, **TOLERANCE)
    assert new.stages_run == 2
    assert not new.fallbacks


def test_keras_trains_as_it_compiles_by_itself() -> None:
    losses = []
    for turn in (tf_interop.disable, lambda: tf_interop.enable("always")):
        turn()
        tf.keras.utils.set_random_seed(1)
        model = build_normalized()
        model.compile("sgd", "mse")
        assert model.jit_compile
        images = digits(2, 8, *model.input_shape[1:])
        labels = digits(3, 8, *model.output_shape[1:])
        with counted() as new:
            history = model.fit(images, labels, batch_size=4, epochs=2, verbose=0, shuffle=False)
        losses.append(history.history["loss"])
    assert new.stages_run
    np.testing.assert_allclose(losses[1], losses[0], **TOLERANCE)


def test_xla_captures_a_network_without_a_plan() -> None:
    model = build_normalized()
    images = tf.constant(digits(2, 8, *model.input_shape[1:]))
    expected = tf.function(model, jit_compile=True)(images)
    tf_interop.enable()
    function = tf.function(model, jit_compile=True)
    with counted() as new:
        for _ in range(10):
            np.testing.assert_allclose(function(images), expected, **TOLERANCE)
    stages = tf_interop.status().xla_calls.stages
    # A call that is not captured counts each time.
    assert 0 < new.stages_run < 10 * stages
    assert not new.fallbacks
