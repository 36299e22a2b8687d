"""What computes little: which nodes that are, and what units do with them."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from graph_builder import CPU
from tensorflow.core.framework import graph_pb2

from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.rewrite_units import rewrite_units
from tf_interop.graph.small_results import MOST_ELEMENTS, find_small
from tf_interop.graph.units import find_units
from tf_interop.graph.view import GraphView


def normalized_convolution(channels: int = 4) -> graph_pb2.GraphDef:
    """A convolution of images in batches of unknown size, times a scale that is made of a vector.

    It is some levels deep, as in a network, and the scale ranks before it.
    """
    with tf.Graph().as_default() as graph:
        image = tf.compat.v1.placeholder(tf.float32, (None, 8, 8, 3), "image")
        for _ in range(3):
            image = tf.debugging.check_numerics(image, "No step of a unit.", "deep")
        variance = tf.constant(np.full(channels, 0.5, np.float32), name="variance")
        scale = tf.math.rsqrt(tf.add(variance, 0.001, "shifted"), "scale")
        convolved = tf.nn.conv2d(image, np.ones((1, 1, 3, channels), np.float32), 1, "SAME")
        scaled = tf.multiply(tf.identity(convolved, "convolved"), scale, "scaled")
        tf.reduce_mean(scaled, (0, 1, 2), name="mean")
        tf.nn.relu(scaled, "result")
    graph_def = graph.as_graph_def(add_shapes=True)
    for node in graph_def.node:
        node.device = CPU
    return graph_def


def small_names(graph_def: graph_pb2.GraphDef) -> set[str]:
    view = GraphView(graph_def)
    small = find_small(view, range(len(view)), GraphProperties(view))
    return {name for name, is_small in zip(view.names, small, strict=True) if is_small}


def test_vectors_and_what_comes_of_them_alone_are_small() -> None:
    names = small_names(normalized_convolution())
    assert {"variance", "shifted", "scale", "mean"} <= names
    assert names.isdisjoint({"image", "convolved", "scaled", "result"})


def test_long_vectors_are_not_small() -> None:
    assert "scale" in small_names(normalized_convolution(MOST_ELEMENTS))
    assert "scale" not in small_names(normalized_convolution(MOST_ELEMENTS + 1))


def test_a_unit_takes_along_the_scale_that_it_alone_reads_and_a_mean_beside_it() -> None:
    view = GraphView(normalized_convolution())
    [unit], _ = find_units(view)
    names = [view.names[step] for step in unit.steps]
    assert names.index("shifted") < names.index("scale") < names.index("scaled")
    assert {"Conv2D", "mean", "result"} <= set(names)
    assert view.names[unit.head] == "Conv2D"


def test_a_unit_goes_by_the_batch_of_its_images_whatever_its_first_step_is() -> None:
    view = GraphView(normalized_convolution())
    units, _ = find_units(view)
    rewritten = rewrite_units(view, units, (), batch_sizes=[(8,)])
    [node] = [node for node in rewritten.node if node.op == "TfInterop>Unit"]
    assert node.input[0] == "deep_2"


def test_a_head_may_read_a_scale_that_was_taken_in() -> None:
    with tf.Graph().as_default() as graph:
        image = tf.compat.v1.placeholder(tf.float32, (None, 8, 8, 4), "image")
        for _ in range(3):
            image = tf.debugging.check_numerics(image, "No step of a unit.", "deep")
        scale = tf.math.rsqrt(tf.constant([0.5] * 4), "scale")
        tf.nn.relu(tf.multiply(scale, image, "head"), "result")
    graph_def = graph.as_graph_def(add_shapes=True)
    for node in graph_def.node:
        node.device = CPU
    view = GraphView(graph_def)
    units, _ = find_units(view)
    assert [view.names[step] for step in units[0].steps] == ["scale", "head", "result"]
    rewritten = rewrite_units(view, units, (), batch_sizes=[(8,)])
    [node] = [node for node in rewritten.node if node.op == "TfInterop>Unit"]
    assert node.input[0] == "deep_2"
