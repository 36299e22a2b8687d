"""Layers that two processes share."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from command_line import free_addresses
from unnoticed import run_python

# It has TensorFlow alone.
SERVER = """
import sys
import tensorflow as tf
server = tf.distribute.Server({"worker": [sys.argv[1]]}, job_name="worker", task_index=0)
server.join()
"""

CLIENT = """
    import os
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from parallel.dividing import handed_graphs, layers_of, plan_of, sent_bytes
    from tf_interop.parallel.degrees import Degrees
    from tf_interop.runtime.plugin import get_plugin

    tf.config.experimental_connect_to_host(os.environ["SERVER"])
    devices = ["/device:CPU:0", "/job:worker/task:0/device:CPU:0"]
    random = np.random.default_rng(0)
    def normal(*shape):
        return random.normal(0, 0.3, shape).astype(np.float32)
    filters = [tf.Variable(normal(3, 3, 3, 8)), tf.Variable(normal(3, 3, 8, 8))]
    images = tf.constant(normal(4, 8, 8, 3))

    @tf.function
    def step(images):
        with tf.GradientTape() as tape:
            for each in filters:
                images = tf.nn.relu(tf.nn.conv2d(images, each, 1, "SAME"))
            loss = tf.reduce_mean(images ** 2)
        return [loss, *tape.gradient(loss, filters)]

    tf_interop.disable()
    expected = step(images)
    [graph] = handed_graphs(lambda: step(images))
    layers = layers_of(graph)
    for degrees in (Degrees(sample=2), Degrees(height=2), Degrees(filter=2), Degrees(channel=2)):
        def choose(layer, place):
            return degrees if layer.name.startswith("Conv2D") else None
        get_plugin().forget_reports()
        tf_interop.enable(parallel=plan_of([layers], choose, devices))
        results = []
        sent = sent_bytes(lambda: results.append(step(images)))
        status = tf_interop.status()
        assert not status.failures, status.failures
        [report] = status.divided_graphs
        assert len(report.divided) == 2 and report.sent_bytes == sent, report
        assert {"worker" in source for source, _ in sent} == {True, False}, sent
        for ours, stock in zip(results[0], expected, strict=True):
            largest = np.abs(stock).max()
            # Sums are added up in another order.
            np.testing.assert_allclose(ours, stock, 1e-5, 1e-5 * largest, err_msg=str(degrees))
"""


def test_layers_are_divided_over_the_processes_of_a_cluster(tmp_path: pathlib.Path) -> None:
    [address] = free_addresses(1)
    log = tmp_path / "server.log"
    server = subprocess.Popen([sys.executable, "-c", SERVER, address], stderr=log.open("w"))
    try:
        run_python(CLIENT, SERVER=address, TF_ENABLE_ONEDNN_OPTS="0")
    finally:
        server.kill()
        server.wait()
