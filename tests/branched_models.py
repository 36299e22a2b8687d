"""Small models with named layers, and a function."""

from __future__ import annotations

import tensorflow as tf

layers = tf.keras.layers


def build_branches() -> tf.keras.Model:
    """Two convolutions of one image."""
    image = tf.keras.Input((8, 8, 3), name="image")
    branches = [
        layers.Conv2D(4, side, padding="same", name=f"branch_{side}")(image) for side in (3, 5)
    ]
    return tf.keras.Model(image, layers.Concatenate(name="joined")(branches), name="branches")


def build() -> tf.keras.Model:
    """The same with one more convolution after both."""
    branches = build_branches()
    last = layers.Conv2D(2, 1, name="last")(branches.output)
    pooled = layers.GlobalMaxPooling2D(name="pool")(last)
    return tf.keras.Model(branches.input, pooled, name="branches")


def build_module() -> tf.keras.Model:
    """Three convolutions of one image between two others."""
    image = tf.keras.Input((16, 16, 3))
    x = layers.Conv2D(8, 3, 2, padding="same", activation="relu", name="stem")(image)
    branches = [
        layers.Conv2D(4, size, padding="same", activation="relu", name=f"c{size}")(x)
        for size in (1, 3, 5)
    ]
    x = layers.Conv2D(6, 3, name="end")(layers.Concatenate()(branches))
    x = layers.GlobalAveragePooling2D()(layers.BatchNormalization()(x))
    return tf.keras.Model(image, layers.Dense(3, activation="softmax")(x), name="tiny")


def build_normalized() -> tf.keras.Model:
    """Two normalized branches of one image, and two convolutions with nothing between them."""
    image = tf.keras.Input((16, 16, 3))
    branches = []
    for size in (3, 5):
        x = layers.Conv2D(8, size, padding="same", use_bias=False)(image)
        branches.append(layers.ReLU()(layers.BatchNormalization()(x)))
    x = layers.Conv2D(8, 1, use_bias=False)(layers.Add()(branches))
    x = layers.Conv2D(8, 1)(layers.BatchNormalization()(x))
    x = layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(image, layers.Dense(3)(x), name="normalized")


def build_other() -> tf.keras.Model:
    """A convolution that the other models lack."""
    image = tf.keras.Input((8, 8, 3))
    return tf.keras.Model(image, layers.Conv2D(4, 7, name="seven")(image), name="other")


@tf.function(input_signature=[tf.TensorSpec((None, 8, 8, 3))])
def function(image: tf.Tensor) -> tf.Tensor:
    """A function that is not a model."""
    return tf.nn.conv2d(image, tf.ones((3, 3, 3, 4)), 1, "SAME")
