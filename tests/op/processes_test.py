"""The op in processes of its own: what has no way back in one that goes on."""

from __future__ import annotations

from unnoticed import run_python

DETERMINISTIC = """
import numpy as np, tensorflow as tf, tf_interop
from tf_interop import tensorflow_internals
assert not tensorflow_internals.is_op_determinism_on()
tf.config.experimental.enable_op_determinism()
tf.random.set_seed(0)
assert tensorflow_internals.is_op_determinism_on()
filters = [np.random.default_rng(seed).normal(size=[3, 3, 4, 8]) for seed in (1, 2)]
image = tf.constant(np.random.default_rng(0).normal(size=[3, 9, 9, 4]), tf.float32)

@tf.function
def gradients(image):
    with tf.GradientTape() as tape:
        variables = [tf.cast(each, tf.float32) for each in filters]
        tape.watch(variables)
        loss = sum(tf.reduce_sum(tf.nn.conv2d(image, each, 1, "SAME") ** 2) for each in variables)
    return tape.gradient(loss, variables)

tf_interop.enable("always")
runs = [[each.numpy() for each in gradients(image)] for _ in range(5)]
assert tf_interop.status().stage_count and tf_interop.status().counters.stages_run
for run in runs[1:]:
    for one, other in zip(run, runs[0]):
        np.testing.assert_array_equal(one, other)
"""


def test_runs_with_op_determinism() -> None:
    run_python(DETERMINISTIC)
