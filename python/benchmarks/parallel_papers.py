"""Models the settings of two papers, networks divided layer by layer over GPUs; times the search.

Jia et al., "Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks" (ICML
2018), section 6: four nodes with four Tesla P100 each, NVLink within a node, and 100 Gb/s EDR
InfiniBand between nodes.

Dryden et al., "Channel and Filter Parallelism for Large-Scale CNN Training" (SC 2019): more GPUs
than images, on nodes with four Tesla V100 each and two links of EDR InfiniBand.
"""

from __future__ import annotations

import dataclasses
import fractions
import time
import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from python.benchmarks.result_file import Case
from tf_interop.graph.time_limit import collection_pause
from tf_interop.model.graphs import optimize_graph, trace
from tf_interop.parallel.costs.devices import Device, DeviceGraph, uniform_device_graph
from tf_interop.parallel.costs.step import DivisionCosts
from tf_interop.parallel.costs.tables import find_costs
from tf_interop.parallel.explain import DATA, WHOLE, baselines
from tf_interop.parallel.layers.find import LayerGraph
from tf_interop.parallel.layers.prepare import prepare
from tf_interop.parallel.lookup import batch_size_of_layers
from tf_interop.parallel.parted_graph import LayerDivision, part_graph

GPUS_OF_NODE = 4
GPUS = 16
IMAGES_OF_GPU = 32
IMAGES_AT_FIXED_BATCH = 8

# Assumed: the share of the peak that convolutions reach, the latency of a message, and the time
# that each of several at once adds.
UTILIZATION = 0.5
LATENCY_IN_NODE_S = 10e-6
LATENCY_BETWEEN_NODES_S = 20e-6
MESSAGE_S = 1e-6


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU in nodes of four, by the data sheets of NVIDIA and Mellanox.

    The four share the network of their node, and each is assumed to have a quarter. A link between
    two GPUs is one of NVLink.
    """

    multiply_adds_per_s: float
    memory_bytes_per_s: float
    nvlink_bytes_per_s: float
    network_bytes_per_s: float


P100 = Gpu(5.3e12, 732e9, 20e9, 12.5e9 / GPUS_OF_NODE)
V100 = Gpu(7.85e12, 900e9, 25e9, 25e9 / GPUS_OF_NODE)


def cluster(gpu: Gpu, count: int, reached: float = 1.0) -> DeviceGraph:
    """The GPUs of all nodes; sending reaches this share of the network's rate."""

    def between(near: float, far: float) -> tuple[tuple[float, ...], ...]:
        nodes = [each // GPUS_OF_NODE for each in range(count)]
        return tuple(tuple(near if a == b else far for b in nodes) for a in nodes)

    rate = UTILIZATION * gpu.multiply_adds_per_s
    names = (f"/job:worker/task:{each // 4}/device:GPU:{each % 4}" for each in range(count))
    return DeviceGraph(
        tuple(Device(name, rate, gpu.memory_bytes_per_s) for name in names),
        between(gpu.nvlink_bytes_per_s, reached * gpu.network_bytes_per_s),
        between(LATENCY_IN_NODE_S, LATENCY_BETWEEN_NODES_S),
        between(MESSAGE_S, MESSAGE_S),
    )


def training_layers(model: Any, batch_size: int) -> LayerGraph:
    """The layers of a step of gradient descent with the cross-entropy of a model's logits."""

    @tf.function
    def step(images: Any) -> Any:
        labels = tf.zeros(batch_size, tf.int32)
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        variables = model.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.01 * gradient)
        return loss

    images = tf.TensorSpec((batch_size, *model.input_shape[1:]))
    function = step.get_concrete_function(images)
    traced = trace(function, batch_size=batch_size)
    return prepare(optimize_graph(traced, None), shares="shares")


def alexnet() -> tf.keras.Model:
    """AlexNet as in Krizhevsky, "One weird trick for parallelizing …" (2014), without softmax."""
    layers = tf.keras.layers
    pool = {"pool_size": 3, "strides": 2}
    return tf.keras.Sequential(
        [
            tf.keras.Input((224, 224, 3)),
            layers.ZeroPadding2D(2),
            layers.Conv2D(64, 11, 4, activation="relu"),
            layers.MaxPool2D(**pool),
            layers.Conv2D(192, 5, padding="same", activation="relu"),
            layers.MaxPool2D(**pool),
            layers.Conv2D(384, 3, padding="same", activation="relu"),
            layers.Conv2D(256, 3, padding="same", activation="relu"),
            layers.Conv2D(256, 3, padding="same", activation="relu"),
            layers.MaxPool2D(**pool),
            layers.Flatten(),
            layers.Dense(4096, activation="relu"),
            layers.Dense(4096, activation="relu"),
            layers.Dense(1000),
        ]
    )


