"""GoogLeNet against Table 1 of arXiv:1409.4842, written down here once more."""

from __future__ import annotations

import pathlib

import pytest
import tensorflow as tf

from python.models import googlenet as googlenet_module
from python.models.googlenet import googlenet

# Columns of Table 1: input channels, 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection.
TABLE = {
    "3a": (192, 64, 96, 128, 16, 32, 32),
    "3b": (256, 128, 128, 192, 32, 96, 64),
    "4a": (480, 192, 96, 208, 16, 48, 64),
    "4b": (512, 160, 112, 224, 24, 64, 64),
    "4c": (512, 128, 128, 256, 24, 64, 64),
    "4d": (512, 112, 144, 288, 32, 64, 64),
    "4e": (528, 256, 160, 320, 32, 128, 128),
    "5a": (832, 256, 160, 320, 32, 128, 128),
    "5b": (832, 384, 192, 384, 48, 128, 128),
}

# Filters and biases, by hand from the table: R * S * C * K + K for each convolution. For 3a:
# 12,352 + 18,528 + 110,720 + 3,088 + 12,832 + 6,176. The paper's own column "params" is rounded
# and partly at odds with its widths (2.7K for the first convolution, whose filter alone has 9,408).
PARAMETERS = {
    "conv1_7x7_s2": 9_472,
    "conv2_3x3_reduce": 4_160,
    "conv2_3x3": 110_784,
    "3a": 163_696,
    "3b": 388_736,
    "4a": 376_176,
    "4b": 449_160,
    "4c": 510_104,
    "4d": 605_376,
    "4e": 868_352,
    "5a": 1_043_456,
    "5b": 1_444_080,
    "loss3_classifier": 1_025_000,
}


@pytest.fixture(scope="module", name="model")
def fixture_model() -> tf.keras.Model:
    return googlenet()


def _convolutions(model: tf.keras.Model) -> list[tf.keras.layers.Conv2D]:
    return [layer for layer in model.layers if isinstance(layer, tf.keras.layers.Conv2D)]


def test_parameter_count_is_that_of_the_table(model: tf.keras.Model) -> None:
    assert sum(PARAMETERS.values()) == 6_998_552
    assert model.count_params() == 6_998_552


@pytest.mark.parametrize("part", PARAMETERS)
def test_parameters_of_each_part(model: tf.keras.Model, part: str) -> None:
    prefix = f"inception_{part}_" if part in TABLE else part
    layers = [
        layer
        for layer in model.layers
        if (layer.name.startswith(prefix) if part in TABLE else layer.name == part)
    ]
    assert sum(layer.count_params() for layer in layers) == PARAMETERS[part]


def test_has_57_convolutions_with_bias_and_relu(model: tf.keras.Model) -> None:
    convolutions = _convolutions(model)
    assert len(convolutions) == 57
    assert all(layer.use_bias for layer in convolutions)
    assert all(layer.activation is tf.keras.activations.relu for layer in convolutions)


@pytest.mark.parametrize("module", TABLE)
def test_widths_of_module(model: tf.keras.Model, module: str) -> None:
    channels, conv_1x1, reduce_3x3, conv_3x3, reduce_5x5, conv_5x5, pool_proj = TABLE[module]
    filters = {
        layer.name.removeprefix(f"inception_{module}_"): tuple(layer.kernel.shape)
        for layer in _convolutions(model)
        if layer.name.startswith(f"inception_{module}_")
    }
    assert filters == {
        "1x1": (1, 1, channels, conv_1x1),
        "3x3_reduce": (1, 1, channels, reduce_3x3),
        "3x3": (3, 3, reduce_3x3, conv_3x3),
        "5x5_reduce": (1, 1, channels, reduce_5x5),
        "5x5": (5, 5, reduce_5x5, conv_5x5),
        "pool_proj": (1, 1, channels, pool_proj),
    }
    output = model.get_layer(f"inception_{module}_output").output
    size = {"3": 28, "4": 14, "5": 7}[module[0]]
    assert tuple(output.shape) == (None, size, size, conv_1x1 + conv_3x3 + conv_5x5 + pool_proj)


def test_output_is_a_distribution_at_the_smallest_size() -> None:
    model = googlenet((32, 32, 3), classes=10)
    assert model.get_layer("inception_5b_output").output.shape == (None, 1, 1, 1024)
    probabilities = model(tf.random.stateless_uniform((2, 32, 32, 3), (0, 0))).numpy()
    assert probabilities.shape == (2, 10)
    assert probabilities.sum(axis=1) == pytest.approx([1.0, 1.0], abs=1e-5)


def test_branches_of_a_module_reach_the_output_in_the_order_of_the_table(
    model: tf.keras.Model,
) -> None:
    concatenate = model.get_layer("inception_4b_output")
    names = [tensor._keras_history.operation.name for tensor in concatenate.input]
    assert names == [
        "inception_4b_1x1", "inception_4b_3x3", "inception_4b_5x5", "inception_4b_pool_proj",
    ]  # fmt: skip


def test_normalizes_over_five_channels() -> None:
    image = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]) * 100
    layer = googlenet_module.LocalResponseNormalization()
    normalized = layer(tf.reshape(image, (1, 1, 1, 7))).numpy().ravel()
    energy = sum((100.0 * value) ** 2 for value in (2, 3, 4, 5, 6))
    assert normalized[3] == pytest.approx(400 / (1 + 1e-4 / 5 * energy) ** 0.75, rel=1e-5)


def test_auxiliary_classifiers_sit_on_4a_and_4d() -> None:
    model = googlenet((224, 224, 3), classes=1000, auxiliary=True)
    assert [tuple(output.shape) for output in model.outputs] == [(None, 1000)] * 3
    assert len(_convolutions(model)) == 59
    assert tuple(model.get_layer("loss1_pool").output.shape) == (None, 4, 4, 512)
    assert tuple(model.get_layer("loss2_pool").output.shape) == (None, 4, 4, 528)


@pytest.mark.parametrize(
    ("size", "auxiliary", "smallest"), [(31, False, "32, 32"), (64, True, "65, 65")]
)
def test_refuses_smaller_images(size: int, auxiliary: bool, smallest: str) -> None:
    with pytest.raises(ValueError, match=rf"at least \({smallest}, C\).*got \({size}, 70, 3\)"):
        googlenet((size, 70, 3), auxiliary=auxiliary)


def test_builds_at_the_smallest_size_with_auxiliary_classifiers() -> None:
    model = googlenet((65, 65, 3), classes=10, auxiliary=True)
    assert tuple(model.get_layer("loss2_pool").output.shape) == (None, 1, 1, 528)


def test_survives_saving(tmp_path: pathlib.Path) -> None:
    model = googlenet((32, 32, 3), classes=10)
    model.save(tmp_path / "model.keras")
    restored = tf.keras.models.load_model(tmp_path / "model.keras")
    image = tf.random.stateless_uniform((1, 32, 32, 3), (1, 2))
    assert (restored(image).numpy() == model(image).numpy()).all()
