"""Training on a real data set, scikit-learn's digits, with the plugin on and off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from sklearn import datasets, model_selection
from unnoticed import stages_run

import tf_interop

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")

EPOCHS = 3


def load_digits() -> list[np.ndarray]:
    """Images `[N, 8, 8, 1]` for training and for testing, then the labels of both."""
    digits = datasets.load_digits()
    images = (digits.images / 16).astype(np.float32)[..., None]
    return model_selection.train_test_split(images, digits.target, test_size=400, random_state=0)


def make_model() -> Any:
    """An Inception block between two convolutions."""
    layers = tf.keras.layers
    image = tf.keras.Input((8, 8, 1))
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(image)
    branches = [
        layers.Conv2D(8, 1, activation="relu")(x),
        layers.Conv2D(16, 3, padding="same", activation="relu")(x),
        layers.Conv2D(8, 5, padding="same", activation="relu")(x),
        layers.Conv2D(8, 1, activation="relu")(layers.MaxPooling2D(3, 1, "same")(x)),
    ]
    x = layers.BatchNormalization()(layers.Concatenate()(branches))
    x = layers.Conv2D(16, 3, strides=2, activation="relu")(x)
    model = tf.keras.Model(image, layers.Dense(10)(layers.Flatten()(x)))
    model.compile(
        tf.keras.optimizers.Adam(3e-3),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return model


def train() -> tuple[np.ndarray, list[float]]:
    """Trains on the same batches every time.

    Returns:
        The logits for the test images, and the loss of every epoch.
    """
    train_images, test_images, train_labels, _ = load_digits()
    tf.keras.utils.set_random_seed(0)
    model = make_model()
    history = model.fit(train_images, train_labels, batch_size=32, epochs=EPOCHS, verbose=0)
    return model.predict(test_images, verbose=0), history.history["loss"]


def test_three_epochs_reach_the_same_accuracy() -> None:
    labels = load_digits()[3]
    tf_interop.disable()
    expected, expected_losses = train()
    tf_interop.enable("always")
    before = stages_run()
    logits, losses = train()
    steps = EPOCHS * -(-1397 // 32)
    assert stages_run() - before > 2 * steps, "forward and backward stages in every step"
    assert tf_interop.status().failures == ()
    print(losses, expected_losses)
    print(np.mean(np.argmax(logits, -1) == labels), np.mean(np.argmax(expected, -1) == labels))
    print(np.abs(logits - expected).max(), np.sum(np.argmax(logits, -1) != np.argmax(expected, -1)))
    assert 0