class Unchanged(tf.keras.layers.Layer):  # type: ignore[misc]
    """Stands in for a batch normalization, with the same arguments."""

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Returns its inputs."""
        return inputs


def without_normalization(model: Any, width: int = 1) -> Any:
    """A model without its batch normalizations, with `width` times as many filters."""

    def clone(layer: Any) -> Any:
        config = layer.get_config()
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            return Unchanged(name=layer.name)
        if isinstance(layer, tf.keras.layers.Conv2D):
            config["filters"] *= width
        return layer.__class__.from_config(config)

    return tf.keras.models.clone_model(model, clone_function=clone)


def resnet50(width: int = 1) -> Any:
    """ResNet50 without batch normalization, its filters for `width` times as many channels."""
    model = tf.keras.applications.ResNet50(weights=None, classifier_activation=None)
    return without_normalization(model, width)


RESIDUAL_NETWORKS = {"ResNet50": resnet50, "wide ResNet50": lambda: resnet50(2)}
_SHARES = ("1", "1/2", "1/4", "1/8")
NETWORKS = {
    "AlexNet": alexnet,
    "VGG-16": lambda: tf.keras.applications.VGG16(weights=None, classifier_activation=None),
    "Inception-v3": lambda: without_normalization(
        tf.keras.applications.InceptionV3(weights=None, classifier_activation=None)
    ),
}


def _images(layers: LayerGraph) -> list[int]:
    """The nodes that have the batch, or pad it. Each node of GPUs reads its own part."""
    batch_size = batch_size_of_layers(layers)
    shapes = [layers.properties.output_shape(node, 0) for node in range(len(layers.view))]
    return [
        node
        for node, shape in enumerate(shapes)
        if node not in layers.layer_of and shape and len(shape) == 4 and shape[0] == batch_size
    ]


def _costs(layers: LayerGraph, devices: DeviceGraph) -> DivisionCosts:
    return find_costs(layers, devices, [0] * len(layers.view), everywhere=_images(layers))


def _without_overlap(costs: DivisionCosts) -> DivisionCosts:
    """The costs if nothing were computed while parameters travel."""
    layers = [
        dataclasses.replace(
            layer,
            inner_s=layer.inner_s + layer.parameters_s.sum(axis=0),
            parameters_s=np.zeros_like(layer.parameters_s),
        )
        for layer in costs.layers
    ]
    return dataclasses.replace(costs, layers=tuple(layers))


def sent_bytes(layers: LayerGraph, division: Mapping[str, LayerDivision]) -> int:
    """The bytes sent between nodes in a step, without images."""
    images = _images(layers)
    return sum(
        each.byte_count
        for each in part_graph(layers, division, [0] * len(layers.view)).transfers
        if each.source // GPUS_OF_NODE != each.destination // GPUS_OF_NODE
        and each.tensor[0] not in images
    )


def measure(name: str) -> dict[str, Any]:
    """Models a network: how many times as fast as one GPU, and bytes sent between nodes."""
    network, _, reached = name.partition(" at ")
    share = float(fractions.Fraction(reached))
    layers = training_layers(NETWORKS[network](), IMAGES_OF_GPU * GPUS)
    devices = cluster(P100, GPUS, share)
    costs = _costs(layers, devices)
    choices = {each: costs.choice_of(degrees) for each, degrees in baselines(layers, GPUS).items()}
    one_s = costs.seconds(choices.pop(WHOLE))
    speedups = {each: one_s / costs.seconds(choice) for each, choice in choices.items()}
    result = costs.minimize()
    alone = _without_overlap(costs)
    alone_s = min(alone.seconds(choice) for choice in choices.values())
    choices["layer by layer"] = result.choice
    sent = {each: sent_bytes(layers, costs.division(choice)) for each, choice in choices.items()}
    return {
        **speedups,
        "layer by layer": one_s / result.cost,
        "to best other": one_s / result.cost / max(speedups.values()),
        "to best other, without overlap": alone_s / alone.minimize().cost,
        **{f"{each} GB": its / 1e9 for each, its in sent.items()},
        "search": str(result),
    }


CASE = Case(
    title="Layers over 16 GPUs, modelled",
    says="**Modelled, not measured**: training steps on four nodes of four P100, with 32 images "
    "for each GPU, if messages between nodes reach a share of the network's rate (100 Gb/s, which "
    "four GPUs share). The table has the throughput of each division of the layers, as a multiple "
    "of one GPU's, and what is sent between nodes in a step. The costs are those of "
    "tf_interop.parallelize: each GPU keeps a share of the parameters and updates it, and "
    "parameters and gradients travel while GPUs compute, or, without overlap, after that. Each "
    "node reads its own images. Batch normalization is left out. "
    "python/benchmarks/parallel_papers.py has the rates of the devices and marks those that are "
    "assumed. On such devices, Jia et al. (ICML 2018) measured layer by layer as 1.4 to 2.2 times "
    "as fast as the best of the others; it sent 1.3 to 23 times less. The model gives 1.6 for "
    "AlexNet at the full rate and 2.3 at a quarter of it, and 1.4 and 1.3 for the others at an "
    "eighth: the rate that messages reach between nodes is the assumption that decides. Where "
    "everything that data parallelism sends is hidden, the plan is the same and sends as much; "
    "elsewhere it sends 1.3 to 47 times less than data parallelism.",
    networks=tuple(f"{network} at {share}" for network in NETWORKS for share in _SHARES),
    measure=measure,
)


def measure_scaling(name: str) -> dict[str, Any]:
    """Models a network with few images: times as fast as one GPU, and the memory of a GPU."""
    network, _, devices_in_words = name.partition(" on ")
    count = int(devices_in_words)
    layers = training_layers(RESIDUAL_NETWORKS[network](), IMAGES_AT_FIXED_BATCH)
    costs = _costs(layers, cluster(V100, count))
    by_strategy = baselines(layers, count)
    whole, data = (costs.choice_of(by_strategy[each]) for each in (WHOLE, DATA))
    result = costs.minimize()
    one_s = costs.seconds(whole)
    return {
        "data": one_s / costs.seconds(data),
        "layer by layer": one_s / result.cost,
        "to_data": costs.seconds(data) / result.cost,
        "data MB": max(costs.memory(data)) / 1e6,
        "layer by layer MB": max(costs.memory(result.choice)) / 1e6,
        "search": str(result),
    }


SCALING_CASE = Case(
    title="More GPUs than images, modelled",
    says="**Modelled, not measured**: training steps of 8 images in all on nodes of four V100, as "
    "multiples of one GPU's throughput, and the memory of the GPU that needs most: parameters, and "
    "activations at the graph's peak. Dividing the batch ends at eight GPUs. It gains little "
    "there, because all gradients take longer to send than an image to compute. Layer by layer "
    "divides images, channels and filters, too, or leaves layers on fewer GPUs. The second network "
    "has twice as many channels. On such devices, Dryden et al. (SC 2019) measured training of "
    "residual networks as up to 4.1 times as fast as by dividing the batch. Batch normalization is "
    "left out. Parameters and gradients travel while GPUs compute.",
    networks=tuple(
        f"{network} on {count}"
        for network in ("ResNet50", "wide ResNet50")
        for count in (4, 8, 16, 32)
    ),
    measure=measure_scaling,
)


def measure_time(name: str) -> dict[str, Any]:
    """Times finding the costs of all configurations and searching them, on one core."""
    network, _, devices_in_words = name.partition(" on ")
    count = int(devices_in_words)
    model = getattr(tf.keras.applications, network)(weights=None, classifier_activation=None)
    layers = training_layers(model, batch_size=32)
    devices = uniform_device_graph(
        [f"/device:GPU:{each}" for each in range(count)],
        multiply_adds_per_s=3e12,
        memory_bytes_per_s=5e11,
        bytes_per_s=1e10,
        latency_s=1e-5,
    )
    with collection_pause():  # as make_division does
        start = time.process_time()
        costs = _costs(layers, devices)
        costs_s = time.process_time() - start
        start = time.process_time()
        result = costs.minimize()
        search_s = time.process_time() - start
    tables = {id(each): each.nbytes for each in costs.edges.values()}
    tracemalloc.start()
    costs.minimize()
    _, peak_bytes = tracemalloc.get_traced_memory()
    return {
        "layers": len(layers.layers),
        "edges": len(costs.edges),
        "most_configurations": max(len(each.configurations) for each in costs.layers),
        "width": result.width,
        "costs_seconds": costs_s,
        "search_seconds": search_s,
        "costs_megabytes": sum(tables.values()) / 1e6,
        "search_megabytes": peak_bytes / 1e6,
        "search": str(result),
    }


TIME_CASE = Case(
    title="Time and memory of dividing layers",
    says="The cost of planning: CPU time and memory to find the costs of all divisions of all "
    "layers, and to search for the cheapest. Training steps of 32 images; the number after a name "
    'is that of the devices. "Width" is the most neighbours that a layer has when the search '
    "eliminates it. The devices' rates are made up, so the gain of the plans is left out.",
    networks=tuple(
        f"{network} on {count}"
        for network in ("InceptionV3", "ResNet50", "NASNetMobile")
        for count in (4, 16)
    ),
    measure=measure_time,
)
