"""Shares of parameters: disjoint, and together all of it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
from parallel.traced_layers import gradients, image, layers_of, parameter

from tf_interop.convolution import ConvolutionKind
from tf_interop.parallel.layers.find import LayerGraph
from tf_interop.parallel.op_parts import OpPart
from tf_interop.parallel.rules.shares import share_boxes
from tf_interop.parallel.types import Degrees


@pytest.fixture(name="layers", scope="module")
def fixture_layers() -> LayerGraph:
    def build() -> None:
        x = tf.nn.relu(image(4, 6, 6, 8))
        x = tf.nn.conv2d(x, parameter(3, 3, 8, 6, name="w"), 1, "SAME", name="a")
        x = tf.reshape(x, [4, 216])
        gradients(tf.matmul(x, parameter(216, 5, name="v"), name="b"))

    return layers_of(build)


@pytest.mark.parametrize(
    ("degrees", "box_count"),
    [
        (Degrees(), 1),
        (Degrees(sample=4), 4),
        (Degrees(filter=4), 4),
        (Degrees(sample=2, filter=2), 4),
        (Degrees(sample=2, filter=2, channel=2), 8),
    ],
)
def test_each_value_is_on_one_device(layers: LayerGraph, degrees: Degrees, box_count: int) -> None:
    gradients_of_filters = [
        node
        for node, operation in layers.operations.items()
        if operation.role is ConvolutionKind.BACKWARD_FILTER
    ]
    assert len(gradients_of_filters) == 2
    for node in gradients_of_filters:
        parts = layers.parts(node, degrees)
        assert parts is not None
        shares = share_boxes(parts)
        assert len(shares) == box_count
        holders = np.zeros(layers.operations[node].output_shapes[0], np.int64)
        for box in shares.values():
            holders[tuple(itertools.starmap(slice, box))] += 1
        assert (holders == 1).all()
        # A share is of what the device computes, so that it keeps what it needs.
        for part in parts:
            its = zip(shares[part.place], part.gives[0], strict=True)
            assert all(a >= c and b <= d for (a, b), (c, d) in its)


def test_a_box_with_fewer_values_than_places_leaves_some_without() -> None:
    parts = [OpPart((), (((0, 1), (3, 5)),), lambda *_: [], place=place) for place in (0, 2, 5)]
    assert share_boxes(parts) == {0: ((0, 1), (3, 4)), 2: ((0, 1), (4, 5))}
