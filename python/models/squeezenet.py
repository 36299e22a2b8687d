"""SqueezeNet v1.1 after Iandola et al., "SqueezeNet: AlexNet-level accuracy with 50x fewer …".

arXiv:1602.07360 (2016); version 1.1 is the authors' own, from their repository: less computation
than version 1.0 of the paper's Table 1, at equal accuracy. Each fire module squeezes to few
channels, then expands them by a 1x1 and a 3x3 convolution that do not depend on each other. The
authors' Caffe rounds the size of a pooled image up, to 56, 28 and 14; here it is rounded down, to
55, 27 and 13, as in most ports, without padding.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from python.models.googlenet import classifier, convolution, image_of

# The channels that each fire module squeezes to, and the channels of each of its two expansions.
_WIDTHS = {f"fire{number}": (number // 2 * 16, number // 2 * 64) for number in range(2, 10)}

SMALLEST_SIZE = 31
"""Smallest height and width: the last modules then see one pixel."""


def squeezenet(image_size: tuple[int, int] = (224, 224), classes: int = 1000) -> tf.keras.Model:
    """Builds SqueezeNet v1.1 with random weights.

    Args:
        image_size: height and width of an image, at least 31.
        classes: how many classes to tell apart.

    Returns:
        A model from images `[N, H, W, 3]` to probabilities `[N, classes]`.

    Raises:
        ValueError: the images are too small.
    """
    image = image_of(image_size, SMALLEST_SIZE)
    x = convolution(image, 64, 3, "conv1", strides=2, padding="valid")
    for name in _WIDTHS:
        if name in ("fire2", "fire4", "fire6"):
            x = tf.keras.layers.MaxPooling2D(3, 2, name=f"{name}_pool")(x)
        x = _fire(x, name)
    x = tf.keras.layers.Dropout(0.5, name="drop9")(x)
    x = convolution(x, classes, 1, "conv10")
    x = tf.keras.layers.GlobalAveragePooling2D(name="pool10")(x)
    return classifier(image, x, "squeezenet")


def _fire(x: Any, name: str) -> Any:
    squeeze, expand = _WIDTHS[name]
    squeezed = convolution(x, squeeze, 1, f"{name}_squeeze_1x1")
    branches = [
        convolution(squeezed, expand, size, f"{name}_expand_{size}x{size}") for size in (1, 3)
    ]
    return tf.keras.layers.Concatenate(axis=-1, name=f"{name}_output")(branches)
