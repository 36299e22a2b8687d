from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from parallel.parts_runner import check_parts, operation_of

from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.op_parts import Operation
from tf_interop.parallel.rules.normalization import RULES

SHAPE = (4, 5, 3, 7)
OF_CHANNELS = (Degrees(filter=2), Degrees(filter=3, channel=2), Degrees(channel=7))


def vector(seed: int) -> np.ndarray:
    values: np.ndarray = np.random.default_rng(seed).uniform(0.5, 2, SHAPE[3]).astype(np.float32)
    return values


def normalization(
    version: str, training: bool, dtype: tf.DType = tf.float32
) -> tuple[Operation, list[np.ndarray], list[np.ndarray]]:
    """A normalization, what it reads and what it gives."""
    image = np.random.default_rng(0).normal(1, 2, SHAPE).astype(dtype.as_numpy_dtype)
    inputs = [image, *(vector(seed) for seed in range(4))]
    attributes: dict[str, Any] = {"T": dtype, "U": tf.float32, "is_training": training}
    operation, results = operation_of(f"FusedBatchNorm{version}", inputs, attributes)
    return operation, inputs, results


@pytest.mark.parametrize("version", ["V2", "V3"])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16])
def test_divides_training_by_channels(version: str, dtype: tf.DType) -> None:
    operation, inputs, results = normalization(version, True, dtype)
    for degrees in OF_CHANNELS:
        # How many channels a vectorized sum has at a time may count.
        check_parts(
            *(RULES[operation.node.op], operation, inputs, results, degrees),
            outputs=range(5),
            tolerance=1e-6,
        )
    assert RULES[operation.node.op](operation, Degrees(sample=2)) is None


@pytest.mark.parametrize("version", ["V2", "V3"])
def test_divides_inference_along_every_axis(version: str) -> None:
    operation, inputs, results = normalization(version, False)
    for degrees in (*OF_CHANNELS, Degrees(sample=2, height=3), Degrees(width=2, filter=2)):
        check_parts(
            # The reserve spaces are not written.
            *(RULES[operation.node.op], operation, inputs, results, degrees),
            outputs=range(3),
            tolerance=1e-6,
        )


@pytest.mark.parametrize("version", ["V2", "V3"])
@pytest.mark.parametrize("training", [True, False])
def test_divides_gradients_by_channels(version: str, training: bool) -> None:
    _, (image, scale, *_), results = normalization("V3", True)
    gradient = np.random.default_rng(9).normal(size=SHAPE).astype(np.float32)
    inputs = [gradient, image, scale, results[3], results[4]]
    inputs += [results[5]] if version == "V3" else []
    attributes = {"T": tf.float32, "U": tf.float32, "is_training": training}
    op = f"FusedBatchNormGrad{version}"
    operation, results = operation_of(op, inputs, attributes)
    for degrees in OF_CHANNELS:
        parts = check_parts(
            RULES[op], operation, inputs, results, degrees, outputs=range(3), tolerance=1e-6
        )
    assert all(part.reads[5:] == (None,) * (len(inputs) - 5) for part in parts.parts)
    assert RULES[op](operation, Degrees(height=2)) is None
