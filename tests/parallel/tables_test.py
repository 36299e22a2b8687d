"""Costs of divisions, against sums node by node and tensor by tensor."""

from __future__ import annotations

import collections
import random
from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf
from parallel.traced_layers import (
    convolution,
    gradients,
    image,
    layers_of,
    parameter,
    two_products,
)

from tf_interop.graph.ops import input_dtypes, output_dtypes
from tf_interop.parallel.costs.devices import Device, DeviceGraph
from tf_interop.parallel.costs.tables import DivisionCosts, configurations_of, find_costs
from tf_interop.parallel.layers.find import LayerGraph
from tf_interop.parallel.op_parts import OpPart, are_addends
from tf_interop.parallel.regions import Box, Part, PartedTensor, pieces_of, volume, whole
from tf_interop.parallel.types import Degrees

# Devices 1 and 2 share their cores, and no two links are alike.
DEVICES = DeviceGraph(
    tuple(
        Device(
            f"/device:GPU:{place}", 1e9 * (4 - place), 1e8, pool="both" if place in (1, 2) else None
        )
        for place in range(4)
    ),
    tuple(tuple(1e6 * (1 + a + 2 * b) for b in range(4)) for a in range(4)),
    tuple(tuple(1e-5 * (1 + 3 * a + b) for b in range(4)) for a in range(4)),
)


def network() -> list[tf.Tensor]:
    """The gradients of two branches and a product."""
    x = convolution(image(8, 6, 6, 3), 8, "stem")
    x = tf.nn.max_pool2d(x, 2, 2, "SAME", name="pool")
    x = tf.add(convolution(x, 4, "a"), convolution(x, 4, "b"), name="join")
    x = tf.matmul(tf.reshape(x, [8, 36]), parameter(36, 5, name="c/w"), name="c")
    return gradients(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.zeros(8, tf.int32), x))


def parts_of(layers: LayerGraph, node: int, degrees: Degrees) -> Sequence[OpPart]:
    """The parts of a node; if it is not divided, all of it on the first device."""
    operation = layers.operations[node]
    shapes = operation.input_shapes, operation.output_shapes
    reads, gives = (tuple(map(whole, each)) for each in shapes)
    undivided = layers.parts(node, Degrees())
    adds = undivided[0].multiply_adds if undivided else 0
    found = layers.parts(node, degrees)
    return [OpPart(0, reads, gives, lambda maker, _: (), adds)] if found is None else found


def shape_of(layers: LayerGraph, tensor: tuple[int, int]) -> tuple[int, ...]:
    node, port = tensor
    return layers.operations[node].output_shapes[port]


def compute_s(layers: LayerGraph, place: int, degrees: Degrees) -> float:
    """The time that the busiest pool of devices computes for a layer."""
    of_pools: dict[int, float] = collections.defaultdict(float)
    for node in layers.layers[place].nodes:
        dtypes = input_dtypes(layers.view.nodes[node]), output_dtypes(layers.view.nodes[node])
        for part in parts_of(layers, node, degrees):
            moved = sum(
                volume(box) * tf.as_dtype(dtype).size
                for boxes, of_boxes in zip((part.reads, part.gives), dtypes, strict=True)
                for box, dtype in zip(boxes, of_boxes, strict=True)
                if box is not None
            )
            device = DEVICES.devices[part.place]
            seconds = part.multiply_adds / device.multiply_adds_per_s
            of_pools[DEVICES.pools[part.place]] += max(seconds, moved / device.memory_bytes_per_s)
    return max(of_pools.values())


