from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from parallel.parts_runner import check, operation_of, stays_whole, values

from tf_interop.parallel.types import Degrees

SHAPE = (4, 5, 3, 7)
OF_CHANNELS = (Degrees(filter=2), Degrees(filter=3, channel=2), Degrees(channel=7))
# How many channels a vectorized sum has at a time may count.
ROUNDING = 1e-6


def case(op: str, *, training: bool, dtype: Any = np.float32) -> tuple[Any, ...]:
    """An op, what it reads, and its attributes."""
    vectors = [np.abs(values(SHAPE[3], seed=seed)) + 0.5 for seed in range(4)]
    inputs = [values(*SHAPE, dtype=dtype), *vectors]
    if "Grad" in op:
        inputs[1:3] = [values(*SHAPE, seed=9, dtype=dtype), vectors[0]]
        if op.endswith("V3"):
            inputs.append(values(0))
    return op, inputs, {"U": tf.float32, "is_training": training}


@pytest.mark.parametrize("version", ["V2", "V3"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_divides_training_by_channels(version: str, dtype: Any) -> None:
    training = case(f"FusedBatchNorm{version}", training=True, dtype=dtype)
    check(*training, OF_CHANNELS, outputs=5, tolerance=ROUNDING)
    assert stays_whole(operation_of(*training)[0], Degrees(sample=2))


@pytest.mark.parametrize("version", ["V2", "V3"])
def test_divides_inference_along_every_axis(version: str) -> None:
    degrees = (*OF_CHANNELS, Degrees(sample=2, height=3), Degrees(width=2, filter=2))
    inference = case(f"FusedBatchNorm{version}", training=False)
    # The reserve spaces are not written.
    check(*inference, degrees, outputs=3, tolerance=ROUNDING)


@pytest.mark.parametrize("version", ["V2", "V3"])
@pytest.mark.parametrize("training", [True, False])
def test_divides_gradients_by_channels(version: str, training: bool) -> None:
    gradient = case(f"FusedBatchNormGrad{version}", training=training)
    for parts in check(*gradient, OF_CHANNELS, outputs=3, tolerance=ROUNDING):
        assert all(set(part.reads[5:]) <= {None} for part in parts)
    assert stays_whole(operation_of(*gradient)[0], Degrees(height=2))
