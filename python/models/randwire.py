"""RandWire: a randomly wired network after Xie et al., arXiv:1904.01569 (2019), small regime.

Three stages of the network are random graphs of the Watts-Strogatz model WS(4, 0.75) with 32 nodes.
Each has its own wiring, made from a seed. For images of 224 x 224, with C = 78:

| layer       | what                        | output       |
|-------------|-----------------------------|--------------|
| conv1       | 3x3 / 2, C/2                | 112 x 112    |
| conv2       | 3x3 / 2, C                  | 56 x 56      |
| conv3       | random wiring, 32 nodes, C  | 28 x 28      |
| conv4       | random wiring, 32 nodes, 2C | 14 x 14      |
| conv5       | random wiring, 32 nodes, 4C | 7 x 7        |
| classifier  | 1x1, 1280; average; 1000    | 1 x 1        |

The nodes of a graph are put in the order of their places on the ring, and every edge leads from
the earlier to the later one, so that there is no cycle. A node adds up its inputs, with weights
that are learned and kept positive by a sigmoid, then computes ReLU, a separable 3x3 convolution and
batch normalization. Nodes without an earlier neighbour read the stage's input with stride 2; the
outputs of those without a later one are averaged.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import tensorflow as tf

from python.models.googlenet import classifier

NODES = 32
NEIGHBOURS = 4
PROBABILITY = 0.75
CHANNELS = 78


@dataclasses.dataclass(frozen=True, slots=True)
class Wiring:
    """A directed graph without cycles.

    Attributes:
        node_count: nodes are numbered from 0.
        edges: from a node to a later one, sorted.
    """

    node_count: int
    edges: tuple[tuple[int, int], ...]

    def sources(self, node: int) -> list[int]:
        """The nodes that a node reads."""
        return [source for source, target in self.edges if target == node]

    @property
    def outputs(self) -> list[int]:
        """The nodes that no other reads."""
        read = {source for source, _ in self.edges}
        return [node for node in range(self.node_count) if node not in read]


def watts_strogatz(
    seed: int,
    node_count: int = NODES,
    neighbours: int = NEIGHBOURS,
    probability: float = PROBABILITY,
) -> Wiring:
    """A random graph of Watts and Strogatz (1998), with its edges directed.

    Nodes stand on a ring, joined to their `neighbours` nearest. Then, once around for each
    distance, each edge to a node further on is rewired with `probability`, to a node that is not
    yet a neighbour. The same arguments give the same graph.

    Raises:
        ValueError: `neighbours` is odd or not below `node_count`.
    """
    if neighbours % 2 or not 0 < neighbours < node_count:
        raise ValueError(
            f"Expected an even number of neighbours below {node_count}, got {neighbours}."
        )
    generator = random.Random(seed)
    joined: list[set[int]] = [set() for _ in range(node_count)]
    distances = range(1, neighbours // 2 + 1)
    for distance in distances:
        for node in range(node_count):
            other = (node + distance) % node_count
            joined[node].add(other)
            joined[other].add(node)
    for distance in distances:
        for node in range(node_count):
            other = (node + distance) % node_count
            free = [each for each in range(node_count) if each != node and each not in joined[node]]
            # An edge of the ring is moved even if it was rewired to this node before.
            if other in joined[node] and free and generator.random() < probability:
                chosen = generator.choice(free)
                joined[node].remove(other)
                joined[other].remove(node)
                joined[node].add(chosen)
                joined[chosen].add(node)
    edges = {
        (min(node, other), max(node, other)) for node in range(node_count) for other in joined[node]
    }
    return Wiring(node_count, tuple(sorted(edges)))


@tf.keras.utils.register_keras_serializable(package="randwire")
class WeightedSum(tf.keras.layers.Layer):  # type: ignore[misc]
    """Adds up images `[N, H, W, C]`, each by a learned weight between 0 and 1."""

    def build(self, input_shape: Any) -> None:
        """Makes a weight for each image."""
        self.weight = self.add_weight(name="weight", shape=(len(input_shape),), initializer="zeros")

    def call(self, inputs: Any) -> Any:
        """Adds up the images."""
        weights = tf.unstack(tf.sigmoid(tf.cast(self.weight, inputs[0].dtype)))
        return tf.add_n([image * weight for image, weight in zip(inputs, weights, strict=True)])


def randwire(
    image_size: tuple[int, int] = (224, 224),
    classes: int = 1000,
    *,
    seed: int = 0,
    channels: int = CHANNELS,
    nodes: int = NODES,
) -> tf.keras.Model:
    """Builds a RandWire network with random weights.

    Args:
        image_size: height and width of an image.
        classes: how many classes to tell apart.
        seed: of the three wirings; the same seed gives the same network.
        channels: C of the table.
        nodes: of each wiring.

    Returns:
        A model from images `[N, H, W, 3]` to probabilities `[N, classes]`.
    """
    image = tf.keras.Input((*image_size, 3), name="image")
    x = _convolution(image, channels // 2, 3, "conv1", strides=2)
    x = tf.keras.layers.ReLU(name="conv2_relu")(x)
    x = _convolution(x, channels, 3, "conv2", strides=2)
    for number, factor in enumerate((1, 2, 4)):
        # A different wiring for each stage.
        wiring = watts_strogatz(3 * seed + number, nodes)
        x = _wired_stage(x, wiring, channels * factor, f"conv{number + 3}")
    x = tf.keras.layers.ReLU(name="classifier_relu1")(x)
    x = _convolution(x, 1280, 1, "classifier")
    x = tf.keras.layers.ReLU(name="classifier_relu2")(x)
    x = tf.keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return classifier(image, tf.keras.layers.Dense(classes, name="logits")(x), "randwire")


def _wired_stage(x: Any, wiring: Wiring, channels: int, name: str) -> Any:
    values: list[Any] = []
    for node in range(wiring.node_count):
        sources = [values[source] for source in wiring.sources(node)]
        values.append(
            _node(sources or [x], channels, f"{name}_node{node}", strides=1 if sources else 2)
        )
    outputs = [values[node] for node in wiring.outputs]
    if len(outputs) == 1:
        return outputs[0]
    return tf.keras.layers.Average(name=f"{name}_output")(outputs)


def _node(sources: list[Any], channels: int, name: str, *, strides: int) -> Any:
    x = WeightedSum(name=f"{name}_sum")(sources) if len(sources) > 1 else sources[0]
    x = tf.keras.layers.ReLU(name=f"{name}_relu")(x)
    layer = tf.keras.layers.SeparableConv2D(
        channels, 3, strides, padding="same", use_bias=False, name=f"{name}_conv"
    )
    return tf.keras.layers.BatchNormalization(name=f"{name}_bn")(layer(x))


def _convolution(x: Any, filters: int, size: int, name: str, strides: int = 1) -> Any:
    x = tf.keras.layers.Conv2D(filters, size, strides, padding="same", use_bias=False, name=name)(x)
    return tf.keras.layers.BatchNormalization(name=f"{name}_bn")(x)
