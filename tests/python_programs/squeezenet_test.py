"""SqueezeNet v1.1 against the widths of its authors' definition, written down here once more."""

from __future__ import annotations

import pytest
import tensorflow as tf

from python.models.squeezenet import SMALLEST_SIZE, squeezenet

# Input channels, squeeze, expand 1x1, expand 3x3, and the height and width.
FIRES = {
    "fire2": (64, 16, 64, 64, 55),
    "fire3": (128, 16, 64, 64, 55),
    "fire4": (128, 32, 128, 128, 27),
    "fire5": (256, 32, 128, 128, 27),
    "fire6": (256, 48, 192, 192, 13),
    "fire7": (384, 48, 192, 192, 13),
    "fire8": (384, 64, 256, 256, 13),
    "fire9": (512, 64, 256, 256, 13),
}


@pytest.fixture(scope="module", name="model")
def fixture_model() -> tf.keras.Model:
    return squeezenet()


def test_parameter_count_is_that_of_the_authors(model: tf.keras.Model) -> None:
    # 1,235,496 is what ports of version 1.1 report; version 1.0 has 1,248,424.
    assert model.count_params() == 1_235_496
    assert sum(isinstance(layer, tf.keras.layers.Conv2D) for layer in model.layers) == 26


@pytest.mark.parametrize("fire", FIRES)
def test_widths_of_fire_module(model: tf.keras.Model, fire: str) -> None:
    channels, squeeze, expand_1x1, expand_3x3, size = FIRES[fire]
    filters = {
        name: tuple(model.get_layer(f"{fire}_{name}").kernel.shape)
        for name in ("squeeze_1x1", "expand_1x1", "expand_3x3")
    }
    assert filters == {
        "squeeze_1x1": (1, 1, channels, squeeze),
        "expand_1x1": (1, 1, squeeze, expand_1x1),
        "expand_3x3": (3, 3, squeeze, expand_3x3),
    }
    output = model.get_layer(f"{fire}_output").output
    assert tuple(output.shape) == (None, size, size, expand_1x1 + expand_3x3)


def test_output_is_a_distribution_at_the_smallest_size() -> None:
    model = squeezenet((SMALLEST_SIZE, SMALLEST_SIZE, 3), classes=10)
    assert model.get_layer("fire9_output").output.shape == (None, 1, 1, 512)
    image = tf.random.stateless_uniform((2, SMALLEST_SIZE, SMALLEST_SIZE, 3), (0, 0))
    probabilities = model(image).numpy()
    assert probabilities.sum(axis=1) == pytest.approx([1.0, 1.0], abs=1e-5)


def test_refuses_smaller_images() -> None:
    with pytest.raises(ValueError, match=r"at least \(31, 31, C\), got \(30, 70, 3\)"):
        squeezenet((30, 70, 3))
