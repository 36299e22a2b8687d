"""Convolutions and matrix products of one layer."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
from parallel.traced_layers import convolution, gradients, image, parameter, trace

from tf_interop.convolution import ConvolutionKind
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.parallel.layers.heads import find_heads

FORWARD, INPUT, FILTER = ConvolutionKind


def heads_of(build: Callable[[], object]) -> dict[str, tuple[str, ConvolutionKind]]:
    """The first node and the role of each head, by name."""
    view = GraphView(trace(build))
    return {
        view.names[node]: (view.names[head.first], head.role)
        for node, head in find_heads(view, GraphProperties(view)).items()
    }


def test_gradients_tell_branches_of_one_image_apart() -> None:
    def network() -> None:
        x = convolution(image(8, 6, 6, 3), 4, "stem")
        gradients(convolution(x, 4, "a") * convolution(x, 4, "b"))

    heads = heads_of(network)
    for name in ("a", "b"):
        assert heads[name] == (name, FORWARD)
        assert heads[f"gradients/{name}_grad/Conv2DBackpropInput"] == (name, INPUT)
        assert heads[f"gradients/{name}_grad/Conv2DBackpropFilter"] == (name, FILTER)


def test_two_uses_of_one_filter_are_two_layers() -> None:
    def network() -> None:
        weights = parameter(3, 3, 4, 4, name="w")
        stems = [convolution(image(8, 6, 6, 3), 4, name) for name in ("s1", "s2")]
        sides = [
            tf.nn.conv2d(x, weights, 1, "SAME", name=name)
            for x, name in zip(stems, ("a", "b"), strict=True)
        ]
        gradients(tf.nn.relu(sides[0]) * tf.nn.relu(sides[1]))

    heads = heads_of(network)
    for name in ("a", "b"):
        assert heads[f"gradients/{name}_grad/Conv2DBackpropInput"] == (name, INPUT)
        assert heads[f"gradients/{name}_grad/Conv2DBackpropFilter"] == (name, FILTER)


def test_shared_tensors_identify_gradients_of_products() -> None:
    def network() -> None:
        x = tf.nn.relu(tf.matmul(image(8, 5), parameter(5, 6, name="w1"), name="a"))
        y = tf.matmul(x, parameter(7, 6, name="w2"), transpose_b=True, name="b")
        gradients(y * tf.matmul(x, parameter(6, 7, name="w3"), name="c"))

    heads = heads_of(network)
    assert {name: first for name, (first, _) in heads.items()} == {
        name.format(layer): layer
        for layer in "abc"
        for name in ("{}", "gradients/{}_grad/MatMul", "gradients/{}_grad/MatMul_1")
    }
    roles = {name: role for name, (_, role) in heads.items()}
    assert all((role is FORWARD) == (name in "abc") for name, role in roles.items())
    assert all((role is FILTER) == name.endswith("_1") for name, role in roles.items())


def test_a_frozen_filter_has_only_a_gradient_of_its_input() -> None:
    def network() -> None:
        x = tf.matmul(image(8, 5), parameter(5, 6, name="w"), name="a")
        tf.gradients(tf.nn.relu(tf.matmul(x, tf.ones((6, 7)), name="b")), x)

    heads = heads_of(network)
    assert heads["gradients/b_grad/MatMul"] == ("b", INPUT)


def test_the_variable_identifies_a_filter_through_casts() -> None:
    def network() -> None:
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

    assert heads_of(network)["dx"] == ("a", INPUT)


def test_a_gradient_without_a_forward_operation_begins_a_layer() -> None:
    def network() -> None:
        tf.raw_ops.Conv2DBackpropFilter(
            input=image(8, 6, 6, 3),
            filter_sizes=[3, 3, 3, 4],
            out_backprop=image(8, 6, 6, 4, name="dy"),
            strides=[1, 1, 1, 1],
            padding="SAME",
            name="dw",
        )

    assert heads_of(network) == {"dw": ("dw", FILTER)}


def test_a_product_of_two_activations_is_no_layer() -> None:
    def network() -> None:
        x = tf.matmul(image(8, 5), parameter(5, 6, name="w"), name="a")
        tf.matmul(x, tf.nn.relu(x), transpose_b=True, name="scores")

    assert heads_of(network) == {"a": ("a", FORWARD)}
