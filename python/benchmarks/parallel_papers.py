"""Models the papers' setting, networks divided layer by layer over 16 GPUs, and times the search.

The devices are those of Jia et al., "Exploring Hidden Dimensions in Parallelizing Convolutional
Neural Networks" (ICML 2018), section 6: four nodes with four Tesla P100 each, NVLink within a node,
and 100 Gb/s EDR InfiniBand between nodes.
"""

from __future__ import annotations

import time
import tracemalloc
from collections import Counter
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from python.benchmarks.result_file import Case
from tf_interop.graph.time_limit import collection_pause
from tf_interop.model.graphs import optimize_graph, trace
from tf_interop.parallel.costs.devices import Device, DeviceGraph, uniform_device_graph
from tf_interop.parallel.costs.tables import find_costs
from tf_interop.parallel.explain import WHOLE, baselines
from tf_interop.parallel.layers.find import LayerGraph
from tf_interop.parallel.layers.prepare import prepare
from tf_interop.parallel.parted_graph import LayerDivision, part_graph
from tf_interop.parallel.regions import volume
from tf_interop.parallel.search.minimize import minimize

GPUS_OF_NODE = 4
NODES = 4
IMAGES_OF_GPU = 32

# NVIDIA's data sheet of the Tesla P100 with NVLink: 10.6 TFLOP/s in single precision, 732 GB/s.
PEAK_MULTIPLY_ADDS_PER_S = 5.3e12
MEMORY_BYTES_PER_S = 732e9
# A link of NVLink 1 carries 20 GB/s in each direction; between two GPUs one link is assumed.
NVLINK_BYTES_PER_S = 20e9
# 100 Gb/s, which the four GPUs of a node share; each is assumed to have a quarter.
INFINIBAND_BYTES_PER_S = 12.5e9 / GPUS_OF_NODE
# Assumed: the share of the peak that convolutions reach, and the latency of a message.
UTILIZATION = 0.5
NVLINK_LATENCY_S = 10e-6
INFINIBAND_LATENCY_S = 20e-6


def p100_cluster() -> DeviceGraph:
    """The GPUs of all nodes."""
    count = GPUS_OF_NODE * NODES

    def between(near: float, far: float) -> tuple[tuple[float, ...], ...]:
        nodes = [each // GPUS_OF_NODE for each in range(count)]
        return tuple(tuple(near if a == b else far for b in nodes) for a in nodes)

    rate = UTILIZATION * PEAK_MULTIPLY_ADDS_PER_S
    names = (f"/job:worker/task:{each // 4}/device:GPU:{each % 4}" for each in range(count))
    return DeviceGraph(
        tuple(Device(name, rate, MEMORY_BYTES_PER_S) for name in names),
        between(NVLINK_BYTES_PER_S, INFINIBAND_BYTES_PER_S),
        between(NVLINK_LATENCY_S, INFINIBAND_LATENCY_S),
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
    return prepare(optimize_graph(traced, None))


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


def without_normalization(model: Any) -> Any:
    """A model without its batch normalizations."""

    def clone(layer: Any) -> Any:
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            return Unchanged(name=layer.name)
        return layer.__class__.from_config(layer.get_config())

    return tf.keras.models.clone_model(model, clone_function=clone)


NETWORKS = {
    "AlexNet": alexnet,
    "VGG-16": lambda: tf.keras.applications.VGG16(weights=None, classifier_activation=None),
    "Inception-v3": lambda: without_normalization(
        tf.keras.applications.InceptionV3(weights=None, classifier_activation=None)
    ),
}


def sent_bytes(layers: LayerGraph, division: Mapping[str, LayerDivision]) -> int:
    """The bytes that all devices send in a step; all-reduce adds the gradients of parameters."""
    view, layer_of = layers.view, layers.layer_of
    parted = part_graph(layers, division, [0] * len(view))
    read = {tensor for node in layer_of for tensor in view.fanins[node] if tensor[0] in layer_of}
    total = sum(each.byte_count for each in parted.transfers if each.tensor in read)
    for tensor, its in parted.tensors.items():
        if its.is_sum and tensor not in read:
            # With n addends each device sends 2 (n - 1) / n.
            for box, count in Counter(part.box for part in its.parts).items():
                total += 2 * (count - 1) * volume(box) * parted.dtypes[tensor].size
    return total


def measure(name: str) -> dict[str, Any]:
    """Models a network: how many times as fast as one GPU, and bytes sent."""
    devices = p100_cluster()
    count = len(devices.devices)
    layers = training_layers(NETWORKS[name](), IMAGES_OF_GPU * count)
    costs = find_costs(layers, devices, [0] * len(layers.view), parameters_stay=True)
    choices = {each: costs.choice_of(degrees) for each, degrees in baselines(layers, count).items()}
    result = minimize(costs.problem())
    choices["layer by layer"] = result.choice
    one_s = costs.seconds(choices.pop(WHOLE))
    speedups = {each: one_s / costs.seconds(choice) for each, choice in choices.items()}
    best, *others = sorted(speedups.values(), reverse=True)
    sent = {each: sent_bytes(layers, costs.division(choice)) for each, choice in choices.items()}
    return {
        "layers": len(layers.layers),
        **speedups,
        "to_best_other": best / others[0],
        **{f"{each} GB": its / 1e9 for each, its in sent.items()},
        "search": str(result),
    }


CASE = Case(
    title="Layers over 16 GPUs, modelled",
    says="**Modelled, not measured**: training steps on four nodes of four P100, with 32 images "
    "for each GPU. The table has the throughput of each division of the layers, as a multiple of "
    "one GPU's, and what all GPUs send in a step. Each GPU keeps the parameters of its parts, "
    "all-reduce adds gradients, and nothing overlaps. Batch normalization is left out. "
    "python/benchmarks/parallel_papers.py has the rates of the devices and marks those that are "
    "assumed. On such devices, Jia et al. (ICML 2018) measured layer by layer as 1.4 to 2.2 times "
    "as fast as the best of the others; it sent 1.3 to 23.0 times less than data and model "
    "parallelism.",
    networks=tuple(NETWORKS),
    measure=measure,
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
        costs = find_costs(layers, devices, [0] * len(layers.view))
        costs_s = time.process_time() - start
        start = time.process_time()
        result = minimize(costs.problem())
        search_s = time.process_time() - start
    tables = {id(each): each.nbytes for each in costs.edges.values()}
    tracemalloc.start()
    minimize(costs.problem())
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
