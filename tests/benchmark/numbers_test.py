"""Weights of compared networks, and the comparison of their outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf_interop.benchmark.numbers import check_outputs, outputs_of_stock, set_weights
from tf_interop.errors import BenchmarkError
from tf_interop.model.keras_functions import trace_keras

layers = tf.keras.layers


def deep(depth: int = 12) -> Any:
    """A chain of depthwise convolutions, in which activations vanish with fresh weights."""
    image = tf.keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(image)
    for _ in range(depth):
        x = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.ReLU()(x)
    # A model in a model has normalizations, too.
    inner = tf.keras.Sequential([tf.keras.Input(x.shape[1:]), layers.BatchNormalization()])
    x = layers.GlobalAveragePooling2D()(inner(x))
    return tf.keras.Model(image, layers.Dense(10, activation="softmax")(x))


def traced(model: Any) -> Any:
    return trace_keras(model, 1, None, training=False)


def test_outputs_depend_on_the_input_with_these_weights_only() -> None:
    model = deep()
    found = traced(model)
    with pytest.raises(BenchmarkError, match=r"change by only .* when the inputs change"):
        outputs_of_stock(found.function, found.inputs)
    set_weights(model, found.inputs)
    [outputs] = outputs_of_stock(found.function, found.inputs)
    assert outputs.shape == (1, 10)


def test_weights_are_always_the_same_and_normalizations_are_not_the_identity() -> None:
    models = [deep(), deep()]
    for seed, model in enumerate(models):
        tf.keras.utils.set_random_seed(seed)
        set_weights(model, traced(model).inputs)
    one, other = ([each.numpy() for each in model.variables] for model in models)
    named = [(each.name, value) for each, value in zip(models[0].variables, one, strict=True)]
    for (name, value), again in zip(named, other, strict=True):
        if not name.startswith("seed") and value.ndim != 2:  # left to Keras
            np.testing.assert_allclose(value, again, rtol=1e-4, atol=1e-5, err_msg=name)
        if name in ("gamma", "moving_variance"):
            assert np.abs(value - 1).max() > 0.05, name
        if name in ("beta", "moving_mean"):
            assert np.abs(value).max() > 0.01, name
    assert all(
        each.momentum == 0.99 for each in models[0].layers if hasattr(each, "moving_variance")
    )


def test_no_class_is_certain() -> None:
    image = tf.keras.Input((16, 16, 3))
    x = image
    for _ in range(6):  # without normalizations, pooling makes activations larger
        x = layers.MaxPooling2D(3, 1)(layers.Conv2D(16, 3, padding="same", activation="relu")(x))
    x = layers.Conv2D(100, 1)(x)
    x = layers.Softmax()(layers.GlobalAveragePooling2D()(x))
    model = tf.keras.Model(image, x)
    found = traced(model)
    set_weights(model, found.inputs)
    [outputs] = outputs_of_stock(found.function, found.inputs)
    assert outputs.max() < 0.5


def test_outputs_that_are_not_finite_are_refused() -> None:
    with pytest.raises(BenchmarkError, match="not finite"):
        outputs_of_stock(lambda x: x / 0.0, tf.TensorSpec([2]))


STOCK = [np.array([1.0, -100.0]), np.zeros(2)]


def test_compares_outputs_that_are_no_numbers() -> None:
    stock = [np.array([True, False]), np.array([b"cat", b"dog"], object)]
    check_outputs([each.copy() for each in stock], stock)
    for place in (0, 1):
        others = [each.copy() for each in stock]
        others[place][0] = others[place][1]
        with pytest.raises(BenchmarkError, match="differ"):
            check_outputs(others, stock)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([STOCK[0] + 0.09, STOCK[1]], None),
        ([STOCK[0] + 0.11, STOCK[1]], "differ from stock TensorFlow's by 1.1e-03"),
        ([STOCK[0], STOCK[1] + 0.01], "differ"),
        ([STOCK[0] * np.nan, STOCK[1]], "differ"),
        ([STOCK[0], STOCK[1] * np.nan], "differ"),
        (STOCK[:1], "Expected outputs of the shapes"),
    ],
)
def test_compares_with_the_largest_output(outputs: Any, message: str | None) -> None:
    if message is None:
        check_outputs(outputs, STOCK)
    else:
        with pytest.raises(BenchmarkError, match=message):
            check_outputs(outputs, STOCK)
