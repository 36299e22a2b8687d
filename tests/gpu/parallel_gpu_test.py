"""Layers divided over logical devices of one GPU: their numbers, not their speed."""

from __future__ import annotations

import pytest
from unnoticed import run_python

PROGRAM = """
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from parallel.dividing import layers_of, make_devices, plan_of, strategies

    devices = make_devices({count}, "GPU")
    tf.config.experimental.enable_tensor_float_32_execution(False)
    random = np.random.default_rng(0)
    images = tf.constant(random.normal(size=(8, 12, 12, 4)).astype(np.float32))
    labels = tf.constant(random.integers(0, 8, 8))
    shapes = [(3, 3, 4, 8), (5, 5, 8, 8), (288, 8)]
    with tf.device(devices[0]):
        filters = [tf.Variable(random.normal(0, 0.1, each).astype(np.float32)) for each in shapes]

    def make():
        @tf.function
        def step():
            with tf.GradientTape() as tape:
                hidden = tf.nn.relu(tf.nn.conv2d(images, filters[0], 1, "SAME"))
                hidden = tf.nn.max_pool2d(tf.nn.conv2d(hidden, filters[1], 1, "SAME"), 2, 2, "SAME")
                logits = tf.reshape(hidden, (8, -1)) @ filters[2]
                loss = tf.reduce_mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            return [loss, *tape.gradient(loss, filters)]
        return step

    tf_interop.disable()
    expected = make()()
    layers = layers_of(lambda: make()())
    for strategy, division in strategies(layers, {count}):
        tf_interop.enable(parallel=plan_of(layers, division, devices))
        results = make()()
        status = tf_interop.status()
        assert not status.failures, status.failures
        assert status.divided_graphs[0].divided, status
        for ours, stock in zip(results, expected, strict=True):
            np.testing.assert_allclose(ours, stock, 1e-4, 1e-5, err_msg=strategy)
"""


@pytest.mark.parametrize("count", [2, 4])
def test_a_training_step_on_logical_gpus_gives_the_same_numbers(count: int) -> None:
    run_python(PROGRAM.format(count=count))