def sending_s(layers: LayerGraph, chosen: Sequence[Degrees]) -> float:
    """The time to send all tensors to each layer that reads them."""
    view, layer_of = layers.view, layers.layer_of
    reads: dict[tuple[tuple[int, int], int | None], set[tuple[int, Box]]]
    reads = collections.defaultdict(set)
    for node in range(len(view)):
        layer = layer_of.get(node)
        for at, tensor in enumerate(view.fanins[node]):
            if layer is None and tensor[0] in layer_of:
                reads[tensor, None].add((0, whole(shape_of(layers, tensor))))
            elif layer is not None and view.ops[tensor[0]] != "Const":
                for part in parts_of(layers, node, chosen[layer]):
                    if (box := part.reads[at]) is not None:
                        reads[tensor, layer].add((part.place, box))
    total = 0.0
    for (tensor, _), rows in reads.items():
        node, port = tensor
        if node in layer_of:
            parts = parts_of(layers, node, chosen[layer_of[node]])
            boxes = tuple(Part(part.place, part.gives[port]) for part in parts)
            given = PartedTensor(shape_of(layers, tensor), boxes, are_addends(parts))
        else:
            ends = np.max([[end for _, end in box] for _, box in rows], axis=0)
            given = PartedTensor((), (Part(0, tuple((0, int(end)) for end in ends)),))
        busy: dict[tuple[str, int], float] = collections.defaultdict(float)
        for device, box in rows:
            for piece in pieces_of(given, box):
                source = given.parts[piece.part].device
                if source != device:
                    seconds = volume(piece.box) * 4 / DEVICES.bytes_per_s[source][device]
                    seconds += DEVICES.latency_s[source][device]
                    busy["sent", source] += seconds
                    busy["received", device] += seconds
        total += max(busy.values(), default=0.0)
    return total


def test_costs_are_those_of_all_nodes_and_tensors() -> None:
    layers = layers_of(network)
    costs = find_costs(layers, DEVICES, [0] * len(layers.view))
    random_ = random.Random(0)
    for _ in range(30):
        chosen = [random_.choice(configurations_of(layer, 4)) for layer in layers.layers]
        expected = sending_s(layers, chosen)
        expected += sum(compute_s(layers, place, each) for place, each in enumerate(chosen))
        assert costs.seconds(costs.choice_of(chosen)) == pytest.approx(expected, rel=1e-5)


def costs_of_products(*, parameters_stay: bool = False) -> DivisionCosts:
    layers = layers_of(two_products, ["result"])
    home = [0] * len(layers.view)
    return find_costs(layers, DEVICES, home, parameters_stay=parameters_stay)


def test_memory_is_parameters_and_what_is_alive_when_most_is() -> None:
    costs = costs_of_products()
    # x, v and w stay; h and r are there at once.
    fixed, alive = 96 + 192 + 64, 128 + 128
    assert costs.memory(costs.choice_of([Degrees()] * 2)) == (fixed + alive, 0, 0, 0)
    halves = costs.choice_of([Degrees(sample=2)] * 2)
    assert costs.memory(halves) == (fixed + alive / 2, fixed - 96 / 2 + alive / 2, 0, 0)
    # The second layer gathers the other half of r.
    gathered = costs.choice_of([Degrees(sample=2), Degrees(filter=2)])
    assert costs.memory(gathered) == (
        fixed + alive / 2 + 128 / 2,
        48 + 192 + 32 + alive / 2 + 128 / 2,
        0,
        0,
    )


def test_where_parameters_stay_only_sums_of_them_are_sent() -> None:
    [_, last] = costs_of_products(parameters_stay=True).layers
    assert last.parameters_s[last.place_of(Degrees(sample=2))] == 0
    # A ring of two devices over the slower link: each sends the values of y once.
    slowest = min(DEVICES.bytes_per_s[0][1], DEVICES.bytes_per_s[1][0])
    latency_s = max(DEVICES.latency_s[0][1], DEVICES.latency_s[1][0])
    seconds = 4 * 2 * 4 / slowest + 2 * latency_s
    assert last.parameters_s[last.place_of(Degrees(channel=2))] == pytest.approx(seconds)


def test_configurations_have_two_axes_at_most_on_a_share_of_the_devices() -> None:
    [layer, *_] = layers_of(network).layers
    found = configurations_of(layer, 8)
    assert found[0] == Degrees()
    assert Degrees(sample=4, height=2) in found and Degrees(sample=2) in found
    assert {degrees.count for degrees in found} == {1, 2, 4, 8}
    assert Degrees(sample=2, height=2, filter=2) not in found
