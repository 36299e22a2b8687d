from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from parallel.parts_runner import check, operation_of, sizes, stays_whole, values

from tf_interop.parallel.op_parts import are_addends
from tf_interop.parallel.types import Degrees

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
INDEX = {"Tidx": tf.int64}


def image(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    return 1 + values(*(shape or IMAGE), dtype=dtype) / 2


@pytest.mark.parametrize("op", ["Sum", "Mean"])
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("keep_dims", [False, True])
def test_adds_up_what_parts_have_of_a_sum(op: str, axes: tuple[int, ...], keep_dims: bool) -> None:
    inputs = [image(), sizes(*axes)]
    check(op, inputs, INDEX | {"keep_dims": keep_dims}, DEGREES, tolerance=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_adds_up_means_of_short_dtypes(dtype: type) -> None:
    inputs = [image(dtype=dtype), sizes(1, 2)]
    check("Mean", inputs, INDEX, DEGREES, tolerance=ROUNDING[dtype])


@pytest.mark.parametrize("op", ["Sum", "Mean"])
def test_parts_of_an_undivided_axis_are_no_addends(op: str) -> None:
    degrees = Degrees(sample=2, filter=3)
    [parts] = check(op, [image(), sizes(1, 2)], INDEX, [degrees], tolerance=1e-14)
    assert not are_addends(parts)
    assert parts[1].gives == (((0, 3), (3, 6)),)


def test_reduces_the_batch_of_a_matrix() -> None:
    degrees = Degrees(sample=3, channel=2)
    check("Sum", [image(7, 5), np.array(0)], INDEX, [degrees], tolerance=1e-14)


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_an_extremum_is_divided_along_other_axes_alone(op: str) -> None:
    inputs = [image(), sizes(1, 2)]
    check(op, inputs, INDEX, [Degrees(sample=2, filter=2)])
    assert stays_whole(operation_of(op, inputs, INDEX)[0], Degrees(height=2))


@pytest.mark.parametrize("shape", [(5, 1, 1, 9), (1, 1, 1, 1), (9,), (), IMAGE])
def test_divides_a_broadcast(shape: tuple[int, ...]) -> None:
    check("BroadcastTo", [values(*shape), sizes(*IMAGE)], INDEX, DEGREES)


def test_divides_a_repetition_of_single_values_alone() -> None:
    attributes = {"Tmultiples": tf.int64}
    check("Tile", [values(5, 1, 1, 9), sizes(1, 7, 6, 1)], attributes, DEGREES)
    several, _ = operation_of("Tile", [values(5, 2, 1, 9), sizes(1, 7, 6, 1)], attributes)
    assert stays_whole(several, DEGREES[0])


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        *(("Softmax", [image(*shape)]) for shape in ((7, 11), (7, 2, 3, 11))),
        ("LogSoftmax", [image(7, 11)]),
        ("SoftmaxCrossEntropyWithLogits", [image(7, 11), np.eye(11)[:7]]),
        ("SparseSoftmaxCrossEntropyWithLogits", [image(7, 11), sizes(*range(7))]),
    ],
)
def test_divides_a_softmax_or_a_loss_along_the_batch(op: str, inputs: list[Any]) -> None:
    degrees = Degrees(sample=3, filter=2)
    [parts] = check(
        op, inputs, {"Tlabels": tf.int64 if "Sparse" in op else None}, [degrees], tolerance=1e-14
    )
    assert [part.place for part in parts] == [0, 2, 4]


def test_keeps_a_loss_whole_whose_labels_are_broadcast() -> None:
    inputs = [image(7, 11), np.eye(11)[:1]]
    loss, _ = operation_of("SoftmaxCrossEntropyWithLogits", inputs)
    assert stays_whole(loss, DEGREES[0])
