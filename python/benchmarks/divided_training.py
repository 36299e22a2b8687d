"""Trains networks with their layers divided over devices, and compares with one device.

In random plans each layer has its own degrees, number of devices and order of devices. In float64
rounding is far smaller than the effect of any mistake. In float32 numbers may move as far as in the
stock program when the last bit of every pixel, or of every weight, changes.
"""

from __future__ import annotations

import dataclasses
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import tf_interop
from python.benchmarks.applications import Numbers, distances, nudge, set_random_weights
from python.benchmarks.result_file import Case
from python.benchmarks.rounding import share_of_tolerance
from python.models.googlenet import LocalResponseNormalization, googlenet
from python.models.small import CLASSES, lenet, paddings, resnet
from tf_interop.model.graphs import with_inferred_shapes
from tf_interop.parallel.explain import WHOLE, baselines
from tf_interop.parallel.layers.find import LayerGraph, legal_degrees
from tf_interop.parallel.layers.prepare import prepare
from tf_interop.parallel.lookup import keys_of_layers, structure_of_layers
from tf_interop.parallel.types import Axis, Degrees, DividedLayer, GraphDivision, ParallelPlan
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.switch import calls_as_stock

BATCH = 8
STEPS = 3
RANDOM_PLANS = 12
NETWORKS: dict[str, Callable[[], Any]] = {
    "LeNet-5": lenet,
    "ResNet-8": resnet,
    "every padding": paddings,
    "GoogLeNet": lambda: googlenet((32, 32), CLASSES),
}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: tf.keras.optimizers.SGD(0.05),
    "momentum": lambda: tf.keras.optimizers.SGD(0.02, momentum=0.9),
    "Adam": lambda: tf.keras.optimizers.Adam(0.002, epsilon=1e-4),
}
FLOAT64_TOLERANCE = 1e-9
"""The most that numbers may move in float64. Normalization by the statistics of few values
amplifies the rounding of 1e-16."""


def make_devices(count: int, kind: str = "CPU") -> tuple[str, ...]:
    """Makes logical devices, before TensorFlow is used, and returns their names."""
    memory_mb = None if kind == "CPU" else 4096
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices(kind)[0],
        [tf.config.LogicalDeviceConfiguration(memory_mb)] * count,
    )
    return tuple(f"/device:{kind}:{number}" for number in range(count))


def strategies(
    graph: LayerGraph, device_count: int
) -> Iterator[tuple[str, tuple[DividedLayer, ...]]]:
    """Named divisions: the published ones, each other axis alone, two axes, and random ones.

    A layer that is too short for all devices is divided as far as possible.
    """
    for strategy, degrees in baselines(graph, device_count).items():
        if strategy != WHOLE:
            yield strategy, on_first_devices(graph, degrees)
    for axes in (
        *([Axis.HEIGHT], [Axis.WIDTH], [Axis.CHANNEL]),
        *([Axis.HEIGHT, Axis.WIDTH], [Axis.FILTER, Axis.CHANNEL]),
    ):
        count = round(device_count ** (1 / len(axes)))
        if count == 1:
            continue
        fitting = (
            {axis.value: next(n for n in (count, 2, 1) if n <= its.extents[axis]) for axis in axes}
            for its in graph.layers
        )
        division = on_first_devices(graph, (Degrees(**it) for it in fitting))
        yield " and ".join(axis.value for axis in axes), division
    for seed in range(RANDOM_PLANS):
        yield f"random {seed}", random_division(graph, device_count, seed)


def on_first_devices(graph: LayerGraph, degrees: Iterable[Degrees]) -> tuple[DividedLayer, ...]:
    """Puts divided layers on the first devices, and leaves whole ones out."""
    keys = keys_of_layers(graph, structure_of_layers(graph))
    return tuple(
        DividedLayer(key, layer.name, each, tuple(range(each.count)))
        for key, layer, each in zip(keys, graph.layers, degrees, strict=True)
        if each.count > 1
    )


def handed_layers(call: Callable[[], Any]) -> LayerGraph:
    """The layers of the largest graph that Grappler hands over during a first call."""
    graphs: list[graph_pb2.GraphDef] = []
    tf_interop.enable()
    # Only arguments of the function can be in shares, not those that it unpacks.
    with (
        calls_as_stock(),
        get_plugin().observe(lambda graph_def, _: graphs.append(graph_def)),
    ):
        call()
    largest = max(graphs, key=lambda graph: len(graph.node))
    return prepare(with_inferred_shapes(largest), shares="shares")


