"""Programs that train with fused normalizations compute what stock TensorFlow computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import tf_interop
from tf_interop.runtime.plugin import get_plugin

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.normal(size=[19, 48, 48, 3]).astype(np.float32)
LABELS = np.arange(19) % 10

pytestmark = pytest.mark.usefixtures("units_on_cpus")


@pytest.fixture(autouse=True)
def disabled(units_on_cpus: None) -> Iterator[None]:
    policy = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(policy)
    tf_interop.disable()


def small_model(last: dict[str, Any]) -> Any:
    """Normalizations after each other, before an addition, and added to each other."""
    layers = keras.layers

    def normalized(image: Any, **options: Any) -> Any:
        image = layers.Conv2D(16, 3, padding="same", use_bias=False)(image)
        return layers.BatchNormalization(**options)(image)

    given = keras.Input([48, 48, 3])
    x = short = layers.Activation("tanh")(normalized(given))
    x = short = layers.Add()([normalized(x), short])
    x = layers.Add()([normalized(x, scale=False), normalized(short, **last)])
    x = layers.GlobalAveragePooling2D()(layers.Activation("tanh")(x))
    return keras.Model(given, layers.Dense(10, activation="softmax", dtype="float32")(x))


def trained(last: dict[str, Any], optimizer: str) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses in batches of 8, 8 and 3, and the weights and moving averages after them."""
    keras.utils.set_random_seed(0)
    model = small_model(last)
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=False)
    history = model.fit(IMAGES, LABELS, batch_size=8, epochs=2, shuffle=False, verbose=0)
    losses = [*history.history["loss"], model.evaluate(IMAGES, LABELS, verbose=0)]
    names = [variable.path for variable in model.variables]
    return losses, dict(zip(names, model.get_weights(), strict=True))


@pytest.mark.parametrize(
    ("policy", "optimizer", "last", "count", "tolerance"),
    [
        # Adam divides by gradients.
        ("float32", "adam", {}, 4, 2e-3),
        ("float32", "sgd", {"trainable": False}, 3, 2e-5),
        # The rounding of 8 bits differs.
        ("mixed_bfloat16", "sgd", {}, 4, 3e-3),
    ],
)
def test_training_is_stocks(
    policy: str, optimizer: str, last: dict[str, Any], count: int, tolerance: float
) -> None:
    keras.config.set_dtype_policy(policy)
    losses, weights = trained(last, optimizer)
    get_plugin().forget_reports()
    tf_interop.enable()
    new_losses, new_weights = trained(last, optimizer)
    assert not get_plugin().failures
    assert {each.normalization_count for each in get_plugin().fold_reports} - {0} == {count}
    assert f"{count} normalizations fused" in str(tf_interop.status())
    np.testing.assert_allclose(new_losses, losses, rtol=tolerance)
    for value, new in zip(weights.values(), new_weights.values(), strict=True):
        np.testing.assert_allclose(new, value, rtol=tolerance, atol=tolerance)
    moved = [value for name, value in new_weights.items() if "moving_variance" in name]
    assert all(np.ptp(value) > 0 for value in moved[:3])


def test_status_tells_why_a_normalization_stays() -> None:
    tf_interop.enable()
    layers = keras.layers
    given = keras.Input([16, 16, 3])
    x = layers.BatchNormalization(axis=1)(layers.Conv2D(8, 3)(given))
    model = keras.Model(given, layers.Dense(1)(layers.GlobalAveragePooling2D()(x)))
    model.compile("sgd", "mse", jit_compile=False)
    model.train_on_batch(np.zeros([2, 16, 16, 3]), np.zeros([2, 1]))
    assert "normalizations not fused: 1 layout" in str(tf_interop.status())
