"""Costs of divisions, against sums node by node, tensor by tensor and piece by piece."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
import tensorflow as tf
from convolution_values import CONFIGURATION
from parallel.traced_layers import (
    convolution,
    gradients,
    image,
    layers_of,
    parameter,
    two_products,
)
from profile_values import make_algorithm, make_profile

from tf_interop.graph.ops import input_dtypes, output_dtypes
from tf_interop.parallel.costs.devices import Device, DeviceGraph
from tf_interop.parallel.costs.part_tables import MeasuredParts
from tf_interop.parallel.costs.step import DivisionCosts, LayerCosts
from tf_interop.parallel.costs.tables import configurations_of, find_costs
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
    tuple(tuple(1e-6 * (2 + a + 3 * b) for b in range(4)) for a in range(4)),
    busy_s_of_message=3e-6,
    busy_s_of_byte=2e-7,
    call_s=1e-4,
    slowdown=1.5,
    memory_slowdown=1.25,
)
Row = tuple[int, Box]
"""A device, and a box that it computes or reads."""


def sending_s(given: PartedTensor, reads: Iterable[Row]) -> tuple[float, float, float]:
    """The times of the busiest link and cores for a float32 tensor, and the longest latency."""
    busy: dict[tuple[str, int], float] = collections.defaultdict(float)
    copying: dict[int, float] = collections.defaultdict(float)
    longest = 0.0
    for device, box in reads:
        for piece in pieces_of(given, box):
            source = given.parts[piece.part].device
            if source != device:
                seconds = volume(piece.box) * 4 / DEVICES.bytes_per_s[source][device]
                seconds += DEVICES.message_s[source][device]
                longest = max(longest, DEVICES.latency_s[source][device])
                busy["sent", source] += seconds
                busy["received", device] += seconds
                for each in (source, device):
                    copying[each] += DEVICES.busy_s_of_message
                    copying[each] += DEVICES.busy_s_of_byte * volume(piece.box) * 4
    return max(busy.values(), default=0.0), max(copying.values(), default=0.0), longest


def network() -> list[tf.Tensor]:
    """The gradients of branches and other layers, whose extents no number of devices divides."""
    first = convolution(image(9, 13, 11, 3), 10, "first", strides=2)
    depthwise = tf.nn.depthwise_conv2d(
        first, parameter(3, 3, 10, 1, name="depthwise/w"), [1] * 4, "SAME"
    )
    second = convolution(tf.pad(depthwise, [[0, 0], [1, 1], [0, 2], [0, 0]]), 6, "second")
    pooled = tf.nn.max_pool2d(second, 3, 2, "VALID")
    x = tf.add(convolution(pooled, 4, "a"), convolution(pooled, 4, "b"), name="join")
    x = tf.concat([x, second[:, 1::2, 1:4, :]], 3)
    x = x - tf.reduce_mean(x, [0, 1, 2], keepdims=True)
    x = tf.nn.avg_pool2d(x, 2, 1, "SAME")
    x = convolution(x, 12, "third", size=2)
    x = tf.reduce_mean(x, [1, 2]) @ parameter(12, 7, name="last/w")
    labels = tf.zeros(9, tf.int32)
    return gradients(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x))


def home_of(node: int) -> int:
    """The device of an undivided node."""
    return node % len(DEVICES.devices)


def parts_of(layers: LayerGraph, node: int, degrees: Degrees) -> Sequence[OpPart]:
    """The parts of a node; if it is not divided, all of it on its own device."""
    found = layers.parts(node, degrees)
    if found is not None:
        return found
    operation, undivided = layers.operations[node], layers.parts(node, Degrees())
    reads, gives = (
        tuple(map(whole, each)) for each in (operation.input_shapes, operation.output_shapes)
    )
    adds = undivided[0].multiply_adds if undivided else 0
    return [OpPart(reads, gives, lambda maker, _: (), adds, home_of(node))]


def phase_of(layers: LayerGraph, node: int) -> int:
    """0 in the forward pass, 1 in the backward pass."""
    return int(node in layers.gradients)


def computing_s(layers: LayerGraph, place: int, degrees: Degrees) -> list[float]:
    """The computing time of a layer on the busiest pool of devices, by phase."""
    of_pools: list[dict[int, float]] = [collections.defaultdict(float) for _ in range(2)]
    slowdown, memory_slowdown = (
        (DEVICES.slowdown, DEVICES.memory_slowdown) if degrees.count > 1 else (1.0, 1.0)
    )
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
            of_pools[phase_of(layers, node)][DEVICES.pools[part.place]] += max(
                part.multiply_adds / device.multiply_adds_per_s * slowdown,
                moved / device.memory_bytes_per_s * memory_slowdown,
            )
    return [max(its.values(), default=0.0) for its in of_pools]


def sending_all_s(
    layers: LayerGraph, chosen: Sequence[Degrees]
) -> tuple[float, np.ndarray, np.ndarray]:
    """The times to send all tensors to each layer that reads them.

    Of messages that are awaited, and of links and of cores for the others, by phase and layer.
    """
    view, layer_of = layers.view, layers.layer_of
    reads: dict[tuple[tuple[int, int], int | None], set[Row]] = collections.defaultdict(set)
    given: dict[tuple[int, int], PartedTensor] = {}
    for node in range(len(view)):
        layer = layer_of.get(node)
        for at, tensor in enumerate(view.fanins[node]):
            source, port = tensor
            if source in layer_of:
                shape = layers.operations[source].output_shapes[port]
                parts = parts_of(layers, source, chosen[layer_of[source]])
                boxes = tuple(Part(part.place, part.gives[port]) for part in parts)
                given[tensor] = PartedTensor(shape, boxes, are_addends(parts))
                # Nobody needs the sizes of gradients, because their parts know them.
                if layer is None and view.ops[node] not in ("Shape", "ShapeN"):
                    reads[tensor, None].add((home_of(node), whole(shape)))
            elif layer is not None:
                shape = layers.operations[node].input_shapes[at]
                given[tensor] = PartedTensor(shape, (Part(home_of(source), whole(shape)),))
            if layer is not None and view.ops[source] != "Const":
                for part in parts_of(layers, node, chosen[layer]):
                    if (box := part.reads[at]) is not None:
                        reads[tensor, layer].add((part.place, box))
    awaited_s = 0.0
    aside_s, copying_s = np.zeros((2, 2, len(layers.layers)))
    for (tensor, layer), rows in reads.items():
        # Nothing waits for messages from or to nodes in no layer.
        of_links, of_cores, latency_s = sending_s(given[tensor], rows)
        if layer is not None and tensor[0] in layer_of:
            awaited_s += max(of_links, of_cores) + latency_s
        else:
            its = phase_of(layers, tensor[0]), layer_of[tensor[0]] if layer is None else layer
            aside_s[its] += of_links
            copying_s[its] += of_cores
    return awaited_s, aside_s, copying_s


def test_only_the_times_of_computing_are_scaled_to_a_measured_step() -> None:
    costs = costs_of_products()
    scaled = costs.scaled_to(3.0)
    assert scaled.seconds([0, 0]) == pytest.approx(3.0)
    for before, after in zip(costs.layers, scaled.layers, strict=True):
        factor = 3.0 / costs.times([0, 0]).compute_s.sum()
        np.testing.assert_allclose(after.compute_s, before.compute_s * factor)
        np.testing.assert_array_equal(after.parameters_s, before.parameters_s)
    assert scaled.edges is costs.edges


def test_costs_are_sums_over_all_nodes_and_tensors() -> None:
    layers = layers_of(network)
    costs = find_costs(layers, DEVICES, list(map(home_of, range(len(layers.view)))))
    random_ = random.Random(0)
    for _ in range(30):
        chosen = [random_.choice(configurations_of(layer, 4)) for layer in layers.layers]
        awaited_s, aside_s, copying_s = sending_all_s(layers, chosen)
        of_layers = [computing_s(layers, place, each) for place, each in enumerate(chosen)]
        compute_s = np.array(of_layers).T + copying_s
        expected = awaited_s
        arrived_s = now_s = 0.0
        for sending_s, computing in zip(aside_s[0], compute_s[0], strict=True):
            arrived_s += sending_s  # while devices compute the layers before
            now_s = max(now_s, arrived_s) + computing
        expected += now_s
        sent_s = now_s = 0.0
        for sending_s, computing in zip(aside_s[1, ::-1], compute_s[1, ::-1], strict=True):
            now_s += computing
            sent_s = max(sent_s, now_s) + sending_s
        expected += max(sent_s, now_s)
        if any(each.count > 1 for each in chosen):
            expected += DEVICES.call_s
        assert costs.seconds(costs.choice_of(chosen)) == pytest.approx(expected, rel=1e-5)


def test_gradients_belong_to_the_backward_pass() -> None:
    layers = layers_of(network)
    names = [layers.view.names[node] for node in layers.gradients]
    assert all(name.startswith("gradients/") for name in names)
    forward = layers.layer_of.keys() - layers.gradients
    heads = {"Conv2D", "DepthwiseConv2dNative", "MatMul", "MaxPool", "AvgPool"}
    assert {layers.view.ops[node] for node in forward} & heads == heads
    # Only what depends on no operation with a gradient's name is left.
    late = {layers.view.ops[node] for node in forward if "gradients" in layers.view.names[node]}
    assert not {op for op in late if "Grad" in op or "Backprop" in op or op == "MatMul"}


def costs_of_products() -> DivisionCosts:
    layers = layers_of(two_products, ["result"])
    return find_costs(layers, DEVICES, [0] * len(layers.view))


_MADE_LAYERS = 7


def made_costs(seed: int, of_parameters: float) -> DivisionCosts:
    """Costs of a ring of layers. With 1 `of_parameters`, they are about as long as computing."""
    numbers = np.random.default_rng(seed)
    configurations = tuple(Degrees(sample=1 + each) for each in range(3))
    layers = tuple(
        LayerCosts(
            str(place),
            configurations,
            compute_s=numbers.random((2, 3)),
            inner_s=0.2 * numbers.random(3),
            parameters_s=of_parameters * numbers.random((2, 3)),
            copying_s=0.2 * numbers.random((2, 3)),
            memory=np.arange(3.0)[:, np.newaxis],
            are_measured=np.ones(3, np.bool_),
        )
        for place in range(_MADE_LAYERS)
    )
    pairs = [(place, place + 1) for place in range(_MADE_LAYERS - 1)] + [(0, _MADE_LAYERS - 1)]
    edges = {pair: 0.2 * numbers.random((3, 3)) for pair in pairs}
    return DivisionCosts(layers, edges, call_s=0.1)


@pytest.mark.parametrize("of_parameters", [0.0, 1.0])
@pytest.mark.parametrize("limits", [None, [6.0]])
def test_the_longer_of_computing_and_parameters_is_minimized(
    of_parameters: float, limits: list[float] | None
) -> None:
    most = 1.1 if limits and of_parameters else 1.03 if of_parameters else 1.001
    for seed in range(5):
        costs = made_costs(seed, of_parameters)
        found = costs.minimize(limits)
        fits = [
            choice
            for choice in itertools.product(range(3), repeat=_MADE_LAYERS)
            if limits is None or sum(choice) <= limits[0]
        ]
        least = min(map(costs.seconds, fits))
        assert found.choice in fits
        assert found.cost == pytest.approx(costs.seconds(found.choice))
        assert found.bound <= least * 1.001
        # Few layers leave a gap between what weights reach and the least; many leave less.
        assert least * (1 - 1e-9) <= found.cost <= least * most
        assert found.is_exact or of_parameters
        assert found.bound >= 0.8 * least


@pytest.mark.parametrize("seed", [9, 146])
def test_more_devices_make_no_step_longer(seed: int) -> None:
    costs = made_costs(seed, of_parameters=2.0)
    of_two = [
        dataclasses.replace(
            layer,
            configurations=layer.configurations[:2],
            **{name: getattr(layer, name)[..., :2] for name in ("compute_s", "inner_s")},
            **{name: getattr(layer, name)[..., :2] for name in ("parameters_s", "copying_s")},
            memory=layer.memory[:2],
        )
        for layer in costs.layers
    ]
    edges = {pair: seconds[:2, :2] for pair, seconds in costs.edges.items()}
    on_two = DivisionCosts(tuple(of_two), edges, costs.call_s).minimize()
    assert costs.minimize().cost <= on_two.cost * 1.001


def test_memory_holds_parameters_and_live_tensors_at_the_peak() -> None:
    costs = costs_of_products()
    # x, v and w stay; the peak has h and r.
    fixed, alive = 96 + 192 + 64, 128 + 128
    assert costs.memory(costs.choice_of([Degrees()] * 2)) == (fixed + alive, 0, 0, 0)
    halves = costs.choice_of([Degrees(sample=2)] * 2)
    assert costs.memory(halves) == (fixed + alive / 2, fixed - 96 / 2 + alive / 2, 0, 0)
    # The second layer gathers the other half of r.
    gathered = costs.choice_of([Degrees(sample=2), Degrees(filter=2)])
    both = alive / 2 + 128 / 2
    assert costs.memory(gathered) == (fixed + both, 48 + 192 + 32 + both, 0, 0)


def test_what_is_everywhere_is_not_sent() -> None:
    layers = layers_of(two_products, ["result"])
    home = [0] * len(layers.view)
    batch = layers.view.index_of["x"]
    [sent, _] = find_costs(layers, DEVICES, home).layers
    [there, _] = find_costs(layers, DEVICES, home, everywhere=[batch]).layers
    place = sent.place_of(Degrees(sample=2))
    seconds = 4 * 4 * 6 / 2 / DEVICES.bytes_per_s[0][1] + DEVICES.message_s[0][1]
    less_s = sent.parameters_s[:, place] - there.parameters_s[:, place]
    assert less_s == pytest.approx([seconds, 0])
    # Each device holds the samples that it reads, and nothing else.
    assert sent.memory[place][0] - there.memory[place][0] == 4 * 4 * 6 / 2
    assert sent.memory[place][1] == there.memory[place][1]


def test_sizes_of_gradients_need_no_tensor() -> None:
    def network_with_sizes() -> list[tf.Tensor]:
        x = convolution(image(4, 8, 8, 4), 8, "a")
        sizes = tf.shape(tf.nn.relu(x, name="r"), name="sizes")
        return [x, sizes]

    layers = layers_of(network_with_sizes, ["sizes"])
    [costs, *_] = find_costs(layers, DEVICES, [0] * len(layers.view)).layers
    halves = costs.place_of(Degrees(sample=2))
    image_s = 4 * 4 * 8 * 8 * 4 / 2 / DEVICES.bytes_per_s[0][1] + DEVICES.message_s[0][1]
    assert costs.parameters_s[0, halves] >= image_s
    with_result = find_costs(
        layers_of(lambda: convolution(image(4, 8, 8, 4), 8, "a")), DEVICES, [0] * 99
    ).layers[0]
    assert costs.parameters_s[:, halves] == pytest.approx(with_result.parameters_s[:, halves])


def test_layers_wait_for_whole_nodes_between_them() -> None:
    def network_with_roll() -> tf.Tensor:
        return convolution(tf.roll(convolution(image(4, 8, 8, 4), 8, "a"), 1, 0), 8, "b")

    layers = layers_of(network_with_roll)
    first, second = find_costs(layers, DEVICES, [0] * len(layers.view)).layers
    halves = first.place_of(Degrees(sample=2))
    half_bytes = 4 * 4 * 8 * 8 * 8 / 2
    for costs, (source, target) in ((first, (1, 0)), (second, (0, 1))):
        sending_s = half_bytes / DEVICES.bytes_per_s[source][target]
        sending_s += DEVICES.message_s[source][target] + DEVICES.latency_s[source][target]
        assert costs.inner_s[halves] == pytest.approx(sending_s)
    # The image and the filter travel aside.
    aside_s = half_bytes / 2 / DEVICES.bytes_per_s[0][1]
    assert aside_s < first.parameters_s[0, halves] < 2 * aside_s


def test_configurations_divide_all_axes_over_a_share_of_the_devices() -> None:
    [layer, *_] = layers_of(network).layers
    found = configurations_of(layer, 8)
    assert found[0] == Degrees()
    assert Degrees(sample=4, height=2) in found and Degrees(sample=2) in found
    assert {degrees.count for degrees in found} == {1, 2, 4, 8}
    assert Degrees(sample=2, height=2, filter=2) in found


HALF_BATCH = dataclasses.replace(
    CONFIGURATION, image_shape=(4, 28, 28, 16), output_shape=(4, 28, 28, 32)
)
# Half of the rows with a halo of one, and padding that the part adds itself.
HALF_IMAGE = dataclasses.replace(
    CONFIGURATION, image_shape=(8, 16, 30, 16), output_shape=(8, 14, 28, 32), padding="VALID"
)
PROFILE = make_profile(
    make_algorithm(CONFIGURATION, latency_us=9000.0),
    make_algorithm(HALF_BATCH, "slow", latency_us=7000.0),
    make_algorithm(HALF_BATCH, "exact", latency_us=6000.0, tf32=False),
    make_algorithm(HALF_BATCH, "fast", latency_us=5000.0),
    make_algorithm(HALF_IMAGE, latency_us=4000.0),
)


@pytest.mark.parametrize(
    ("degrees", "allow_tf32", "milliseconds"),
    [
        (Degrees(), True, 9.0),
        (Degrees(sample=2), True, 5.0),
        (Degrees(sample=2), False, 6.0),
        (Degrees(height=2), True, 4.0),
        (Degrees(filter=2), True, 0.0),
    ],
)
def test_a_part_takes_the_measured_time_of_its_convolution(
    degrees: Degrees, allow_tf32: bool, milliseconds: float
) -> None:
    layers = layers_of(lambda: convolution(image(8, 28, 28, 16), 32, "a"))
    fast = {"multiply_adds_per_s": 1e15, "memory_bytes_per_s": 1e15}
    devices = tuple(dataclasses.replace(device, **fast) for device in DEVICES.devices)
    [costs] = find_costs(
        layers,
        dataclasses.replace(DEVICES, devices=devices, slowdown=1.0),
        [0] * len(layers.view),
        MeasuredParts(PROFILE, allow_tf32=allow_tf32),
    ).layers
    place = costs.place_of(degrees)
    assert costs.are_measured[place] == (milliseconds > 0)
    assert costs.compute_s[:, place] == pytest.approx([milliseconds / 1e3, 0], abs=1e-6)
