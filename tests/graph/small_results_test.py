"""What computes little: which nodes that are, and what units do with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from graph_builder import CPU
from tensorflow.core.framework import graph_pb2

from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.rewrite_units import rewrite_units
from tf_interop.graph.small_results import MOST_ELEMENTS, find_small
from tf_interop.graph.units import MOST_ANCHORS, Unit, find_units
from tf_interop.graph.view import GraphView


def deep_image(channels: int) -> tf.Tensor:
    """Images in batches of unknown size, some levels deep, as in a network."""
    image = tf.compat.v1.placeholder(tf.float32, (None, 8, 8, channels), "image")
    for _ in range(3):
        image = tf.debugging.check_numerics(image, "No step of a unit.", "deep")
    return image


def normalized_convolution(channels: int = 4) -> graph_pb2.GraphDef:
    """A convolution, times a scale that is made of a vector and ranks before it.

    Others read both the mean of the channels and the result.
    """
    with tf.Graph().as_default() as graph:
        image = deep_image(3)
        variance = tf.constant(np.full(channels, 0.5, np.float32), name="variance")
        scale = tf.math.rsqrt(tf.add(variance, 0.001, "shifted"), "scale")
        convolved = tf.nn.conv2d(image, np.ones((1, 1, 3, channels), np.float32), 1, "SAME")
        scaled = tf.multiply(tf.identity(convolved, "convolved"), scale, "scaled")
        for read in (tf.reduce_mean(scaled, (0, 1, 2), name="mean"), tf.nn.relu(scaled, "result")):
            tf.debugging.check_numerics(read, "No step of a unit.")
    return on_cpu(graph)


def on_cpu(graph: tf.Graph) -> graph_pb2.GraphDef:
    graph_def = graph.as_graph_def(add_shapes=True)
    for node in graph_def.node:
        node.device = CPU
    return graph_def


def small_names(graph_def: graph_pb2.GraphDef) -> set[str]:
    view = GraphView(graph_def)
    small = find_small(view, range(len(view)), GraphProperties(view))
    return {name for name, is_small in zip(view.names, small, strict=True) if is_small}


def batch_input(view: GraphView, units: Sequence[Unit]) -> str:
    """The input of the only unit that its batch sizes go by."""
    rewritten = rewrite_units(view, units, (), batch_sizes=[(8,)])
    [node] = [node for node in rewritten.node if node.op == "TfInterop>Unit"]
    return node.input[0]


def test_vectors_and_what_comes_of_them_alone_are_small() -> None:
    names = small_names(normalized_convolution())
    assert {"variance", "shifted", "scale", "mean"} <= names
    assert names.isdisjoint({"image", "convolved", "scaled", "result"})
    assert "scale" in small_names(normalized_convolution(MOST_ELEMENTS))
    assert "scale" not in small_names(normalized_convolution(MOST_ELEMENTS + 1))


def test_a_unit_takes_along_the_scale_that_it_alone_reads_and_a_mean_beside_it() -> None:
    view = GraphView(normalized_convolution())
    [unit], _ = find_units(view)
    names = [view.names[step] for step in unit.steps]
    assert names.index("shifted") < names.index("scale") < names.index("scaled")
    assert {"Conv2D", "mean", "result"} <= set(names)
    assert view.names[unit.head] == "Conv2D"
    assert batch_input(view, [unit]) == "deep_2"


def test_a_scale_of_two_units_is_in_neither() -> None:
    with tf.Graph().as_default() as graph:
        image = deep_image(4)
        scale = tf.math.rsqrt(tf.add(tf.constant([0.5] * 4), 0.001, "shifted"), "scale")
        for name in ("left", "right"):
            tf.multiply(tf.nn.avg_pool2d(image, 2, 1, "SAME"), scale, name)
    view = GraphView(on_cpu(graph))
    units, _ = find_units(view)
    assert [[view.names[step] for step in unit.steps] for unit in units] == [
        ["shifted", "scale"],
        ["AvgPool2D", "left"],
        ["AvgPool2D_1", "right"],
    ]


def test_a_small_product_is_none_of_the_few_convolutions_of_a_unit() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (1, 8, 8, 4), "image")
        for _ in range(MOST_ANCHORS):
            x = tf.nn.conv2d(x, np.ones((1, 1, 4, 4), np.float32), 1, "SAME")
        gate = tf.matmul(tf.reduce_mean(x, (1, 2)), np.eye(4, dtype=np.float32), name="gate")
        tf.multiply(x, tf.reshape(gate, (1, 1, 1, 4)), "result")
    view = GraphView(on_cpu(graph))
    [unit], _ = find_units(view)
    assert {"gate", "result"} <= {view.names[step] for step in unit.steps}


def test_a_head_may_read_a_scale_that_was_taken_in() -> None:
    with tf.Graph().as_default() as graph:
        image = deep_image(4)
        scale = tf.math.rsqrt(tf.constant([0.5] * 4), "scale")
        tf.nn.relu(tf.multiply(scale, image, "head"), "result")
    view = GraphView(on_cpu(graph))
    units, _ = find_units(view)
    assert [view.names[step] for step in units[0].steps] == ["scale", "head", "result"]
    assert batch_input(view, units) == "deep_2"
