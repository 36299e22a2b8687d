"""Graphs from a few lines of TensorFlow, and their layers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tf_interop.graph.view import GraphView
from tf_interop.parallel.layers.find import LayerGraph, find_layers

v1 = tf.compat.v1


def trace(build: Callable[[], Any]) -> graph_pb2.GraphDef:
    """The graph that a function builds."""
    with tf.Graph().as_default() as graph:
        build()
    return graph.as_graph_def(add_shapes=True)


def image(*shape: int, name: str = "image") -> tf.Tensor:
    """A placeholder."""
    return v1.placeholder(tf.float32, shape, name)


def parameter(*shape: int, name: str) -> tf.Tensor:
    """The value of a variable."""
    variable = v1.get_variable(name, shape, use_resource=True)
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32, name=f"{name}/r")


def convolution(
    x: tf.Tensor, filters: int, name: str, *, size: int = 3, strides: int = 1
) -> tf.Tensor:
    """A convolution with bias and ReLU: the nodes `name`, `name/bias` and `name/relu`."""
    weights = parameter(size, size, x.shape[-1], filters, name=f"{name}/w")
    y = tf.nn.conv2d(x, weights, strides, "SAME", name=name)
    y = tf.nn.bias_add(y, parameter(filters, name=f"{name}/b"), name=f"{name}/bias")
    return tf.nn.relu(y, name=f"{name}/relu")


def gradients(y: tf.Tensor) -> list[tf.Tensor]:
    """The gradients of all parameters."""
    graph = tf.compat.v1.get_default_graph()
    reads = [each for each in graph.get_operations() if each.type == "ReadVariableOp"]
    parameters = [each.outputs[0] for each in reads if "Initializer" not in each.name]
    return [each for each in tf.gradients(y, parameters) if each is not None]


def two_products() -> None:
    """A layer of h = x v and r = relu(h), and a layer of y = r w, which `result` reads."""
    h = tf.matmul(image(4, 6, name="x"), parameter(6, 8, name="v"), name="h")
    r = tf.nn.relu(h, name="r")
    tf.negative(tf.matmul(r, parameter(8, 2, name="w"), name="y"), name="result")


def layers_of(
    graph: graph_pb2.GraphDef | Callable[[], Any], nodes_to_preserve: Collection[str] = ()
) -> LayerGraph:
    """The layers of a graph, or of one that a function builds."""
    graph_def = graph if isinstance(graph, graph_pb2.GraphDef) else trace(graph)
    view = GraphView(graph_def)
    return find_layers(view, nodes_to_preserve=nodes_to_preserve)


def layer_names(layers: LayerGraph) -> list[str]:
    """The names of all layers, in order."""
    return [layer.name for layer in layers.layers]


def layer_at(layers: LayerGraph, node: str) -> str | None:
    """The name of a node's layer."""
    place = layers.layer_of.get(layers.view.index_of[node])
    return None if place is None else layers.layers[place].name
