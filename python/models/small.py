"""Small networks, for checks that train them many times."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

CLASSES = 10

layers = tf.keras.layers


def lenet() -> tf.keras.Model:
    """LeNet-5 after LeCun et al. (1998), Figure 2, with ReLU and max pooling, as used today."""
    image = tf.keras.Input((28, 28, 1), name="image")
    x = layers.Conv2D(6, 5, padding="same", activation="relu", name="c1")(image)
    x = layers.MaxPooling2D(name="s2")(x)
    x = layers.Conv2D(16, 5, activation="relu", name="c3")(x)
    x = layers.MaxPooling2D(name="s4")(x)
    x = layers.Flatten(name="flat")(x)
    x = layers.Dense(120, activation="relu", name="c5")(x)
    x = layers.Dense(84, activation="relu", name="f6")(x)
    return tf.keras.Model(image, layers.Dense(CLASSES, name="output")(x), name="lenet")


def resnet() -> tf.keras.Model:
    """ResNet-8 for small images: He et al., "Deep Residual Learning" (2015), section 4.2, n = 1."""
    return _resnet(16, 16, [(16, 1), (32, 2), (64, 2)], "resnet")


def narrow_resnet() -> tf.keras.Model:
    """ResNet-18 after He et al. (2015), half as wide, for images of 32 x 32."""
    blocks = [(width, strides) for width in (32, 64, 128, 256) for strides in (2, 1)]
    blocks[0] = 32, 1
    return _resnet(32, 32, blocks, "narrow_resnet")


def _resnet(size: int, stem: int, blocks: list[tuple[int, int]], name: str) -> tf.keras.Model:
    image = tf.keras.Input((size, size, 3), name="image")
    x = _normalized(image, stem, 3, "stem")
    for number, (filters, strides) in enumerate(blocks):
        y = _normalized(x, filters, 3, f"block{number}_a", strides)
        y = _normalized(y, filters, 3, f"block{number}_b", activation=None)
        if strides > 1:
            x = _normalized(x, filters, 1, f"block{number}_s", strides, activation=None)
        x = layers.ReLU(name=f"block{number}")(layers.Add(name=f"block{number}_add")([x, y]))
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return tf.keras.Model(image, layers.Dense(CLASSES, name="output")(x), name=name)


def narrow_vgg() -> tf.keras.Model:
    """VGG-16 after Simonyan and Zisserman (2014), half as wide, for images of 32 x 32."""
    model = tf.keras.Sequential([tf.keras.Input((32, 32, 3))])
    for filters, count in ((32, 2), (64, 2), (128, 3), (256, 3), (256, 3)):
        for _ in range(count):
            model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.MaxPool2D())
    model.add(layers.Flatten())
    for _ in range(2):
        model.add(layers.Dense(1024, activation="relu"))
    model.add(layers.Dense(CLASSES))
    return model


def narrow_alexnet() -> tf.keras.Model:
    """AlexNet after Krizhevsky (2014), half as wide, for images of 112 x 112."""
    pool = {"pool_size": 3, "strides": 2}
    return tf.keras.Sequential(
        [
            tf.keras.Input((112, 112, 3)),
            layers.Conv2D(32, 11, 4, padding="same", activation="relu"),
            layers.MaxPool2D(**pool),
            layers.Conv2D(96, 5, padding="same", activation="relu"),
            layers.MaxPool2D(**pool),
            *(
                layers.Conv2D(each, 3, padding="same", activation="relu")
                for each in (192, 128, 128)
            ),
            layers.Flatten(),
            *(layers.Dense(2048, activation="relu") for _ in range(2)),
            layers.Dense(CLASSES),
        ]
    )


def paddings() -> tf.keras.Model:
    """A made-up chain of every kind of padding, stride, dilation and pooling."""
    image = tf.keras.Input((26, 23, 4), name="image")
    x = layers.Conv2D(8, 3, padding="valid", activation="relu", name="valid")(image)
    x = layers.ZeroPadding2D(((1, 2), (0, 1)), name="pad")(x)
    x = layers.Conv2D(8, (4, 3), 2, padding="same", activation="elu", name="even_strides")(x)
    x = layers.DepthwiseConv2D(3, padding="same", activation="relu", name="depthwise")(x)
    x = layers.Conv2D(12, 3, dilation_rate=2, padding="same", name="dilated")(x)
    x = layers.AveragePooling2D(3, 1, padding="same", name="average")(x)
    x = layers.MaxPooling2D(3, 2, padding="same", name="maximum")(x)
    x = layers.Conv2D(8, 2, 3, padding="valid", activation="tanh", name="wide_strides")(x)
    x = layers.AveragePooling2D(2, 1, padding="valid", name="last_pool")(x)
    x = layers.Flatten(name="flat")(x)
    return tf.keras.Model(image, layers.Dense(CLASSES, name="output")(x), name="paddings")


def _normalized(
    x: Any, filters: int, size: int, name: str, strides: int = 1, activation: str | None = "relu"
) -> Any:
    x = layers.Conv2D(filters, size, strides, padding="same", use_bias=False, name=name)(x)
    x = layers.BatchNormalization(name=f"{name}_norm")(x)
    return x if activation is None else layers.Activation(activation, name=f"{name}_act")(x)
