"""GoogLeNet (Inception v1) after Table 1 of Szegedy et al., "Going Deeper with Convolutions".

arXiv:1409.4842 (2014). `tf.keras.applications` has Inception v3 only, and published measurements
of concurrent convolutions use this network: each of its nine modules has branches of very
different sizes. Figure 3 of the paper adds two local response normalizations, after the first
pooling and before the second; it does not give their constants, nor the paddings: here all are
padded (SAME).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

SMALLEST_SIZE = 32
"""Smallest height and width: modules 5a and 5b then see one pixel."""
# The channels of each module's 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5 and pool proj.
_WIDTHS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
_POOLED_AFTER = {"3b": "pool3_3x3_s2", "4e": "pool4_3x3_s2"}


@tf.keras.utils.register_keras_serializable(package="googlenet")
class LocalResponseNormalization(tf.keras.layers.Layer):  # type: ignore[misc]
    """Divides each value by the activity of the five channels around it.

    b = a / (1 + alpha / 5 * sum of a^2 over five channels) ^ beta, with the constants of the
    GoogLeNet that Caffe's model zoo publishes: alpha 1e-4, beta 0.75.
    """

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Normalizes images `[N, H, W, C]`."""
        return tf.nn.local_response_normalization(
            inputs, depth_radius=2, bias=1.0, alpha=1e-4 / 5, beta=0.75
        )


def googlenet(image_size: tuple[int, int] = (224, 224), classes: int = 1000) -> tf.keras.Model:
    """Builds GoogLeNet with random weights, without the classifiers that only help training.

    Layers are named after the table, such as `inception_3a_5x5_reduce` (Keras allows no slash).

    Args:
        image_size: height and width of an image, at least 32.
        classes: how many classes to tell apart.

    Returns:
        A model from images `[N, H, W, 3]` to probabilities `[N, classes]`.

    Raises:
        ValueError: the images are too small.
    """
    image = image_of(image_size, SMALLEST_SIZE)
    x = convolution(image, 64, 7, "conv1_7x7_s2", strides=2)
    x = _max_pool(x, "pool1_3x3_s2")
    x = LocalResponseNormalization(name="pool1_norm1")(x)
    x = convolution(x, 64, 1, "conv2_3x3_reduce")
    x = convolution(x, 192, 3, "conv2_3x3")
    x = LocalResponseNormalization(name="conv2_norm2")(x)
    x = _max_pool(x, "pool2_3x3_s2")
    for module in _WIDTHS:
        x = _inception(x, module)
        if module in _POOLED_AFTER:
            x = _max_pool(x, _POOLED_AFTER[module])
    x = tf.keras.layers.GlobalAveragePooling2D(name="pool5")(x)
    x = tf.keras.layers.Dropout(0.4, name="pool5_dropout")(x)
    x = tf.keras.layers.Dense(classes, name="loss3_classifier")(x)
    return classifier(image, x, "googlenet")


def image_of(size: tuple[int, int], smallest: int) -> Any:
    """The input of a network, an image `[N, H, W, 3]`; raises ValueError if it is too small."""
    if min(size) < smallest:
        raise ValueError(
            f"Expected an image_size of at least ({smallest}, {smallest}), got {size}. "
            "Use larger images."
        )
    return tf.keras.Input((*size, 3), name="image")


def convolution(
    x: Any, filters: int, size: int, name: str, strides: int = 1, padding: str = "same"
) -> Any:
    """A convolution with bias and ReLU."""
    layer = tf.keras.layers.Conv2D(filters, size, strides, padding, activation="relu", name=name)
    return layer(x)


def classifier(image: Any, logits: Any, name: str) -> tf.keras.Model:
    """The model from images to probabilities, which are float32 even under mixed precision.

    In half precision softmax loses the small probabilities.
    """
    softmax = tf.keras.layers.Softmax(dtype="float32", name="softmax")
    return tf.keras.Model(image, softmax(logits), name=name)


def _max_pool(x: Any, name: str, strides: int = 2) -> Any:
    return tf.keras.layers.MaxPooling2D(3, strides, padding="same", name=name)(x)


def _inception(x: Any, module: str) -> Any:
    conv_1x1, reduce_3x3, conv_3x3, reduce_5x5, conv_5x5, pool_proj = _WIDTHS[module]
    name = f"inception_{module}"
    branches = [
        convolution(x, conv_1x1, 1, f"{name}_1x1"),
        convolution(
            convolution(x, reduce_3x3, 1, f"{name}_3x3_reduce"), conv_3x3, 3, f"{name}_3x3"
        ),
        convolution(
            convolution(x, reduce_5x5, 1, f"{name}_5x5_reduce"), conv_5x5, 5, f"{name}_5x5"
        ),
        convolution(_max_pool(x, f"{name}_pool", strides=1), pool_proj, 1, f"{name}_pool_proj"),
    ]
    return tf.keras.layers.Concatenate(axis=-1, name=f"{name}_output")(branches)
