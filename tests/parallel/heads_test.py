"""Convolutions and matrix products of one layer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf
from parallel.traced_layers import gradients, image, parameter, trace

from tf_interop.convolution import ConvolutionKind
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.parallel.layers.heads import find_heads

FORWARD, INPUT, FILTER = ConvolutionKind
OF_CONVOLUTION = ("Conv2DBackpropInput", "Conv2DBackpropFilter")
OF_PRODUCT = ("MatMul", "MatMul_1")
Heads = dict[str, tuple[str, ConvolutionKind]]
"""The first node and the role of each head, by name."""


def heads_of(build: Callable[[], object]) -> Heads:
    view = GraphView(trace(build))
    return {
        view.names[node]: (view.names[head.first], head.role)
        for node, head in find_heads(view, GraphProperties(view)).items()
    }


def all_roles(layers: str, gradients: tuple[str, str]) -> Heads:
    """The heads of layers with both gradients."""
    return {
        node: (layer, role)
        for layer in layers
        for node, role in zip(
            (layer, *(f"gradients/{layer}_grad/{each}" for each in gradients)),
            ConvolutionKind,
            strict=True,
        )
    }


def two_uses_of_one_filter() -> None:
    weights = parameter(3, 3, 4, 4, name="w")
    first, second = (
        tf.nn.conv2d(tf.nn.relu(image(8, 6, 6, 4)), weights, 1, "SAME", name=name) for name in "ab"
    )
    gradients(tf.nn.relu(first) * tf.nn.relu(second))


def products() -> None:
    x = tf.nn.relu(tf.matmul(image(8, 5), parameter(5, 6, name="w1"), name="a"))
    y = tf.matmul(x, parameter(7, 6, name="w2"), transpose_b=True, name="b")
    gradients(y * tf.matmul(x, parameter(6, 7, name="w3"), name="c"))


def frozen_filter() -> None:
    x = tf.matmul(image(8, 5), parameter(5, 6, name="w"), name="a")
    tf.gradients(tf.nn.relu(tf.matmul(x, tf.ones((6, 7)), name="b")), x)


def filter_through_casts() -> None:
    weights = tf.cast(parameter(3, 3, 3, 4, name="w"), tf.float16)
    handle = tf.compat.v1.get_default_graph().get_tensor_by_name("w:0")
    again = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
    x = tf.cast(image(8, 6, 6, 3), tf.float16)
    y = tf.nn.conv2d(x, weights, 1, "SAME", name="a")
    tf.raw_ops.Conv2DBackpropInput(
        input_sizes=[8, 6, 6, 3],
        filter=tf.cast(again, tf.float16),
        out_backprop=tf.nn.relu(y),
        strides=[1, 1, 1, 1],
        padding="SAME",
        name="dx",
    )


def gradient_without_forward() -> None:
    tf.raw_ops.Conv2DBackpropFilter(
        input=image(8, 6, 6, 3),
        filter_sizes=[3, 3, 3, 4],
        out_backprop=image(8, 6, 6, 4, name="dy"),
        strides=[1, 1, 1, 1],
        padding="SAME",
        name="dw",
    )


def product_of_activations() -> None:
    x = tf.matmul(image(8, 5), parameter(5, 6, name="w"), name="a")
    tf.matmul(x, tf.nn.relu(x), transpose_b=True, name="scores")


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (two_uses_of_one_filter, all_roles("ab", OF_CONVOLUTION)),
        (products, all_roles("abc", OF_PRODUCT)),
        (frozen_filter, {"a": ("a", FORWARD)} | all_roles("b", OF_PRODUCT)),
        (filter_through_casts, {"a": ("a", FORWARD), "dx": ("a", INPUT)}),
        (gradient_without_forward, {"dw": ("dw", FILTER)}),
        (product_of_activations, {"a": ("a", FORWARD)}),
    ],
)
def test_finds_the_first_node_and_the_role(network: Callable[[], None], expected: Heads) -> None:
    assert heads_of(network) == expected
