"""Functions of convolutions and other ops that depend on each other at random.

All values are small whole numbers, clipped after every convolution, so that every sum is exact.
"""

from __future__ import annotations

import random

import numpy as np
import tensorflow as tf

CHANNELS = 4
SIZE = 6


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
                    # y is the same in all iterations: it reaches the result over the next one.
                    lambda i, v: (i + 1, self.op([v, y], depth + 1) + self.op([v, y], depth + 1)),
                    (0, x),
                )[1]
                result = tf.ensure_shape(result, [2, SIZE, SIZE, CHANNELS])
            case _:
                with tf.control_dependencies([y]):
                    result = tf.nn.conv2d(x, self.digits(1, 1, CHANNELS, CHANNELS), 1, "SAME")
        return tf.clip_by_value(result, -2, 2)
