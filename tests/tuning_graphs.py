"""Small graphs for tests of tuning, whose nodes have devices."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

v1 = tf.compat.v1


def branches(sides: tuple[int, ...] = (1, 3)) -> graph_pb2.GraphDef:
    """Convolutions of one image with a Relu each, and their concatenation."""
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        image = v1.placeholder(tf.float32, (1, 8, 8, 4), "image")
        filters = [tf.fill((side, side, 4, 16), 0.1) for side in sides]
        outputs = [
            tf.nn.relu(tf.nn.conv2d(image, each, 1, "SAME", name=f"conv_{side}"), f"relu_{side}")
            for side, each in zip(sides, filters, strict=True)
        ]
        tf.concat(outputs, 3, name="joined")
    return graph.as_graph_def(add_shapes=True)


def training_step() -> graph_pb2.GraphDef:
    """A step of gradient descent of one filter; `update` waits for its gradient."""
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        image = v1.placeholder(tf.float32, (2, 8, 8, 4), "image")
        variable = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=(3, 3, 4, 16), name="filter")
        read = tf.raw_ops.ReadVariableOp(resource=variable, dtype=tf.float32, name="read")
        with tf.control_dependencies([image, variable]):
            conv = tf.nn.conv2d(image, read, 1, "SAME", name="conv")
        gradient = tf.raw_ops.Conv2DBackpropFilter(
            input=image,
            filter_sizes=(3, 3, 4, 16),
            out_backprop=tf.nn.relu(conv, "relu"),
            strides=(1, 1, 1, 1),
            padding="SAME",
            name="gradient",
        )
        tf.raw_ops.AssignSubVariableOp(resource=variable, value=gradient, name="update")
    return graph.as_graph_def(add_shapes=True)
