"""Tensors in the other layout keep their meaning, even where all sizes are equal."""

from __future__ import annotations

import numpy as np
import pytest
from tensorflow.core.framework import node_def_pb2

from tf_interop.graph.sampled_values import (
    POINTS,
    SAMPLES,
    ImageShapes,
    Sampled,
    Value,
    evaluate,
)

SIZE = 4  # of channels, height and width
SHAPES = ImageShapes((2, SIZE, SIZE, SIZE), channel_axis=1)
DATA = np.random.default_rng(0).uniform(1, 2, (SAMPLES, POINTS))
IMAGE = Sampled(DATA, SHAPES.image)
OTHER_IMAGE = Sampled(DATA, SHAPES.image, in_other_layout=True)
FLAT = Sampled(DATA[:1], (SIZE,))
VECTOR = Sampled(DATA[:1], (1, SIZE, 1, 1))
OTHER_VECTOR = Sampled(DATA[:1], (1, 1, 1, SIZE), in_other_layout=True)
SCALAR = Sampled(DATA[:1, :1], (1, 1, 1, 1))


def result_of(op: str, *operands: Value) -> Value | None:
    return evaluate(node_def_pb2.NodeDef(op=op), operands, SHAPES)


@pytest.mark.parametrize(
    ("first", "second", "is_understood"),
    [
        (IMAGE, VECTOR, True),
        (IMAGE, SCALAR, True),
        (IMAGE, FLAT, False),
        (IMAGE, OTHER_VECTOR, False),
        (IMAGE, OTHER_IMAGE, False),
        (OTHER_IMAGE, OTHER_VECTOR, True),
        (OTHER_IMAGE, FLAT, True),
        (OTHER_IMAGE, SCALAR, True),
        (OTHER_IMAGE, VECTOR, False),
    ],
)
def test_operands_of_two_layouts_do_not_meet(
    first: Sampled, second: Sampled, is_understood: bool
) -> None:
    for operands in ((first, second), (second, first)):
        result = result_of("Mul", *operands)
        assert (result is not None) == is_understood
        if isinstance(result, Sampled):
            assert (result.shape, result.in_other_layout) == first[1:]
            np.testing.assert_array_equal(result.data, first.data * second.data)


@pytest.mark.parametrize(
    ("before", "order", "after"),
    [
        (IMAGE, [0, 2, 3, 1], OTHER_IMAGE),
        (OTHER_IMAGE, [0, 3, 1, 2], IMAGE),
        (VECTOR, [0, 2, 3, 1], OTHER_VECTOR),
        (OTHER_VECTOR, [0, 3, 1, 2], VECTOR),
        (IMAGE, [0, 3, 1, 2], None),
        (OTHER_IMAGE, [0, 2, 3, 1], None),
        (IMAGE, [0, 1, 3, 2], None),
    ],
)
def test_transposes(before: Sampled, order: list[int], after: Sampled | None) -> None:
    result = result_of("Transpose", before, np.array(order, np.int64))
    assert (result is None) == (after is None)
    if isinstance(result, Sampled) and after is not None:
        assert result[1:] == after[1:]


def test_only_vectors_get_another_shape() -> None:
    assert result_of("Reshape", FLAT, np.array([1, 1, 1, SIZE])) == OTHER_VECTOR._replace(
        data=FLAT.data
    )
    image = result_of("Reshape", OTHER_IMAGE, np.array(SHAPES.image))
    assert isinstance(image, Sampled) and image.in_other_layout
    wide = ImageShapes((2, 3, 4, 5), channel_axis=1)
    flat = Sampled(DATA, wide.image)
    node = node_def_pb2.NodeDef(op="Reshape")
    assert evaluate(node, [flat, np.array([2, 4, 5, 3])], wide) is None


def test_reduces_only_images_of_the_own_layout() -> None:
    axes = np.array([0, 2, 3], np.int64)
    assert result_of("Mean", IMAGE, axes) is not None
    assert result_of("Mean", OTHER_IMAGE, axes) is None
