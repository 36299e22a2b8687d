"""A program without any knowledge of the plugin: a few steps of a network with two branches.

Example: python -m tf_interop run --policy always --report python/examples/branches.py --steps 2
"""

from __future__ import annotations

import tensorflow as tf
from absl import app, flags

_STEPS = flags.DEFINE_integer("steps", 5, "Training steps.", lower_bound=1)


def main(_: list[str]) -> None:
    """Trains on noise and prints the losses."""
    tf.keras.utils.set_random_seed(0)
    image = tf.keras.Input((32, 32, 3))
    branches = [
        tf.keras.layers.Conv2D(16, size, padding="same", activation="relu")(image)
        for size in (1, 3, 5)
    ]
    pooled = tf.keras.layers.GlobalAveragePooling2D()(tf.keras.layers.Concatenate()(branches))
    model = tf.keras.Model(image, tf.keras.layers.Dense(10)(pooled))
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))
            )
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    images = tf.random.normal((8, 32, 32, 3))
    labels = tf.range(8)
    for number in range(_STEPS.value):
        print(f"step {number}: loss {float(step(images, labels)):.6f}")


if __name__ == "__main__":
    app.run(main)