def plan_of(
    layers: LayerGraph, division: Iterable[DividedLayer], devices: Sequence[str]
) -> ParallelPlan:
    """A plan for one graph."""
    structure = structure_of_layers(layers)
    entry = GraphDivision(structure.fingerprint, structure.landmarks, tuple(division))
    return ParallelPlan(tuple(devices), (entry,))


def random_division(graph: LayerGraph, device_count: int, seed: int) -> tuple[DividedLayer, ...]:
    """A random division of each layer, on random devices."""
    source = random.Random(seed)
    divided = []
    keys = keys_of_layers(graph, structure_of_layers(graph))
    for key, layer in zip(keys, graph.layers, strict=True):
        choices = legal_degrees(layer, source.randint(1, device_count))
        if choices:
            degrees = source.choice(choices)
            devices = tuple(source.sample(range(device_count), degrees.count))
            divided.append(DividedLayer(key, layer.name, degrees, devices))
    return tuple(divided)


class Training:
    """A network with its training data, and the layers of its step as `graph`.

    Every run starts from the same state, and saves and restores a checkpoint before its last step.
    """

    def __init__(self, name: str, dtype: str, devices: Sequence[str], optimizer: str) -> None:
        """Builds a network of `NETWORKS` in float32 or float64."""
        self._devices = devices
        self._optimizer = optimizer
        tf.keras.utils.set_random_seed(0)
        self._model = NETWORKS[name]()
        if dtype == "float64":
            self._model = tf.keras.models.clone_model(self._model, clone_function=_in_float64)
        set_random_weights(self._model)
        # Variables include seeds of dropout, weights do not.
        self._start = [each.numpy() for each in self._model.variables]
        source = np.random.default_rng(1)
        shape = (BATCH, *self._model.input_shape[1:])
        self.images = source.uniform(-1, 1, shape).astype(dtype)
        self._labels = tf.constant(source.integers(0, CLASSES, BATCH))
        runs: list[Numbers] = []
        self.graph = handed_layers(lambda: runs.append(self.run()))
        [self.stock] = runs

    def run(self, images: np.ndarray | None = None, weights: Numbers | None = None) -> Numbers:
        """Trains; returns the losses, the change of each variable, and the optimizer's slots."""
        model = self._model
        start = self._start if weights is None else weights
        for variable, value in zip(model.variables, start, strict=True):
            variable.assign(value)
        optimizer = OPTIMIZERS[self._optimizer]()
        optimizer.build(model.trainable_variables)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)

        def step(batch: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                logits = model(batch, training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(self._labels, logits)
                loss = tf.reduce_mean(losses)
            optimizer.apply(tape.gradient(loss, model.trainable_variables))
            return loss

        function = tf.function(step, jit_compile=False, autograph=False)
        batch = tf.constant(self.images if images is None else images)
        losses = [function(batch).numpy() for _ in range(STEPS - 1)]
        with tempfile.TemporaryDirectory() as folder:
            path = checkpoint.save(f"{folder}/checkpoint")
            for variable in (*model.variables, *optimizer.variables):
                variable.assign(tf.zeros_like(variable))
            checkpoint.restore(path)
        losses.append(function(batch).numpy())
        changes = (b.numpy() - a for a, b in zip(start, model.variables, strict=True))
        of_trainable = [each for each in optimizer.variables if len(each.shape) > 0]
        return [np.array(losses), *changes, *(each.numpy() for each in of_trainable)]

    def run_divided(self, division: tuple[DividedLayer, ...]) -> tuple[Numbers, Any]:
        """Trains with divided layers, and also returns the graph's report."""
        get_plugin().forget_reports()
        tf_interop.enable(parallel=plan_of(self.graph, division, self._devices))
        try:
            numbers = self.run()
            status = tf_interop.status()
        finally:
            tf_interop.enable()
        if status.failures:
            raise ValueError(f"Expected no failure of the pass, got {status.failures}.")
        return numbers, max(status.divided_graphs, key=lambda each: each.node_count)

    def rounding(self) -> np.ndarray:
        """How far each number moves if pixels, weights or its own value change in the last bit."""
        moved = [
            self.run(images=nudge(self.images)),
            self.run(weights=[nudge(each) for each in self._start]),
        ]
        losses, rest = self.stock[0], self.stock[1:]
        variables = zip(self._start, rest[: len(self._start)], strict=True)
        last_bits = [change + (nudge(start) - start) for start, change in variables]
        slots = [nudge(each) for each in rest[len(self._start) :]]
        moved.append([losses, *last_bits, *slots])
        return np.max([distances(each, self.stock) for each in moved], 0)


def _in_float64(layer: Any) -> Any:
    if isinstance(layer, LocalResponseNormalization):  # TensorFlow has no kernel for it
        return tf.keras.layers.Identity(name=layer.name)
    return layer.__class__.from_config({**layer.get_config(), "dtype": "float64"})


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result of one division in one dtype.

    `moved` is the largest movement of a number: in float32 over the tolerance, in float64 relative.
    """

    strategy: str
    divided_count: int
    sent_mb: float
    shared_count: int
    moved: float


def compare(
    name: str,
    dtype: str,
    devices: Sequence[str],
    wanted: Sequence[str] = (),
    optimizer: str = "SGD",
) -> Iterator[Comparison]:
    """Trains a network with all strategies, or the `wanted` ones."""
    training = Training(name, dtype, devices, optimizer)
    rounding = training.rounding() if dtype == "float32" else None
    for strategy, division in strategies(training.graph, len(devices)):
        if wanted and strategy not in wanted:
            continue
        numbers, report = training.run_divided(division)
        moved = distances(numbers, training.stock)
        if rounding is not None:
            moved = np.array(
                [share_of_tolerance(*each) for each in zip(moved, rounding, strict=True)]
            )
        sent = sum(report.sent_bytes.values()) / 1e6
        yield Comparison(
            strategy, len(report.divided), sent, report.shared_variable_count, float(moved.max())
        )


def measure(name: str) -> dict[str, Any]:
    """A row of the result."""
    start = time.perf_counter()
    network, _, words = name.partition(" on ")
    count, _, optimizer = words.partition(", ")
    devices = make_devices(int(count))
    in_float32, in_float64 = (
        list(compare(network, dtype, devices, optimizer=optimizer))
        for dtype in ("float32", "float64")
    )
    return {
        "divisions": len(in_float32),
        "layers divided": f"{min(c.divided_count for c in in_float32)} to "
        f"{max(c.divided_count for c in in_float32)}",
        "sent MB": f"{min(c.sent_mb for c in in_float32):.3g} to "
        f"{max(c.sent_mb for c in in_float32):.3g}",
        "variables in shares": f"{min(c.shared_count for c in in_float32)} to "
        f"{max(c.shared_count for c in in_float32)}",
        "float32": max(each.moved for each in in_float32),
        "float64": max(each.moved for each in in_float64),
        "seconds": round(time.perf_counter() - start, 1),
    }


def agrees(row: dict[str, Any]) -> bool:
    """Whether rounding explains all differences."""
    return row["float32"] <= 1 and row["float64"] <= FLOAT64_TOLERANCE


CASE = Case(
    title="Same results: layers divided over devices",
    says="""
Networks that train on two and on four logical devices of the CPU, compared with training on one
device. Their layers are divided in many ways: data, model and "one weird trick" parallelism;
height, width and channels alone and in pairs; plans drawn at random. The comparison covers the
losses of three steps with a batch of eight, the change of all variables, and the optimizer's slots.
Before the third step a checkpoint is saved and restored. "Variables in shares" are those of which
devices keep shares from the second step on. "Float64" is the largest relative change; there
GoogLeNet lacks its local normalizations, for which TensorFlow has no kernel. "Float32" is the
largest change as a share of the tolerance, which is eight times the change that altered last bits
cause in stock TensorFlow, plus four roundings; a share above 1 would be an error. "Sent MB" is what
devices send each other in a step of float32.
""",
    networks=tuple(
        f"{network} on {kind}"
        for network in NETWORKS
        for kind in ("2, SGD", "2, momentum", "4, Adam")
    ),
    measure=measure,
    is_right=agrees,
)
