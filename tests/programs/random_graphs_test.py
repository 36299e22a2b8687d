"""Random graphs in stock TensorFlow, run with and without the plugin.

All values are small whole numbers, clipped after every convolution, so sums and comparisons are
exact. The pass itself checks that a rewritten graph is legal.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from unnoticed import assert_unnoticed

from tf_interop.graph.program import CONV_STAGE_OP, decode_node
from tf_interop.runtime.graph_pass import change_graph
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.settings import GraphItem, Policy, Settings

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")

CHANNELS = 4
SIZE = 6


class RandomGraph:
    """Makes a function of convolutions and other ops with random dependencies."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.count = self.random.randint(4, 14)

    def digits(self, *shape: int) -> tf.Tensor:
        return tf.constant(self.numbers.integers(-2, 3, shape).astype(np.float32))

    def function(self) -> tf.types.experimental.GenericFunction:
        @tf.function(autograph=False)
        def compute(image: tf.Tensor) -> tuple[tf.Tensor, ...]:
            tensors = [image]
            for _ in range(self.count):
                tensors.append(self.op(tensors))
            return tuple(tensors[-3:])

        return compute

    def op(self, tensors: list[tf.Tensor], depth: int = 0) -> tf.Tensor:
        """Makes one more tensor `[2, SIZE, SIZE, CHANNELS]` from `tensors`."""
        x, y = self.random.choice(tensors), self.random.choice(tensors)
        kinds = ["conv", "conv", "conv", "backward_input", "backward_filter", "depthwise"]
        kinds += ["add", "double"]
        if depth == 0:
            kinds += ["cond", "loop", "ordered"]
        match self.random.choice(kinds):
            case "conv":
                size = self.random.choice([1, 3])
                result = tf.nn.conv2d(x, self.digits(size, size, CHANNELS, CHANNELS), 1, "SAME")
                result = tf.nn.relu(result) if size == 1 else result
            case "backward_input":
                result = tf.raw_ops.Conv2DBackpropInput(
                    input_sizes=[2, SIZE, SIZE, CHANNELS],
                    filter=self.digits(3, 3, CHANNELS, CHANNELS),
                    out_backprop=x,
                    strides=[1, 1, 1, 1],
                    padding="SAME",
                )
            case "backward_filter":
                gradient = tf.raw_ops.Conv2DBackpropFilter(
                    input=x,
                    filter_sizes=[1, 1, CHANNELS, CHANNELS],
                    out_backprop=y,
                    strides=[1, 1, 1, 1],
                    padding="SAME",
                )
                result = tf.nn.conv2d(y, tf.clip_by_value(gradient, -2, 2), 1, "SAME")
            case "depthwise":
                result = tf.nn.depthwise_conv2d(
                    x, self.digits(3, 3, CHANNELS, 1), [1, 1, 1, 1], "SAME"
                )
            case "double":
                filter_ = tf.cast(self.digits(3, 3, CHANNELS, CHANNELS), tf.float64)
                result = tf.nn.conv2d(tf.cast(x, tf.float64), filter_, 1, "SAME")
                result = tf.cast(result, tf.float32)
            case "add":
                result = x + y
            case "cond":
                result = tf.cond(
                    tf.reduce_sum(x) > 0,
                    lambda: self.op([x, y], depth + 1) + self.op([x, y], depth + 1),
                    lambda: self.op([x, y], depth + 1),
                )
            case "loop":
                result = tf.while_loop(
                    lambda i, _: i < 2,
                    # y is the same in all iterations, and reaches the result in the next one.
                    lambda i, v: (i + 1, self.op([v, y], depth + 1) + self.op([v, y], depth + 1)),
                    (0, x),
                )[1]
                result = tf.ensure_shape(result, [2, SIZE, SIZE, CHANNELS])
            case _:
                with tf.control_dependencies([y]):
                    result = tf.nn.conv2d(x, self.digits(1, 1, CHANNELS, CHANNELS), 1, "SAME")
        return tf.clip_by_value(result, -2, 2)


def run_unnoticed(seed: int) -> list[graph_pb2.GraphDef]:
    """Runs a random graph without and with the plugin; returns the graphs handed over."""
    graph = RandomGraph(seed)
    image = graph.digits(2, SIZE, SIZE, CHANNELS).numpy()
    compute = graph.function()  # once: tracing it again would draw another graph
    handed_over: list[graph_pb2.GraphDef] = []
    with get_plugin().observe(lambda graph_def, _: handed_over.append(graph_def)):
        assert_unnoticed(lambda: compute, image)
    return handed_over


def rewritten(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef | None:
    return change_graph(graph_def, GraphItem("CPU"), Settings(Policy.ALWAYS)).graph_def


@pytest.mark.parametrize(
    "seeds", [range(40), pytest.param(range(40, 240), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_stages_compute_the_same_numbers(seeds: range) -> None:
    in_wide_stages = 0
    for seed in seeds:
        for before in run_unnoticed(seed):
            copy = graph_pb2.GraphDef.FromString(before.SerializeToString())
            after = rewritten(before)
            if after is None:
                continue
            # The same again, the graph itself unchanged, and nothing to do in the result.
            assert (before, after) == (copy, rewritten(before))
            assert rewritten(after) is None
            stages = [decode_node(node) for node in after.node if node.op == CONV_STAGE_OP]
            sizes = [len(stage.steps) for stage in stages]
            in_wide_stages += sum(size for size in sizes if size > 1)
    assert in_wide_stages > len(seeds)  # more than one a graph, or the test is empty


@pytest.mark.parametrize("seed", range(16))
def test_units_compute_the_same_numbers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_INTEROP_HOST_STAGES", "0")
    run_unnoticed(seed)
