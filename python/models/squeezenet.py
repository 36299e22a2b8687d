"""SqueezeNet v1.1 after Iandola et al., "SqueezeNet: AlexNet-level accuracy with 50x fewer …".

arXiv:1602.07360 (2016); version 1.1 is the authors' own, from their repository: less computation
than version 1.0 of the paper's Table 1, at equal accuracy. Each fire module squeezes to few
channels, then expands them by a 1x1 and a 3x3 convolution that do not depend on each other. For
images of 224 x 224:

| layer       | filter/stride | output          | squeeze 1x1 | expand 1x1 | expand 3x3 |
|-------------|---------------|-----------------|-------------|------------|------------|
| conv1       | 3x3 / 2       | 111 x 111 x 64  |             |            |            |
| max pool    | 3x3 / 2       | 55 x 55 x 64    |             |            |            |
| fire2       |               | 55 x 55 x 128   | 16          | 64         | 64         |
| fire3       |               | 55 x 55 x 128   | 16          | 64         | 64         |
| max pool    | 3x3 / 2       | 27 x 27 x 128   |             |            |            |
| fire4       |               | 27 x 27 x 256   | 32          | 128        | 128        |
| fire5       |               | 27 x 27 x 256   | 32          | 128        | 128        |
| max pool    | 3x3 / 2       | 13 x 13 x 256   |             |            |            |
| fire6       |               | 13 x 13 x 384   | 48          | 192        | 192        |
| fire7       |               | 13 x 13 x 384   | 48          | 192        | 192        |
| fire8       |               | 13 x 13 x 512   | 64          | 256        | 256        |
| fire9       |               | 13 x 13 x 512   | 64          | 256        | 256        |
| conv10      | 1x1 / 1       | 13 x 13 x 1000  |             |            |            |
| average     | all           | 1000            |             |            |            |

The authors' Caffe rounds the size of a pooled image up, which makes 56, 28 and 14 of 55, 27 and 13;
here it is rounded down, as in most ports, without padding.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from python.models.googlenet import LAYOUT, convolution


@dataclasses.dataclass(frozen=True, slots=True)
class FireWidths:
    """Output channels of the three convolutions of a fire module."""

    squeeze_1x1: int
    expand_1x1: int
    expand_3x3: int


FIRE_WIDTHS: dict[str, FireWidths] = {
    "fire2": FireWidths(16, 64, 64),
    "fire3": FireWidths(16, 64, 64),
    "fire4": FireWidths(32, 128, 128),
    "fire5": FireWidths(32, 128, 128),
    "fire6": FireWidths(48, 192, 192),
    "fire7": FireWidths(48, 192, 192),
    "fire8": FireWidths(64, 256, 256),
    "fire9": FireWidths(64, 256, 256),
}

SMALLEST_SIZE = 31
"""Smallest height and width: the last modules then see one pixel."""


def squeezenet(
    input_shape: tuple[int, int, int] = (224, 224, 3), classes: int = 1000
) -> tf.keras.Model:
    """Builds SqueezeNet v1.1 with random weights.

    Args:
        input_shape: (height, width, channels) of an image; height and width at least 31.
        classes: how many classes to tell apart.

    Returns:
        A model from images `[N, H, W, C]` to probabilities `[N, classes]`.

    Raises:
        ValueError: the images are too small.
    """
    if min(input_shape[:2]) < SMALLEST_SIZE:
        raise ValueError(
            f"Expected an input_shape of at least ({SMALLEST_SIZE}, {SMALLEST_SIZE}, C), got "
            f"{input_shape}. Use larger images."
        )
    image = tf.keras.Input(input_shape, name="image")
    x = convolution(image, 64, 3, "conv1", strides=2, padding="valid")
    for name in FIRE_WIDTHS:
        if name in ("fire2", "fire4", "fire6"):
            pool = tf.keras.layers.MaxPooling2D(3, 2, data_format=LAYOUT, name=f"{name}_pool")
            x = pool(x)
        x = _fire(x, name)
    x = tf.keras.layers.Dropout(0.5, name="drop9")(x)
    x = convolution(x, classes, 1, "conv10")
    x = tf.keras.layers.GlobalAveragePooling2D(data_format=LAYOUT, name="pool10")(x)
    # float32 also under mixed precision: half softmax loses the small probabilities.
    outputs = tf.keras.layers.Softmax(dtype="float32", name="softmax")(x)
    return tf.keras.Model(image, outputs, name="squeezenet")


def _fire(x: Any, name: str) -> Any:
    widths = FIRE_WIDTHS[name]
    squeezed = convolution(x, widths.squeeze_1x1, 1, f"{name}_squeeze_1x1")
    expand_1x1 = convolution(squeezed, widths.expand_1x1, 1, f"{name}_expand_1x1")
    expand_3x3 = convolution(squeezed, widths.expand_3x3, 3, f"{name}_expand_3x3")
    return tf.keras.layers.Concatenate(axis=-1, name=f"{name}_output")([expand_1x1, expand_3x3])
