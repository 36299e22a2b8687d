"""Response normalization in a unit is at least as exact as TensorFlow's LRN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from stage_program import operation
from unit_program import in_graph, stock

pytestmark = pytest.mark.usefixtures("without_optimization")

ALEXNET = {"depth_radius": 2, "bias": 1.0, "alpha": 2e-5, "beta": 0.75}
DEFAULTS = {"depth_radius": 5, "bias": 1.0, "alpha": 1.0, "beta": 0.5}


def image_of(channels: int, scale: float = 10.0) -> np.ndarray:
    image = np.random.default_rng(channels).standard_normal([2, 5, 7, channels]) * scale
    return image.astype(np.float32)


def in_unit(unit: Any, image: np.ndarray, cores: int = 1, **attributes: Any) -> np.ndarray:
    steps = [operation("step", "LRN", ["inputs:0"], **attributes)]
    return in_graph(unit, steps, ["steps:0:0"], cores=cores)(tf.constant(image))[0].numpy()


def in_stock(image: np.ndarray, **attributes: Any) -> np.ndarray:
    steps = [operation("step", "LRN", ["inputs:0"], **attributes)]
    return stock(steps, ["steps:0:0"])(tf.constant(image))[0].numpy()


def in_double(
    image: np.ndarray, depth_radius: int, bias: float, alpha: float, beta: float
) -> np.ndarray:
    squares = np.pad(np.square(image, dtype=np.float64), [(0, 0)] * 3 + [(depth_radius,) * 2])
    channels = image.shape[-1]
    sums = sum(squares[..., i : i + channels] for i in range(2 * depth_radius + 1))
    return image / (np.float32(bias) + np.float64(np.float32(alpha)) * sums) ** beta


@pytest.mark.parametrize("channels", [1, 3, 8, 96, 500])
@pytest.mark.parametrize("beta", [0.5, 0.75, 1.0])
def test_is_exact(unit: Any, channels: int, beta: float) -> None:
    image = image_of(channels)
    for changes in ({}, {"depth_radius": 0}, {"alpha": 0.3}, {"bias": 0.1, "depth_radius": 5}):
        attributes = ALEXNET | changes | {"beta": beta}
        found = in_unit(unit, image, cores=2, **attributes)
        np.testing.assert_allclose(found, in_double(image, **attributes), rtol=6e-7)
        np.testing.assert_allclose(in_stock(image, **attributes), found, rtol=1e-4)


def test_has_the_defaults_of_the_op(unit: Any) -> None:
    image = image_of(12)
    np.testing.assert_allclose(in_unit(unit, image), in_double(image, **DEFAULTS), rtol=6e-7)


def test_large_and_special_values(unit: Any) -> None:
    image = image_of(16, scale=3e17)
    image[1] = 0
    image[0, 0, 0, 3], image[0, 1, 0, 2] = np.nan, np.inf
    found = in_unit(unit, image, **ALEXNET)
    # TensorFlow's kernel has NaN in all channels of these pixels.
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(found, in_double(image, **ALEXNET), rtol=6e-7)


def test_other_powers_keep_the_kernel(unit: Any) -> None:
    image, attributes = image_of(12), ALEXNET | {"beta": 0.6}
    np.testing.assert_array_equal(in_unit(unit, image, **attributes), in_stock(image, **attributes))
