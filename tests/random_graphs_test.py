"""Random graphs in stock TensorFlow: rewritten, judged by rules that know nothing of the rewriter,
and run with and without the plugin.

All values are small whole numbers, clipped after every convolution, so that every sum is exact and
the comparison is to the bit.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

import tf_interop
from tf_interop.decide.conv_stage_pass import run_conv_stage_pass
from tf_interop.decide.settings import Policy, Settings
from tf_interop.use.plugin import get_plugin

CHANNELS = 4
SIZE = 6
GRAPHS = 240
GRAPHS_PER_TEST = 24


pytestmark = pytest.mark.usefixtures("plugin_as_after_import")


VOLUME = [2, 3, SIZE // 3, SIZE, CHANNELS]


def volume(image: tf.Tensor) -> tf.Tensor:
    """The pixels of an image as those of a volume."""
    return tf.reshape(image, VOLUME)


def flat(volume: tf.Tensor) -> tf.Tensor:
    """The way back."""
    return tf.reshape(volume, [2, SIZE, SIZE, CHANNELS])


class RandomGraph:
    """Makes a function of convolutions and other ops that depend on each other at random."""

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
        """One more tensor `[2, SIZE, SIZE, CHANNELS]` from those that are there."""
        x, y = self.random.choice(tensors), self.random.choice(tensors)
        kinds = ["conv", "conv", "conv", "backward_input", "backward_filter", "depthwise", "add"]
        kinds += ["volume", "volume_gradients", "double"]
        if depth == 0:
            kinds += ["cond", "loop", "ordered"]
        match self.random.choice(kinds):
            case "conv":
                size = self.random.choice([1, 3])
                result = tf.nn.conv2d(x, self.digits(size, size, CHANNELS, CHANNELS), 1, "SAME")
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
            case "volume":
                filter_ = self.digits(self.random.choice([1, 2, 5]), 3, 3, CHANNELS, CHANNELS)
                result = flat(tf.nn.conv3d(volume(x), filter_, [1] * 5, "SAME"))
            case "volume_gradients":
                gradient = tf.raw_ops.Conv3DBackpropFilterV2(
                    input=volume(x),
                    filter_sizes=[2, 1, 1, CHANNELS, CHANNELS],
                    out_backprop=volume(y),
                    strides=[1] * 5,
                    padding="SAME",
                )
                result = flat(
                    tf.raw_ops.Conv3DBackpropInputV2(
                        input_sizes=VOLUME,
                        filter=tf.clip_by_value(gradient, -2, 2),
                        out_backprop=volume(y),
                        strides=[1] * 5,
                        padding="SAME",
                    )
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
                    # y is the same in all iterations: it reaches the result over the next one.
                    lambda i, v: (i + 1, self.op([v, y], depth + 1) + self.op([v, y], depth + 1)),
                    (0, x),
                )[1]
                result = tf.ensure_shape(result, [2, SIZE, SIZE, CHANNELS])
            case _:
                with tf.control_dependencies([y]):
                    result = tf.nn.conv2d(x, self.digits(1, 1, CHANNELS, CHANNELS), 1, "SAME")
        return tf.clip_by_value(result, -2, 2)


def dependencies(node: node_def_pb2.NodeDef) -> set[str]:
    return {text.removeprefix("^").split(":")[0] for text in node.input}


def judge(before: graph_pb2.GraphDef, after: graph_pb2.GraphDef) -> int:
    """Asserts what every rewrite has to keep. Returns how many convolutions are in wide stages."""
    stage_of: dict[str, str] = {}
    in_wide_stages = 0
    for node in after.node:
        if node.op == "TfInterop>ConvStage":
            steps = [node_def_pb2.NodeDef.FromString(text) for text in node.attr["steps"].list.s]
            stage_of.update({step.name: node.name for step in steps})
            in_wide_stages += len(steps) if len(steps) > 1 else 0
    nodes_before = {node.name: node for node in before.node}
    nodes_after = {node.name: node for node in after.node}
    assert len(nodes_after) == len(after.node)
    # Every other node is there, with its op, device and attributes; nothing was added but stages.
    kept = set(nodes_before) - set(stage_of)
    assert kept == set(nodes_after) - set(stage_of.values())
    for name in kept:
        assert nodes_after[name].op == nodes_before[name].op
        assert nodes_after[name].device == nodes_before[name].device
        assert nodes_after[name].attr == nodes_before[name].attr
    # No dependency is lost, and none is inside a stage.
    for name, node in nodes_before.items():
        for source in dependencies(node):
            reader, origin = stage_of.get(name, name), stage_of.get(source, source)
            assert reader != origin, (source, name)
            assert origin in dependencies(nodes_after[reader]), (source, name)
    assert_acyclic(nodes_after)
    assert before.library == after.library
    return in_wide_stages


def assert_acyclic(nodes: dict[str, node_def_pb2.NodeDef]) -> None:
    waits = {
        name: {
            source
            for source in dependencies(node)
            if not (node.op == "Merge" and nodes[source].op == "NextIteration")
        }
        for name, node in nodes.items()
    }
    done: set[str] = set()
    while ready := [name for name in waits if waits[name] <= done]:
        done.update(ready)
        waits = {name: sources for name, sources in waits.items() if name not in done}
    assert not waits, f"cycle among {sorted(waits)[:10]}"


@pytest.mark.parametrize("first", range(0, GRAPHS, GRAPHS_PER_TEST))
def test_random_graphs_compute_the_same_numbers(first: int) -> None:
    in_wide_stages = 0
    for seed in range(first, first + GRAPHS_PER_TEST):
        graph = RandomGraph(seed)
        image = graph.digits(2, SIZE, SIZE, CHANNELS)
        compute = graph.function()
        tf_interop.disable()
        expected = compute(image)
        tf_interop.enable("always")
        handed_over: list[graph_pb2.GraphDef] = []
        with get_plugin().observe(lambda graph_def, _: handed_over.append(graph_def)):  # noqa: B023
            result = compute(image)
        assert tf_interop.status().failures == (), f"seed {seed}"
        for ours, theirs in zip(result, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=f"seed {seed}")
        for before in handed_over:
            if any(node.op == "TfInterop>ConvStage" for node in before.node):
                continue
            again = graph_pb2.GraphDef()
            again.CopyFrom(before)
            outcome = run_conv_stage_pass(before, Settings(Policy.ALWAYS), "CPU")
            assert before == again, "the pass changed its input"
            if outcome.graph_def is None:
                continue
            in_wide_stages += judge(before, outcome.graph_def)
            # The same bytes again, and nothing more to do on its own output.
            assert outcome.graph_def.SerializeToString(deterministic=True) == run_conv_stage_pass(
                again, Settings(Policy.ALWAYS), "CPU"
            ).graph_def.SerializeToString(deterministic=True)
            once_more = run_conv_stage_pass(outcome.graph_def, Settings(Policy.ALWAYS), "CPU")
            assert once_more.graph_def is None
    assert in_wide_stages > GRAPHS_PER_TEST  # more than one a graph: the test has something to say
