"""GoogLeNet under the policy "always": the same numbers as without the plugin.

Two comparisons:

- With the lanes of every stage put onto a single lane, the arithmetic is the same and only what
  runs beside what differs. Outputs, losses and weights must agree to the bit.
- Without the plugin TensorFlow computes the convolutions (oneDNN, Eigen), which adds in another
  order. How much a network makes of such rounding is its own property: it is measured by changing
  every pixel in its last bit in stock TensorFlow, and `tolerance` is made from that. With batch
  normalization on the statistics of two images, steps amplify rounding up to the size of the
  updates themselves, which would hide errors; so steps with normalization and dropout frozen,
  where this does not happen, are compared as well.

`applications_test.py` has networks of other kinds.
"""

from __future__ import annotations

import dataclasses

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

pytestmark = pytest.mark.usefixtures("plugin_as_after_import")


class Network:
    """A model with its functions, traced once; TensorFlow optimizes them anew for each option."""

    def __init__(self, model: tf.keras.Model) -> None:
        self.model = model
        self.before = [variable.numpy() for variable in model.variables]
        self.weights = model.get_weights()
        optimizer = tf.keras.optimizers.SGD(1e-3)
        optimizer.build(model.trainable_variables)
        loss_of = tf.keras.losses.SparseCategoricalCrossentropy()

        @tf.function
        def step(images: tf.Tensor, training: bool) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = loss_of(tf.constant([1, 2]), model(images, training=training))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        self.infer = tf.function(lambda images: model(images, training=False))
        self.step = step

    def numbers(self, images: tf.Tensor) -> dict[str, list[np.ndarray]]:
        """Everything that the network gives."""
        numbers: dict[str, list[np.ndarray]] = {"losses": []}
        for what, training in (("frozen", False), ("weights", True)):
            for variable, value in zip(self.model.variables, self.before, strict=True):
                variable.assign(value)
            numbers.setdefault("outputs", [self.infer(images).numpy()])
            for _ in range(TRAINING_STEPS):
                numbers["losses"].append(self.step(images, training).numpy())
            numbers[what] = self.model.get_weights()
        return numbers


def largest_difference(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    return max(float(np.max(np.abs(a - b))) for a, b in zip(first, second, strict=True) if a.size)


def tolerance(stock: list[np.ndarray], nudged: list[np.ndarray]) -> float:
    largest = max(float(np.max(np.abs(tensor))) for tensor in stock if tensor.size)
    rounding = float(np.finfo(np.float32).eps) * largest
    return NUDGE_FACTOR * largest_difference(stock, nudged) + ROUNDINGS_OF_RESULT * rounding


def on_one_lane(plan: Plan) -> Plan:
    def in_sequence(planned: PlannedStage) -> PlannedStage:
        return PlannedStage(Stage.in_sequence(planned.stage.steps))

    graphs = (
        dataclasses.replace(graph, stages=tuple(map(in_sequence, graph.stages)))
        for graph in plan.graphs
    )
    return dataclasses.replace(plan, graphs=tuple(graphs))


def test_gives_the_same_numbers() -> None:
    tf.keras.utils.set_random_seed(0)
    network = Network(googlenet((64, 64, 3), classes=10))
    images = tf.random.normal((2, 64, 64, 3))

    tf_interop.disable()
    stock = network.numbers(images)
    nudged = network.numbers(tf.constant(np.nextafter(images.numpy(), np.float32(np.inf))))
    tf_interop.enable("always")
    staged = network.numbers(images)
    status = tf_interop.status()
    assert status.failures == ()
    assert {report.refusals for report in status.graphs} == {()}
    # Those of the paper's network; in a training step the first has no gradient by its image.
    assert sorted({report.convolution_count for report in status.graphs}) == [57, 170]
    for report in status.graphs:
        assert sum(len(s.nodes) for s in report.plan.stages) == report.convolution_count

    tf_interop.enable(plan=on_one_lane(status.plan))
    # Another value of any option makes TensorFlow optimize the functions anew.
    tf.config.optimizer.set_experimental_options({"debug_stripper": True})
    one_lane = network.numbers(images)
    assert tf_interop.status().failures == ()
    planned = [stage for each in tf_interop.status().graphs for stage in each.plan.stages]
    assert {len(stage.stage.lanes) for stage in planned} == {1}
    for what, of_one_lane in one_lane.items():
        assert largest_difference(staged[what], of_one_lane) == 0, what

    for what in ("outputs", "weights", "frozen"):
        difference = largest_difference(stock[what], staged[what])
        assert difference <= tolerance(stock[what], nudged[what]), what
    # The tolerance of the frozen steps is far below what they changed.
    updates = largest_difference(stock["frozen"], network.weights)
    assert 10 * tolerance(stock["frozen"], nudged["frozen"]) < updates
