"""A worker of `workers_test.py`: trains with MultiWorkerMirroredStrategy, with and without stages.

    python train_worker.py RESULT.npz

TF_CONFIG says which worker it is. It writes the weights, and prints what the plugin did.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf

import tf_interop

STEPS = 4
GLOBAL_BATCH_SIZE = 8


def make_images() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    count = STEPS * GLOBAL_BATCH_SIZE
    return random.random((count, 8, 8, 3), np.float32), random.random((count, 2), np.float32)


class Branches(tf.Module):
    """A 1x1, a 3x3 and a 5x5 convolution, pooled and multiplied by a matrix."""

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(1)

        def variable(*shape: int) -> tf.Variable:
            return tf.Variable(random.normal(0, 0.2, shape).astype(np.float32))

        self.filters = [variable(size, size, 3, 4) for size in (1, 3, 5)]
        self.matrix = variable(12, 2)

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        outputs = [tf.nn.relu(tf.nn.conv2d(images, filter_, 1, "SAME")) for filter_ in self.filters]
        return tf.reduce_mean(tf.concat(outputs, -1), [1, 2]) @ self.matrix


def train(strategy: tf.distribute.Strategy) -> list[np.ndarray]:
    """Trains from the same start every time. Returns the weights."""
    with strategy.scope():
        model = Branches()

    def replica_step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(images) - labels) ** 2) / GLOBAL_BATCH_SIZE
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
            variable.assign_sub(0.1 * gradient)

    @tf.function
    def step(images: Any, labels: Any) -> None:
        strategy.run(replica_step, (images, labels))

    dataset = tf.data.Dataset.from_tensor_slices(make_images()).batch(GLOBAL_BATCH_SIZE)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    for images, labels in strategy.experimental_distribute_dataset(dataset.with_options(options)):
        step(images, labels)
    return [variable.numpy() for variable in model.trainable_variables]


def main(path: str) -> None:
    tf_interop.enable("always")
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    assert strategy.num_replicas_in_sync == 2
    with_stages = train(strategy)
    print(tf_interop.status(), flush=True)
    stages_run = tf_interop.status().counters.stages_run
    tf_interop.disable()
    without = train(strategy)
    assert tf_interop.status().counters.stages_run == stages_run
    np.savez(
        path,
        stages_run=stages_run,
        **{f"with_{number}": each for number, each in enumerate(with_stages)},
        **{f"without_{number}": each for number, each in enumerate(without)},
    )


if __name__ == "__main__":
    main(sys.argv[1])
