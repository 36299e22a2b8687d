"""The layers of small graphs, and of training steps of networks."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable

import pytest
import tensorflow as tf
from parallel.traced_layers import (
    convolution,
    gradients,
    image,
    layer_at,
    layer_names,
    layers_of,
    parameter,
    trace,
    v1,
)
from tensorflow.core.framework import graph_pb2

from python.models.googlenet import googlenet
from python.models.small import lenet, paddings, resnet
from tf_interop.convolution import ConvolutionKind
from tf_interop.model.graphs import optimize_graph
from tf_interop.model.graphs import trace as trace_model
from tf_interop.parallel.layers.find import Layer, legal_degrees
from tf_interop.parallel.layers.heads import HEAD_OPS
from tf_interop.parallel.layers.prepare import prepare
from tf_interop.parallel.lookup import batch_size_of_layers
from tf_interop.parallel.types import Axis, Degrees


def small_network(batch: int = 8) -> tf.Tensor:
    x = convolution(image(batch, 8, 8, 3), 4, "a")
    x = tf.nn.max_pool2d(x, 2, 2, "SAME", name="pool")
    x = convolution(x, 6, "b")
    x = tf.reshape(x, [batch, 96], name="flat")
    x = tf.matmul(x, parameter(96, 10, name="c/w"), name="c")
    x = tf.nn.bias_add(x, parameter(10, name="c/b"), name="c/bias")
    labels = v1.placeholder(tf.int32, (batch,), "labels")
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x)


def test_gradients_are_in_the_layers_of_their_forward_ops() -> None:
    graph_def = trace(lambda: gradients(small_network()))
    # Names and the order of nodes do not matter.
    numbers = {node.name: f"n{number}" for number, node in enumerate(graph_def.node)}
    for node in graph_def.node:
        for place, text in enumerate(node.input):
            name, colon, port = text.removeprefix("^").partition(":")
            node.input[place] = "^" * text.startswith("^") + numbers[name] + colon + port
        node.name = numbers[node.name]
    nodes = list(graph_def.node)
    random.Random(0).shuffle(nodes)
    layers = layers_of(graph_pb2.GraphDef(node=nodes, versions=graph_def.versions))
    assert layer_names(layers) == [numbers[name] for name in ("a", "pool", "b", "c")]
    for gradient, layer in {
        "c_grad/MatMul": "c",
        "c_grad/MatMul_1": "c",
        "c/bias_grad/BiasAddGrad": "c",
        "b/relu_grad/ReluGrad": "b",
        "b_grad/Conv2DBackpropInput": "b",
        "b_grad/Conv2DBackpropFilter": "b",
        "pool_grad/MaxPoolGrad": "pool",
        "a_grad/Conv2DBackpropFilter": "a",
        "a/bias_grad/BiasAddGrad": "a",
    }.items():
        assert layer_at(layers, numbers[f"gradients/{gradient}"]) == numbers[layer], gradient


def reader_of_a_gradient() -> None:
    y = tf.matmul(image(8, 6), parameter(6, 4, name="w"), name="y")
    gradient, *_ = gradients(y)
    tf.multiply(gradient, tf.nn.l2_loss(y), name="scaled")


def branches(join: str) -> None:
    x = image(8, 6, 6, 3)
    sides = [convolution(x, 4, "a"), convolution(x, 4, "b")]
    joined = tf.add(*sides, name="j") if join == "add" else tf.concat(sides, 3, name="j")
    tf.nn.relu(joined, name="after")


def shortcut() -> None:
    x = convolution(image(8, 6, 6, 4), 4, "a")
    gradients(convolution(tf.add(x, convolution(x, 4, "b"), name="j"), 4, "c"))


def squeeze_and_excite() -> None:
    x = convolution(image(8, 6, 6, 3), 4, "a")
    scale = tf.reduce_mean(x, [1, 2], keepdims=True, name="mean")
    tf.multiply(x, convolution(scale, 4, "b", size=1), name="scaled")


def means() -> None:
    x = convolution(image(8, 6, 6, 3), 4, "a")
    centered = tf.subtract(x, tf.reduce_mean(x, [0, 1, 2], keepdims=True, name="mean"))
    x = tf.nn.avg_pool2d(centered, 2, 2, "VALID", name="pool")
    tf.reduce_mean(x, [1, 2], name="global")


def averages() -> None:
    x = convolution(image(8, 8, 8, 3), 4, "a")
    x = tf.nn.avg_pool2d(x, 3, 1, "SAME", name="p")
    gradients(convolution(tf.nn.avg_pool2d(x, 3, 1, "SAME", name="q"), 4, "b"))


def scope_of_several_layers() -> None:
    x = convolution(image(8, 8, 8, 3), 4, "a")
    x = tf.nn.avg_pool2d(x, 3, 1, "SAME", name="s/p")
    x = tf.nn.avg_pool2d(tf.sin(x, name="s/sin"), 3, 1, "SAME", name="s/q")
    gradients(convolution(x, 4, "s/b"))


def transposed_convolution() -> None:
    x = convolution(image(8, 4, 4, 3), 4, "a")
    x = tf.nn.conv2d_transpose(x, parameter(3, 3, 5, 4, name="w"), [8, 8, 8, 5], 2, name="up")
    gradients(convolution(tf.nn.relu(x, name="after"), 2, "b"))


@pytest.mark.parametrize(
    ("network", "names", "layer_of"),
    [
        (reader_of_a_gradient, ["y"], {"gradients/y_grad/MatMul": "y", "scaled": None}),
        (lambda: branches("add"), ["a", "b", "j"], {"after": "j"}),
        (lambda: branches("concat"), ["a", "b", "j"], {"after": "j"}),
        (shortcut, ["a", "b", "j", "c"], {"gradients/AddN": "b"}),
        # Scaling by a broadcast vector is no join.
        (squeeze_and_excite, ["a", "mean", "b"], {"scaled": "a"}),
        (means, ["a", "pool", "global"], {"mean": "a", "Sub": "a"}),
        # These gradients read none of their layers' tensors.
        (
            averages,
            ["a", "p", "q", "b"],
            {f"gradients/{each}_grad/AvgPoolGrad": each for each in "pq"},
        ),
        # No rule divides Sin, and the scope of its gradient has several layers.
        (scope_of_several_layers, ["a", "s/p", "s/q", "s/b"], {"gradients/s/sin_grad/mul": "s/p"}),
        (
            transposed_convolution,
            ["a", "up", "b"],
            dict.fromkeys(
                ["after", *(f"gradients/up_grad/Conv2D{kind}" for kind in ("", "BackpropFilter"))],
                "up",
            ),
        ),
    ],
)
def test_puts_nodes_into_layers(
    network: Callable[[], None], names: list[str], layer_of: dict[str, str | None]
) -> None:
    layers = layers_of(network)
    assert layer_names(layers) == names
    assert {node: layer_at(layers, node) for node in layer_of} == layer_of


def test_extents_are_those_of_divisible_axes() -> None:
    def network() -> None:
        x = convolution(image(8, 9, 10, 3), 6, "a", strides=2)
        depthwise = parameter(3, 3, 6, 1, name="d/w")
        x = tf.nn.depthwise_conv2d(x, depthwise, [1, 1, 1, 1], "SAME")
        x = tf.nn.avg_pool2d(x, 5, 5, "VALID", name="pool")
        x = tf.reshape(x, [8, 6])
        tf.matmul(x, parameter(6, 7, name="c/w"), name="c")

    assert [tuple(layer.extents.values()) for layer in layers_of(network).layers] == [
        (8, 5, 5, 6, 3),
        (8, 5, 5, 6, 1),
        (8, 1, 1, 6, 1),
        (8, 1, 1, 7, 6),
    ]
    [_, up, _] = layers_of(transposed_convolution).layers
    assert tuple(up.extents.values()) == (8, 8, 8, 4, 5)


def test_a_join_of_another_rank_cannot_be_divided() -> None:
    def network() -> None:
        x = tf.reshape(convolution(image(1, 4, 4, 3), 8, "a"), [1, 16, 8])
        y = tf.matmul(image(16, 6, name="places"), parameter(6, 8, name="b/w"), name="b")
        tf.add(x, y, name="j")

    [*_, join] = layers_of(network).layers
    assert (join.name, set(join.extents.values())) == ("j", {1})


def test_the_batch_size_is_that_of_convolutions() -> None:
    def network() -> None:
        x = tf.reshape(convolution(image(8, 4, 4, 3), 6, "a"), [8 * 16, 6])
        for name in "bc":
            x = tf.matmul(x, parameter(6, 6, name=f"{name}/w"), name=name)

    assert batch_size_of_layers(layers_of(network)) == 8


def test_finds_the_layout_of_layers() -> None:
    def network() -> None:
        x = convolution(image(8, 6, 5, 3), 4, "a")
        x = tf.transpose(x, [0, 3, 1, 2], name="turned")
        weights = parameter(3, 3, 4, 7, name="w")
        x = tf.nn.conv2d(x, weights, 1, "SAME", "NCHW", name="b")
        tf.reduce_mean(tf.nn.relu(x), [2, 3], name="mean")

    layers = layers_of(network)
    assert [layer.layout for layer in layers.layers] == ["NHWC", "NCHW", "NCHW"]
    assert tuple(layers.layers[1].extents.values()) == (8, 6, 5, 7, 4)
    assert tuple(layers.layers[2].extents.values()) == (8, 6, 5, 7, 1)


def test_says_why_a_costly_node_is_whole() -> None:
    def network() -> None:
        x = convolution(image(8, 16, 16, 3), 4, "a")
        tf.cumsum(x, name="sums")
        tf.nn.relu(x, name="kept")
        with tf.device("/device:CPU:1"):
            tf.nn.relu(x, name="elsewhere")
        convolution(v1.placeholder(tf.float32, (None, 8, 8, 3)), 4, "unknown")

    layers = layers_of(network, nodes_to_preserve=["kept"])
    assert layer_names(layers) == ["a"]
    assert layers.why_whole == {
        "sums": "nothing divides Cumsum",
        "kept": "its name must stay",
        "elsewhere": "it is not on its layer's device",
        "unknown": "its shapes are unknown",
    }


def test_keeps_loops_and_branches_whole() -> None:
    def network() -> None:
        switched, _ = tf.raw_ops.Switch(
            data=image(8, 16, 16, 3), pred=v1.placeholder(tf.bool, ()), name="switch"
        )
        convolution(switched, 4, "a")

    layers = layers_of(network)
    assert not layers.layers
    assert layers.why_whole["a"] == "it is in a loop or a branch"


def test_legal_degrees_fit_all_axes() -> None:
    sizes = (8, 3, 1, 2, 4)
    layer = Layer("a", "Conv2D", (0,), "NHWC", dict(zip(Axis, sizes, strict=True)))
    assert legal_degrees(layer, 1) == (Degrees(),)
    assert legal_degrees(layer, 3) == (Degrees(channel=3), Degrees(height=3), Degrees(sample=3))
    found = legal_degrees(layer, 4)
    assert list(found) == sorted(found) and len(set(found)) == len(found)
    assert set(found) == {
        *(Degrees(sample=2, **{each: 2}) for each in ("height", "filter", "channel")),
        *(Degrees(height=2, **{each: 2}) for each in ("filter", "channel")),
        *(Degrees(sample=4), Degrees(filter=2, channel=2), Degrees(channel=4)),
    }
    assert legal_degrees(layer, 5) == (Degrees(sample=5),)


@pytest.mark.parametrize(
    ("build", "heads", "pools", "joins"),
    [
        (lenet, 5, 2, 0),
        (resnet, 10, 1, 3),
        (paddings, 6, 3, 0),
        (lambda: googlenet((32, 32), 10), 58, 14, 9),
    ],
    ids=["LeNet-5", "ResNet-8", "every padding", "GoogLeNet"],
)
def test_finds_the_layers_of_networks(
    build: Callable[[], tf.keras.Model], heads: int, pools: int, joins: int
) -> None:
    traced = trace_model(build(), batch_size=4, training=True)
    layers = prepare(optimize_graph(traced, None))
    view = layers.view
    first_ops = collections.Counter(layer.op for layer in layers.layers)
    assert sum(first_ops[op] for op in HEAD_OPS) == heads
    assert sum(first_ops[op] for op in ("MaxPool", "AvgPool", "Mean")) == pools
    assert sum(first_ops[op] for op in ("AddV2", "AddN", "ConcatV2")) == joins
    assert len(layers.layers) == heads + pools + joins

    # Every convolution and product is in a layer, and only the first has no gradient of its input.
    roles = collections.Counter(
        (layers.layer_of[node], layers.operations[node].role)
        for node, op in enumerate(view.ops)
        if op in HEAD_OPS
    )
    assert set(roles.values()) == {1}
    by_role = collections.Counter(role for _, role in roles)
    assert by_role == dict(zip(ConvolutionKind, (heads, heads - 1, heads), strict=True))

    # The names of gradients agree.
    for node, op in enumerate(view.ops):
        if op in {"ReluGrad", "MaxPoolGrad", "AvgPoolGrad", "BiasAddGrad"}:
            forward = view.names[node].partition("gradient_tape/")[2].rsplit("/", 1)[0]
            scope = forward.rsplit("/", 1)[0]
            nodes = layers.layers[layers.layer_of[node]].nodes
            assert any(view.names[each].startswith(scope) for each in nodes), forward
    # Keras dilates by moving pixels into the batch.
    assert set(layers.why_whole.values()) <= {
        f"nothing divides {op}" for op in ("SpaceToBatchND", "BatchToSpaceND")
    }
