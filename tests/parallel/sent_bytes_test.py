"""Divided steps compute the same as stock TensorFlow, and send the predicted bytes."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from command_line import free_addresses
from unnoticed import run_python

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
    from parallel.dividing import sent_bytes
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

    find.LEAST_SHARED_BYTES = 0
    start = [each.numpy() for each in variables]
    slots = [tf.Variable(tf.zeros_like(each)) for each in variables]

    def reset():
        for variable, slot, value in zip(variables, slots, start):
            variable.assign(value)
            slot.assign(tf.zeros_like(slot))

    def momentum(images, labels):
        loss, *gradients = training(images, labels)
        for variable, slot, gradient in zip(variables, slots, gradients):
            slot.assign(0.9 * slot + gradient)
            variable.assign_sub(0.01 * slot)
        return [loss]

    # The second step has shares of the filters and of their slots.
    tf_interop.disable()
    function = tf.function(momentum)
    expected = [function(images, labels)[0] for _ in range(2)]
    expected += [each.numpy() for each in variables]
    layers = handed_layers(lambda: tf.function(momentum)(images, labels))
    for strategy, division in strategies(layers, len(devices)):
        reset()
        plan = plan_of(layers, division, devices)
        tf_interop.enable(parallel=plan, self_timing=False)
        function = tf.function(momentum, autograph=False)
        results = [function(images, labels)[0]]
        get_plugin().forget_reports()
        sent = sent_bytes(lambda: results.append(function(images, labels)[0]))
        status = tf_interop.status()
        assert not status.failures, (strategy, status.failures)
        [report] = status.divided_graphs
        assert report.sent_bytes == sent and sum(sent.values()), (strategy, report, sent)
        # The five filters and their slots, unless a layer stays whole.
        assert report.shared_variable_count > 4, (strategy, report)
        for ours, stock in zip([*results, *variables], expected):
            np.testing.assert_allclose(ours, stock, 1e-4, 1e-5, err_msg=strategy)
    reset()

    for step in (training, inference):
        tf_interop.disable()
        expected = tf.function(step)(images, labels)
        layers = handed_layers(lambda: tf.function(step)(images, labels))
        assert len(layers.layers) >= 5, [each.name for each in layers.layers]
        for strategy, division in strategies(layers, len(devices)):
            assert division, strategy
            plan = plan_of(layers, division, devices)
            get_plugin().forget_reports()
            tf_interop.enable(parallel=plan)
            function = tf.function(step, autograph=False)
            results = []
            sent = sent_bytes(lambda: results.append(function(images, labels)))
            status = tf_interop.status()
            assert not status.failures, (strategy, status.failures)
            [report] = status.divided_graphs
            assert not report.why_unchanged, (strategy, report)
            assert report.sent_bytes == sent and sum(sent.values()), (strategy, report, sent)
            if "SERVER" in os.environ:
                assert {"worker" in source for source, _ in sent} == {True, False}, sent
            for ours, stock in zip(results[0], expected):
                largest = np.abs(stock).max()
                # Sums are in another order.
                np.testing.assert_allclose(ours, stock, 1e-5, 1e-5 * largest, err_msg=strategy)
            for ours, first in zip(function(images, labels), results[0]):
                np.testing.assert_array_equal(ours, first)
            assert tf_interop.status().divided_graphs == (report,)  # none from the second call
"""


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
