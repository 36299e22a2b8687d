"""Compares networks in bfloat16, folded and in stock TensorFlow, with the same ones in float32."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_interop
from python.benchmarks.result_file import Case
from tf_interop.benchmark.numbers import noise, set_weights

IMAGES, SIZE = 16, 128
MOST = 1.25
"""The largest deviation that is right, as a multiple of stock's."""


def measure(name: str) -> dict[str, Any]:
    """A row of the result."""
    exact_model, model = (_build(name, policy) for policy in ("float32", "mixed_bfloat16"))
    spec = tf.TensorSpec([IMAGES, SIZE, SIZE, 3])
    set_weights(exact_model, spec)
    model.set_weights(exact_model.get_weights())
    images = noise(spec, seed=0)
    exact = np.asarray(_infer(exact_model)(images))
    of_stock = _deviation(_infer(model)(images), exact)
    tf_interop.enable(self_timing=False)
    folded = _deviation(_infer(model)(images), exact)
    return {
        "nodes folded": sum(each.folded_count for each in tf_interop.status().folded_graphs),
        "deviation of stock": of_stock,
        "deviation of enable()": folded,
        "ratio": folded / of_stock,
    }


def _build(name: str, policy: str) -> Any:
    keras.config.set_dtype_policy(policy)
    build = getattr(keras.applications, name)
    shape = (SIZE, SIZE, 3)
    return build(weights=None, include_top=False, pooling="avg", input_shape=shape)


def _infer(model: Any) -> Any:
    return tf.function(lambda images: model(images, training=False))


def _deviation(features: Any, exact: np.ndarray) -> float:
    """How far features are from the exact ones, as a part of how much these differ by image."""
    differences = np.asarray(features, np.float32) - exact
    return float(np.linalg.norm(differences) / np.linalg.norm(exact - exact.mean(0)))


CASE = Case(
    title="Mixed precision on a CPU: deviation from float32",
    says=f"""
The features of {IMAGES} images of noise ({SIZE}x{SIZE} pixels), after the last pooling, in Keras'
mixed_bfloat16. A deviation is the norm of the difference to the same network in float32, as a part
of the norm of what the features of the images differ by. The weights are random, and the moving
statistics those of a batch of noise, as in a trained network. `enable()` multiplies filters by the
factors of normalizations before it rounds them.
""",
    networks=(
        *("MobileNetV2", "MobileNetV3Small", "EfficientNetB0", "EfficientNetV2B0", "NASNetMobile"),
        *("ResNet50", "ResNet50V2", "DenseNet121", "InceptionV3", "Xception", "VGG16"),
    ),
    measure=measure,
    is_right=lambda row: row["ratio"] <= MOST,
)
