"""Compares every architecture of keras.applications folded with stock TensorFlow, on the CPU.

Folding rounds otherwise, so no bits are compared. The output of inference may move as far as in
stock TensorFlow when the last bit of every pixel, or of every weight, changes. The loss, the
gradients and the state after a training step may be as far from those in float64 as those of stock
TensorFlow are, within the same factor. There a change in the last bit may move an activation to the
other side of a Relu, so that gradients jump, with stock TensorFlow as with the plugin. A jump
depends on the images, and an error does not: so each result must agree in one of several batches.
"""

from __future__ import annotations

import pathlib
import tempfile
import time
from typing import Any

import numpy as np
import tensorflow as tf

import tf_interop
from python.benchmarks.applications import (
    BATCH,
    Numbers,
    application_names,
    build_smallest,
    distances,
    functions_of,
    nudge,
    set_random_weights,
    shares_of_tolerance,
)
from python.benchmarks.result_file import Case
from python.benchmarks.rounding import share_of_tolerance
from tf_interop.runtime.plugin import get_plugin

TRAINING_BATCH = 8
MOST_BATCHES = 10
LEARNING_RATE = np.float32(1e-3)


def agrees(row: dict[str, Any]) -> bool:
    """Whether rounding explains all differences."""
    shares = [each for name, each in row.items() if name.startswith(("inference", "step"))]
    return all(each is None or each <= 1 for each in shares) and any(shares)


def measure(name: str) -> dict[str, Any]:
    """Runs one network without the plugin and with it, with one thread inside an operation.

    Returns:
        A row of the result. The phases are the largest distance over the tolerance.
    """
    start = time.perf_counter()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    model = _build(name)
    set_random_weights(model)
    size = model.input_shape[1]
    pixels = _pixels(BATCH, size, seed=1)
    infer, _, _ = functions_of(model)
    tf_interop.enable()
    row: dict[str, Any] = {"image size": size}

    def compare(phase: str) -> None:
        row[phase] = max(shares_of_tolerance(infer, model, pixels, "profiled"), default=None)

    compare("inference")
    row |= _compare_training(name, model)
    compare("inference after a step")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "saved.weights.h5")
        # Little, because a deep network multiplies it until rounding decides its output.
        _scale_weights(model, 1.01)
        model.save_weights(path)
        _scale_weights(model, 0.5)
        compare("inference after assigning")
        model.load_weights(path)
        compare("inference after loading")
    plugin = get_plugin()
    if plugin.failures:
        raise ValueError(f"Expected no failure of the pass, got {plugin.failures}.")
    row["folded"] = max((each.folded_count for each in plugin.fold_reports), default=0)
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def _build(name: str) -> Any:
    """The network, without dropout, whose random numbers depend on the type."""
    tf.keras.utils.set_random_seed(0)
    model = build_smallest(name)
    for layer in model.layers:
        for rate in ("rate", "drop_path_rate"):
            if hasattr(layer, rate):
                setattr(layer, rate, 0.0)
    return model


def _pixels(batch_size: int, size: int, seed: int) -> np.ndarray:
    shape = (batch_size, size, size, 3)
    return np.random.default_rng(seed).uniform(0, 255, shape).astype(np.float32)


def _scale_weights(model: Any, factor: float) -> None:
    model.set_weights([value * np.float32(factor) for value in model.get_weights()])


def _compare_training(name: str, model: Any) -> dict[str, Any]:
    """Compares one training step, and updates the model by it; the plugin is on, and stays on.

    Returns:
        `step` is the largest share of the tolerance of the loss, a gradient or a variable of the
        state, each in the batch of images where it is least; `batches` counts these.
    """
    weights = model.get_weights()
    _, step, _ = functions_of(model, TRAINING_BATCH)
    _, step_in_float64, _ = functions_of(_build_in_float64(name, weights), TRAINING_BATCH)
    least, batches = np.full(1, np.inf), 0
    while batches < MOST_BATCHES and least.max() > 1:
        pixels = _pixels(TRAINING_BATCH, model.input_shape[1], seed=batches)
        batches += 1
        tf_interop.enable()
        images = tf.constant(pixels)
        changed = step(images)
        tf_interop.disable()
        stock = [step(images), step(tf.constant(nudge(pixels)))]
        model.set_weights([nudge(each) for each in weights])
        stock.append(step(images))
        model.set_weights(weights)
        exact = step_in_float64(tf.cast(images, tf.float64))
        stock_is_off = np.max([distances(each, exact) for each in stock], axis=0)
        is_off = distances(changed, exact)
        least = np.minimum(least, [*map(share_of_tolerance, is_off, stock_is_off)])
    tf_interop.enable()
    for variable, gradient in zip(model.trainable_variables, changed[1:], strict=False):
        # As an optimizer does, with a step that leaves numbers finite.
        scale = LEARNING_RATE / max(1, float(np.linalg.norm(gradient)))
        variable.assign_sub(scale * gradient)
    normalizations = [each.normalization_count for each in get_plugin().fold_reports]
    return {
        "fused normalizations": max(normalizations, default=0),
        "step": float(least.max()),
        "batches": batches,
        "off": float(np.median(is_off)),
        "stock is off": float(np.median(stock_is_off)),
    }


def _build_in_float64(name: str, weights: Numbers) -> Any:
    policy = tf.keras.config.dtype_policy()
    tf.keras.config.set_dtype_policy("float64")
    try:
        model = _build(name)
    finally:
        tf.keras.config.set_dtype_policy(policy)
    model.set_weights(weights)
    return model


CASE = Case(
    title="Same results: keras.applications, folded",
    says="""
The architectures of keras.applications with parameters folded and kept, as `enable()` alone does,
compared with stock TensorFlow, on the smallest images that they take, with one intra-op thread. A
value is the largest change of a result as a share of the tolerance; a share above 1 would be an
error. "Inference" compares outputs in batches of two: at first, after an update by a training step,
after all weights have been assigned, and after they have been loaded from a file. Their tolerance
is eight times the change that altered last bits cause in stock TensorFlow, plus four roundings. A
dash means that altered last bits change stock's output by more than a tenth, so nothing is told.
"Step" compares the loss, all gradients and the state after a training step of eight images, all
normalizations fused: their distance to those in float64 may be eight times that of
stock TensorFlow, with the last bits as they are or altered. Gradients jump where rounding moves an
activation to the other side of a Relu, with stock TensorFlow as with the plugin. A jump depends on
the images, and an error does not: where a result disagrees, more batches follow, at most ten, and
the least share of each result counts. "Off" and "stock is off" are the medians of the relative
distances in the last batch. "Folded" counts the nodes that became part of others.
""",
    networks=application_names(),
    measure=measure,
    is_right=agrees,
)
