"""Whole networks under the policy "always": the same numbers as without the plugin.

Two comparisons:

- With the lanes of every stage put onto a single lane, the arithmetic is the same and only what
  runs beside what differs. Outputs, losses and weights must agree to the bit.
- Without the plugin TensorFlow computes the convolutions (oneDNN, Eigen), which adds in another
  order. How much a network makes of such rounding is its own property: it is measured by changing
  every pixel in its last bit in stock TensorFlow, and `tolerance` is made from that. With batch
  normalization on the statistics of two images, steps amplify rounding up to the size of the
  updates themselves, which would hide errors; so steps with normalization and dropout frozen,
  where this does not happen, are compared as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

import tf_interop
from python.models.googlenet import googlenet
from tf_interop.planning.types import Plan, PlannedStage
from tf_interop.stage import Stage

TRAINING_STEPS = 3

# A last-bit change of the pixels is one rounding at the very start, convolutions round at every
# depth: over five networks the plugin's differences were 0.03 to 2 times the nudge's, where
# those were above the rounding of the result itself.
NUDGE_FACTOR = 8
ROUNDINGS_OF_RESULT = 4


def application(name: str, size: int) -> Callable[[], tf.keras.Model]:
    return lambda: getattr(tf.keras.applications, name)(
        weights=None, input_shape=(size, size, 3), classes=10
    )


# Small images; the smallest that each network takes would leave one pixel in its last layers.
NETWORKS = {
    "GoogLeNet": lambda: googlenet((64, 64, 3), classes=10),
    "InceptionV3": application("InceptionV3", 107),
    "ResNet50": application("ResNet50", 64),
    "NASNetMobile": application("NASNetMobile", 64),
}

# Convolution nodes of inference and of a training step. The first convolution of a network has no
# gradient by its image. The counts are those of the papers' networks as Keras builds them.
CONVOLUTIONS = {
    "GoogLeNet": (57, 170),
    "InceptionV3": (94, 281),
    "ResNet50": (53, 158),
    "NASNetMobile": (356, 1067),
}


@dataclasses.dataclass
class Numbers:
    """Everything that a network gave."""

    outputs: np.ndarray
    frozen_weights: list[np.ndarray]
    weights: list[np.ndarray]
    losses: list[float]


pytestmark = pytest.mark.usefixtures("plugin_as_after_import")


class Network:
    """A model with its functions, traced once; TensorFlow optimizes them anew for each option."""

    def __init__(self, model: tf.keras.Model) -> None:
        self.model = model
        self.before = [variable.numpy() for variable in model.variables]
        optimizer = tf.keras.optimizers.SGD(1e-3)
        optimizer.build(model.trainable_variables)
        labels = tf.constant([1, 2])

        @tf.function
        def infer(images: tf.Tensor) -> tf.Tensor:
            return model(images, training=False)

        def make_step(training: bool) -> tf.types.experimental.GenericFunction:
            @tf.function
            def step(images: tf.Tensor) -> tf.Tensor:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(
                        tf.keras.losses.sparse_categorical_crossentropy(
                            labels, model(images, training=training)
                        )
                    )
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
                return loss

            return step

        self.infer = infer
        self.frozen_step = make_step(training=False)
        self.step = make_step(training=True)

    def numbers(self, images: tf.Tensor) -> Numbers:
        self._reset()
        outputs = self.infer(images).numpy()
        losses = [float(self.frozen_step(images)) for _ in range(TRAINING_STEPS)]
        frozen_weights = self.model.get_weights()
        self._reset()
        losses += [float(self.step(images)) for _ in range(TRAINING_STEPS)]
        return Numbers(outputs, frozen_weights, self.model.get_weights(), losses)

    def weights_before(self) -> list[np.ndarray]:
        value_of = {
            v.path: value for v, value in zip(self.model.variables, self.before, strict=True)
        }
        return [value_of[weight.path] for weight in self.model.weights]

    def _reset(self) -> None:
        for variable, value in zip(self.model.variables, self.before, strict=True):
            variable.assign(value)


def largest_difference(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    return max(float(np.max(np.abs(a - b))) for a, b in zip(first, second, strict=True) if a.size)


def tolerance(stock: list[np.ndarray], nudged: list[np.ndarray]) -> float:
    largest = max(float(np.max(np.abs(tensor))) for tensor in stock if tensor.size)
    rounding = float(np.finfo(np.float32).eps) * largest
    return NUDGE_FACTOR * largest_difference(stock, nudged) + ROUNDINGS_OF_RESULT * rounding


def on_one_lane(plan: Plan) -> Plan:
    return dataclasses.replace(
        plan,
        graphs=tuple(
            dataclasses.replace(
                graph,
                stages=tuple(
                    PlannedStage(Stage.in_sequence(stage.stage.steps)) for stage in graph.stages
                ),
            )
            for graph in plan.graphs
        ),
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_gives_the_same_numbers(name: str) -> None:
    tf.keras.utils.set_random_seed(0)
    network = Network(NETWORKS[name]())
    images = tf.random.normal((2, *network.model.input_shape[1:]))

    tf_interop.disable()
    stock = network.numbers(images)
    nudged = network.numbers(tf.constant(np.nextafter(images.numpy(), np.float32(np.inf))))
    tf_interop.enable("always")
    staged = network.numbers(images)
    status = tf_interop.status()
    assert status.failures == ()
    assert {report.refusals for report in status.graphs} == {()}
    assert sorted(report.convolution_count for report in status.graphs) == list(CONVOLUTIONS[name])
    for report in status.graphs:
        assert sum(len(s.nodes) for s in report.plan.stages) == report.convolution_count

    tf_interop.enable(plan=on_one_lane(status.plan))
    # Another value of any option makes TensorFlow optimize the functions anew.
    tf.config.optimizer.set_experimental_options({"debug_stripper": True})
    one_lane = network.numbers(images)
    assert tf_interop.status().failures == ()
    assert all(
        len(stage.stage.lanes) == 1
        for report in tf_interop.status().graphs
        for stage in report.plan.stages
    )

    np.testing.assert_array_equal(one_lane.outputs, staged.outputs)
    assert one_lane.losses == staged.losses
    for ours, theirs in (
        (staged.weights, one_lane.weights),
        (staged.frozen_weights, one_lane.frozen_weights),
    ):
        assert largest_difference(ours, theirs) == 0

    for what, of_stock, of_staged, of_nudged in (
        ("outputs", [stock.outputs], [staged.outputs], [nudged.outputs]),
        ("weights", stock.weights, staged.weights, nudged.weights),
        ("frozen", stock.frozen_weights, staged.frozen_weights, nudged.frozen_weights),
    ):
        difference = largest_difference(of_stock, of_staged)
        assert difference <= tolerance(of_stock, of_nudged), what
    # The tolerance of the frozen steps is far below what they changed.
    updates = largest_difference(stock.frozen_weights, network.weights_before())
    assert 10 * tolerance(stock.frozen_weights, nudged.frozen_weights) < updates
