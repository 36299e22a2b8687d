"""Divided steps compute the same as stock TensorFlow, and send the predicted bytes."""

from __future__ import annotations

import collections
import math
import pathlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import tensorflow as tf
from command_line import free_addresses
from tensorflow.core.framework import graph_pb2
from tensorflow.python.eager import context
from unnoticed import run_python

from tf_interop.graph.ops import output_dtypes
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView, parse_input
from tf_interop.model.graphs import with_inferred_shapes
from tf_interop.parallel.rewrite import was_divided
from tf_interop.runtime.plugin import get_plugin

# The server runs without the plugin.
SERVER = """
import sys
import tensorflow as tf
server = tf.distribute.Server({"worker": [sys.argv[1]]}, job_name="worker", task_index=0)
server.join()
"""

PROGRAM = """
    import os
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from parallel.sent_bytes_test import sent_bytes
    from python.benchmarks.divided_training import handed_layers, make_devices, plan_of, strategies
    from tf_interop.parallel.layers import find
    from tf_interop.runtime.plugin import get_plugin

    if "SERVER" in os.environ:
        tf.config.experimental_connect_to_host(os.environ["SERVER"])
        devices = ["/device:CPU:0", "/job:worker/task:0/device:CPU:0"]
    else:
        devices = make_devices(4)
    random = np.random.default_rng(0)
    def normal(*shape):
        return random.normal(0, 0.3, shape).astype(np.float32)
    variables = [tf.Variable(normal(*shape)) for shape in
                 [(3, 3, 4, 8), (8,), (3, 3, 8, 8), (5, 1, 8, 8), (128, 8), (8, 6)]]
    images, labels = tf.constant(normal(4, 8, 8, 4)), tf.constant([0, 5, 3, 1])

    def losses(images, labels):
        first, bias, second, third, fourth, fifth = variables
        x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(images, first, 1, "SAME"), bias))
        x = tf.nn.conv2d(x, second, 2, "SAME") + tf.nn.conv2d(x, third, 2, "SAME")
        x = tf.reshape(tf.nn.relu(x), [4, 128])
        x = tf.nn.relu(x @ fourth) @ fifth
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x)

    def training(images, labels):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(losses(images, labels))
        return [loss, *tape.gradient(loss, variables)]

    def inference(images, labels):
        return [losses(images, labels)]

    def momentum(images, labels):
        loss, *gradients = training(images, labels)
        for variable, slot, gradient in zip(variables, slots, gradients):
            slot.assign(0.9 * slot + gradient)
            variable.assign_sub(0.01 * slot)
        return [loss]

    def reset():
        for variable, slot, value in zip(variables, slots, start):
            variable.assign(value)
            slot.assign(tf.zeros_like(slot))

    find.LEAST_SHARED_BYTES = 0
    start = [each.numpy() for each in variables]
    slots = [tf.Variable(tf.zeros_like(each)) for each in variables]

    # The second step with momentum has shares of the filters and of their slots.
    for step, calls in ((momentum, 2), (training, 1), (inference, 1)):
        tf_interop.disable()
        reset()
        function = tf.function(step)
        expected = [each for _ in range(calls) for each in function(images, labels)]
        expected += [each.numpy() for each in variables]
        layers = handed_layers(lambda: tf.function(step)(images, labels))
        assert len(layers.layers) >= 5, [each.name for each in layers.layers]
        for strategy, division in strategies(layers, len(devices)):
            assert division, strategy
            reset()
            plan = plan_of(layers, division, devices)
            tf_interop.enable(parallel=plan, self_timing=False)
            function = tf.function(step, autograph=False)
            results = [each for _ in range(calls - 1) for each in function(images, labels)]
            get_plugin().forget_reports()
            sent = sent_bytes(lambda: results.extend(function(images, labels)))
            status = tf_interop.status()
            assert not status.failures, (strategy, status.failures)
            [report] = status.divided_graphs
            assert not report.why_unchanged, (strategy, report)
            assert report.sent_bytes == sent and sum(sent.values()), (strategy, report, sent)
            # The five filters and their slots, unless a layer stays whole.
            assert step is not momentum or report.shared_variable_count > 4, (strategy, report)
            if "SERVER" in os.environ:
                assert {"worker" in source for source, _ in sent} == {True, False}, sent
            for ours, stock in zip([*results, *variables], expected, strict=True):
                largest = np.abs(stock).max()
                # Sums are in another order.
                np.testing.assert_allclose(ours, stock, 1e-4, 1e-5 * largest, err_msg=strategy)
"""


def sent_bytes(call: Callable[[], Any]) -> collections.Counter[tuple[str, str]]:
    """The bytes that TensorFlow sends in the first call of a divided function, by device pair."""
    divided: list[graph_pb2.GraphDef] = []

    def look(graph_def: graph_pb2.GraphDef, _: str) -> None:
        if was_divided(graph_def):
            divided.append(graph_def)

    context.context().enable_run_metadata()
    context.context().export_run_metadata()  # of calls before
    with get_plugin().observe(look):
        call()
    metadata = context.context().export_run_metadata()
    context.context().disable_run_metadata()
    view = GraphView(with_inferred_shapes(divided[-1]))
    properties = GraphProperties(view)
    counter: collections.Counter[tuple[str, str]] = collections.Counter()
    for partition in metadata.partition_graphs:
        nodes = {node.name: node for node in partition.node}
        for node in partition.node:
            if node.op == "_Send":
                source, destination = (
                    node.attr[name].s.decode() for name in ("send_device", "recv_device")
                )
                counter[source, destination] += _byte_count(
                    *parse_input(node.input[0]), nodes, view, properties
                )
    return +counter


def _byte_count(
    name: str, port: int, sent_from: Mapping[str, Any], view: GraphView, properties: GraphProperties
) -> int:
    if name not in view.index_of:
        # It stands for a control dependency.
        assert sent_from[name].op == "Const", name
        assert tf.make_ndarray(sent_from[name].attr["value"].tensor).size == 0, name
        return 0
    node = view.index_of[name]
    shape = properties.output_shape(node, port)
    assert shape is not None, name
    assert None not in shape, name
    return math.prod(shape) * tf.as_dtype(output_dtypes(view.nodes[node])[port]).size


# oneDNN fuses convolutions with other ops after the graph is partitioned.
NO_ONEDNN = {"TF_ENABLE_ONEDNN_OPTS": "0"}


def test_every_strategy_computes_the_same_and_sends_the_predicted_bytes() -> None:
    run_python(PROGRAM, **NO_ONEDNN)


@pytest.mark.slow
def test_divides_layers_over_the_processes_of_a_cluster(tmp_path: pathlib.Path) -> None:
    [address] = free_addresses(1)
    log = tmp_path / "server.log"
    server = subprocess.Popen([sys.executable, "-c", SERVER, address], stderr=log.open("w"))
    try:
        run_python(PROGRAM, SERVER=address, **NO_ONEDNN)
    finally:
        server.kill()
        server.wait()
