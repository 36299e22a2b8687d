"""Programs in which TensorFlow computes without oneDNN, and units with it."""

from __future__ import annotations

import pathlib

from unnoticed import run_python

PROGRAM = """
    import pathlib
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from profiled_events import profile, ways_of_steps

    random = np.random.default_rng(0)
    CHANNELS = 16
    def variable(*shape):
        deviation = float(np.prod(shape[:-1])) ** -0.5 if len(shape) > 1 else 0.3
        return tf.Variable(random.normal(0, deviation, shape).astype("f"))
    def convolution(depth=CHANNELS, stride=1):
        filters = variable(3, 3, depth, CHANNELS)
        return lambda x: tf.nn.conv2d(x, filters, stride, "SAME")
    def depthwise(of_each=1):
        filters = variable(3, 3, CHANNELS, of_each)
        return lambda x: tf.nn.depthwise_conv2d(x, filters, [1] * 4, "SAME")
    def volume():
        filters = variable(1, 3, 3, CHANNELS, CHANNELS)
        return lambda x: tf.nn.conv3d(x[:, None], filters, [1] * 5, "SAME")[:, 0]
    def normalization():
        factor, offset = tf.Variable(1 + variable(CHANNELS)), variable(CHANNELS)
        return lambda x: x * factor + offset
    def padded(layer):
        return lambda x: layer(tf.pad(x, [[0, 0], [1, 0], [0, 1], [0, 0]]))
    def hard_swish(x):
        return x * (tf.nn.relu6(x + 3) * (1 / 6))
    def gelu():
        dense, offset = variable(CHANNELS, CHANNELS), variable(CHANNELS)
        def apply(x):
            rows = tf.reshape(x, [-1, CHANNELS]) @ dense + offset
            return tf.reshape(tf.nn.gelu(rows, approximate=False), tf.shape(x))
        return apply
    layers = [
        (convolution(), tf.nn.relu), (convolution(), tf.nn.swish), (convolution(), hard_swish),
        (convolution(), tf.nn.leaky_relu), (convolution(), tf.nn.sigmoid),
        (convolution(8), tf.nn.relu6), (convolution(8), tf.nn.swish),  # in groups
        (depthwise(), tf.nn.relu6), (depthwise(), tf.nn.swish), (depthwise(), hard_swish),
        (depthwise(), tf.nn.leaky_relu), (depthwise(), tf.nn.elu),
        (padded(convolution()), tf.nn.relu), (padded(depthwise()), tf.nn.relu6),
        (volume(), tf.nn.relu), (gelu(), tf.identity),
    ]
    layers = [(layer, normalization(), activation) for layer, activation in layers]
    before, last = normalization(), convolution(stride=2)

    def function(x):
        for layer, normalize, activate in layers:
            new = activate(normalize(layer(x)))
            x = new + x if new.shape[1] == x.shape[1] else new
            x = x / (1 + tf.reduce_max(tf.abs(x), [1, 2, 3], keepdims=True))
        return last(tf.nn.relu(before(x)))

    batches = [tf.constant(random.normal(size=[size, 24, 24, CHANNELS]).astype("f"))
               for size in (1, 2)]
    expected = [function(each).numpy() for each in batches]
    tf_interop.enable(self_timing=True)
    run = tf.function(function, input_signature=[tf.TensorSpec([None, 24, 24, CHANNELS])])
    def try_all_ways():
        for _ in range(50):
            for batch, stock in zip(batches, expected):
                np.testing.assert_allclose(run(batch), stock, rtol=1e-4, atol=1e-5)
    ways = ways_of_steps(profile(pathlib.Path("trace"), try_all_ways))
    status = tf_interop.status()
    assert not status.failures and status.op_count == 1, status
    for timing in status.self_timings:
        assert timing.tried[0].way == "as stock TensorFlow"
        assert sum(each.runs > 0 for each in timing.tried) > 1, status
    both = {"TfInterop>DirectConvolution", "_FusedConv2D"}
    assert any(both <= each for each in ways.values()), ways
    # Without oneDNN 32 are, and none after a depthwise convolution.
    assert status.folded_graphs[0].folded_count >= 45, status
"""


def test_units_compute_with_onednn(tmp_path: pathlib.Path) -> None:
    run_python(PROGRAM, tmp_path, TF_ENABLE_ONEDNN_OPTS="0", TF_INTEROP_HOST_STAGES="0")
