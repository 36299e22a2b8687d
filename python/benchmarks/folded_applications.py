"""Compares every architecture of keras.applications folded with stock TensorFlow, on the CPU.

Folding rounds otherwise, so no bits are compared. A result may move as far as in stock TensorFlow
when the last bit of every pixel, or of every weight, changes. A training step is shown and not
judged: where rounding moves an activation to the other side of a Relu, gradients jump, with the
plugin or without it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tensorflow as tf

import tf_interop
from python.benchmarks.applications import (
    BATCH,
    application_names,
    build_smallest,
    functions_of,
    set_random_weights,
    shares_of_tolerance,
)
from python.benchmarks.result_file import Case
from tf_interop.runtime.plugin import get_plugin


def agrees(row: dict[str, Any]) -> bool:
    """Whether rounding explains all differences of inference."""
    return max(row["inference"], row["inference after assigning"]) <= 1


def measure(name: str) -> dict[str, Any]:
    """Calls `compare_folded` after choosing one thread inside an operation."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    return compare_folded(name)


def compare_folded(name: str) -> dict[str, Any]:
    """Runs one network without the plugin and with it.

    Returns:
        A row of the result. The phases are the largest distance over the tolerance.
    """
    start = time.perf_counter()
    tf.keras.utils.set_random_seed(0)
    model = build_smallest(name)
    set_random_weights(model)
    size = model.input_shape[1]
    pixels = np.random.default_rng(1).uniform(0, 255, (BATCH, size, size, 3)).astype(np.float32)
    infer, train, _ = functions_of(model)
    tf_interop.enable()
    row: dict[str, Any] = {"image size": size}
    row["inference"] = max(shares_of_tolerance(infer, model, pixels, "profiled"))
    row["training step"] = max(
        shares_of_tolerance(train, model, pixels, "profiled", with_state=True)
    )
    model.set_weights([value * np.float32(0.9) for value in model.get_weights()])
    row["inference after assigning"] = max(shares_of_tolerance(infer, model, pixels, "profiled"))
    plugin = get_plugin()
    if plugin.failures:
        raise ValueError(f"Expected no failure of the pass, got {plugin.failures}.")
    row["folded"] = max((each.folded_count for each in plugin.fold_reports), default=0)
    return row | {"seconds": round(time.perf_counter() - start, 1)}


CASE = Case(
    title="Same results: keras.applications, folded",
    says="""
The architectures of keras.applications with parameters folded and kept, as `enable()` alone does,
compared with stock TensorFlow, in batches of two of the smallest images that they take, with one
intra-op thread. A value is the largest change of a result as a share of the tolerance: of the
outputs of inference; of the loss, all gradients and the state after a training step; and of the
outputs once more, after all weights have been assigned. The tolerance is eight times the change
that altered last bits cause in stock TensorFlow, plus four roundings. In inference a share above 1
would be an error. In a training step it may be a jump: where rounding moves an activation to the
other side of a Relu, gradients change at once. In Xception, gradients of stock TensorFlow and those
with fused normalizations are both up to 7e-3 from those in float64. "Folded" counts the nodes that
became part of others.
""",
    networks=application_names(),
    measure=measure,
    is_right=agrees,
)
