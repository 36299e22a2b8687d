"""The networks that are compared, each as `tf-interop benchmark` and `profile` take it.

    tf-interop benchmark python.benchmarks.networks:googlenet --batch 8 …

Those of `tf.keras.applications` have their names there; the others are functions of this module.
"""

from __future__ import annotations

import tensorflow as tf

from python.models.googlenet import googlenet as build_googlenet
from python.models.randwire import randwire as build_randwire
from python.models.squeezenet import squeezenet as build_squeezenet

IMAGE_SIZE = (224, 224)


def googlenet(image_size: tuple[int, int] = IMAGE_SIZE) -> tf.keras.Model:
    """GoogLeNet."""
    return build_googlenet((*image_size, 3))


def squeezenet(image_size: tuple[int, int] = IMAGE_SIZE) -> tf.keras.Model:
    """SqueezeNet v1.1."""
    return build_squeezenet((*image_size, 3))


def randwire(image_size: tuple[int, int] = IMAGE_SIZE) -> tf.keras.Model:
    """RandWire-WS(4, 0.75) of the small regime, with the wirings of seed 0."""
    return build_randwire((*image_size, 3))


NETWORKS = {
    "GoogLeNet": f"{__name__}:googlenet",
    "Inception-v3": "InceptionV3",
    "ResNet-50": "ResNet50",
    "SqueezeNet": f"{__name__}:squeezenet",
    "NASNetMobile": "NASNetMobile",
    "RandWire": f"{__name__}:randwire",
    "DenseNet-121": "DenseNet121",
    "NASNetLarge": "NASNetLarge",
}
"""What the commands take for each, in order of value: what published measurements of concurrent
convolutions are of comes first."""
