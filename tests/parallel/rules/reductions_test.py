from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from parallel.parts_runner import check_parts, operation_of

from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.rules.reductions import RULES

IMAGE = (5, 7, 6, 9)
DEGREES = (
    Degrees(sample=2),
    Degrees(height=3, width=2),
    Degrees(filter=2, channel=2),
    Degrees(sample=3, height=2, filter=2),
)
AXES = ((1, 2), (-3, 2), (0, 1, 2), (0,), (3,), (0, 1, 2, 3), (-1, 0))
# A sum of sums is rounded otherwise than the whole's.
ROUNDING = {np.float64: 1e-14, np.float32: 1e-6, np.float16: 2e-3}


def values(*shape: int, seed: int = 0, dtype: type = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).normal(1.0, 0.5, size=shape).astype(dtype)


@pytest.mark.parametrize("op", ["Sum", "Mean"])
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("keep_dims", [False, True])
def test_adds_up_what_parts_have_of_a_sum(op: str, axes: tuple[int, ...], keep_dims: bool) -> None:
    inputs = [values(*IMAGE), np.array(axes, np.int64)]
    attributes = {"T": tf.float64, "Tidx": tf.int64, "keep_dims": keep_dims}
    operation, results = operation_of(op, inputs, attributes, constants=[1])
    for degrees in DEGREES:
        check_parts(RULES[op], operation, inputs, results, degrees, tolerance=ROUNDING[np.float64])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_adds_up_means_of_short_dtypes(dtype: type) -> None:
    inputs = [values(*IMAGE, dtype=dtype), np.array([1, 2], np.int32)]
    operation, results = operation_of("Mean", inputs, {"T": tf.as_dtype(dtype)}, constants=[1])
    for degrees in DEGREES:
        check_parts(RULES["Mean"], operation, inputs, results, degrees, tolerance=ROUNDING[dtype])


@pytest.mark.parametrize("op", ["Sum", "Mean"])
def test_parts_of_an_undivided_axis_are_no_addends(op: str) -> None:
    inputs = [values(*IMAGE), np.array([1, 2], np.int32)]
    operation, results = operation_of(op, inputs, {"T": tf.float64}, constants=[1])
    parts = check_parts(
        RULES[op], operation, inputs, results, Degrees(sample=2, filter=3), tolerance=1e-14
    )
    assert parts.are_sums == (False,)
    assert parts.parts[1].gives == (((0, 3), (3, 6)),)


def test_reduces_the_batch_of_a_matrix() -> None:
    inputs = [values(7, 5), np.array(0, np.int32)]
    operation, results = operation_of("Sum", inputs, {"T": tf.float64}, constants=[1])
    check_parts(
        RULES["Sum"], operation, inputs, results, Degrees(sample=3, channel=2), tolerance=1e-14
    )


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_an_extremum_is_divided_along_other_axes_alone(op: str) -> None:
    inputs = [values(*IMAGE), np.array([1, 2], np.int32)]
    operation, results = operation_of(op, inputs, {"T": tf.float64}, constants=[1])
    check_parts(RULES[op], operation, inputs, results, Degrees(sample=2, filter=2))
    assert RULES[op](operation, Degrees(height=2)) is None


def test_keeps_a_reduction_whole_whose_axes_are_unknown() -> None:
    inputs = [values(*IMAGE), np.array([1, 2], np.int32)]
    operation, _ = operation_of("Sum", inputs, {"T": tf.float64})
    assert RULES["Sum"](operation, DEGREES[0]) is None


@pytest.mark.parametrize("shape", [(5, 1, 1, 9), (1, 1, 1, 1), (9,), (), IMAGE])
def test_divides_a_broadcast(shape: tuple[int, ...]) -> None:
    inputs = [values(*shape), np.array(IMAGE, np.int64)]
    operation, results = operation_of("BroadcastTo", inputs, {"T": tf.float64, "Tidx": tf.int64})
    for degrees in DEGREES:
        check_parts(RULES["BroadcastTo"], operation, inputs, results, degrees)


def test_divides_a_repetition_of_single_values() -> None:
    inputs = [values(5, 1, 1, 9), np.array([1, 7, 6, 1], np.int64)]
    attributes = {"T": tf.float64, "Tmultiples": tf.int64}
    operation, results = operation_of("Tile", inputs, attributes, constants=[1])
    for degrees in DEGREES:
        check_parts(RULES["Tile"], operation, inputs, results, degrees)


def test_keeps_a_repetition_of_several_values_whole() -> None:
    inputs = [values(5, 2, 1, 9), np.array([1, 7, 6, 1], np.int32)]
    operation, _ = operation_of("Tile", inputs, {"T": tf.float64}, constants=[1])
    assert RULES["Tile"](operation, DEGREES[0]) is None


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("shape", [(7, 11), (7, 2, 3, 11)])
def test_divides_a_softmax_along_the_batch(op: str, shape: tuple[int, ...]) -> None:
    inputs = [values(*shape)]
    operation, results = operation_of(op, inputs, {"T": tf.float64})
    parts = check_parts(
        RULES[op], operation, inputs, results, Degrees(sample=3, filter=2), tolerance=1e-14
    )
    assert [part.place for part in parts.parts] == [0, 2, 4]


def test_divides_a_loss_along_the_batch() -> None:
    logits, labels = values(7, 11), np.arange(7, dtype=np.int32)
    attributes = {"T": tf.float64, "Tlabels": tf.int32}
    op = "SparseSoftmaxCrossEntropyWithLogits"
    operation, results = operation_of(op, [logits, labels], attributes)
    check_parts(RULES[op], operation, [logits, labels], results, DEGREES[3], tolerance=1e-14)
    op, inputs = "SoftmaxCrossEntropyWithLogits", [logits, np.eye(11)[labels]]
    operation, results = operation_of(op, inputs, {"T": tf.float64})
    check_parts(RULES[op], operation, inputs, results, DEGREES[3], tolerance=1e-14)


def test_keeps_a_loss_whole_whose_labels_are_broadcast() -> None:
    op, inputs = "SoftmaxCrossEntropyWithLogits", [values(7, 11), np.eye(11)[:1]]
    operation, _ = operation_of(op, inputs, {"T": tf.float64})
    assert RULES[op](operation, DEGREES[0]) is None
