"""Parts of all configurations at once, against the rules, and their measured times."""

from __future__ import annotations

import collections
import dataclasses
import functools

import pytest
import tensorflow as tf
from convolution_values import CONFIGURATION
from parallel.traced_layers import convolution, gradients, image, layers_of, parameter
from profile_values import make_algorithm, make_profile

from tf_interop.parallel.costs.box_tables import BoxTable, BoxTables
from tf_interop.parallel.costs.devices import uniform_device_graph
from tf_interop.parallel.costs.part_tables import MeasuredParts, PartTables, combine
from tf_interop.parallel.costs.tables import configurations_of, find_costs
from tf_interop.parallel.op_parts import OpPart, are_addends
from tf_interop.parallel.regions import whole
from tf_interop.parallel.types import Degrees

DEVICE_COUNT = 8
HOME = 3


def network() -> list[tf.Tensor]:
    """The gradients of layers whose extents no number of devices divides."""
    first = convolution(image(9, 13, 11, 3), 10, "first", strides=2)
    depthwise = tf.nn.depthwise_conv2d(
        first, parameter(3, 3, 10, 1, name="depthwise/w"), [1] * 4, "SAME"
    )
    second = convolution(tf.pad(depthwise, [[0, 0], [1, 1], [0, 2], [0, 0]]), 6, "second")
    x = tf.concat([tf.nn.max_pool2d(second, 3, 2, "VALID"), second[:, 1::2, 1:5, :]][:1] * 2, 3)
    x = x - tf.reduce_mean(x, [0, 1, 2], keepdims=True)
    x = tf.nn.avg_pool2d(x, 2, 1, "SAME")
    x = convolution(x, 12, "third", size=2)
    x = tf.reduce_mean(x, [1, 2]) @ parameter(12, 7, name="last/w")
    labels = tf.zeros(9, tf.int32)
    return gradients(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x))


def rows_of(table: BoxTable) -> dict[int, set[tuple[int, tuple[tuple[int, int], ...]]]]:
    """The devices and the boxes that are not empty, by configuration."""
    found = collections.defaultdict(set)
    for row, number in enumerate(table.configurations):
        *bounds, last = zip(table.begins[row].tolist(), table.ends[row].tolist(), strict=True)
        if last == (0, 1):
            found[int(number)].add((int(table.devices[row]), tuple(bounds)))
    return found


def test_parts_of_all_configurations_are_those_of_the_rules() -> None:
    layers = layers_of(network)
    refused, ops = set(), set()
    for node, place in layers.layer_of.items():
        operation = layers.operations[node]
        configurations = configurations_of(layers.layers[place], DEVICE_COUNT)
        tables = PartTables(
            operation,
            functools.partial(layers.parts, node),
            combine(configurations),
            HOME,
            DEVICE_COUNT,
            BoxTables(),
        )
        reads, gives = (list(map(rows_of, each)) for each in (tables.reads, tables.gives))
        [undivided] = layers.parts(node, configurations[0]) or [None]
        adds = undivided.multiply_adds if undivided else 0
        for number, degrees in enumerate(configurations):
            parts = layers.parts(node, degrees)
            if parts is None:
                refused.add(operation.node.op)
                shapes = operation.input_shapes, operation.output_shapes
                boxes = (tuple(map(whole, each)) for each in shapes)
                parts = [OpPart(HOME, *boxes, lambda maker, inputs: (), adds)]
            said = operation.node.op, str(degrees)
            for at, rows in enumerate(reads):
                boxes = {(part.place, part.reads[at]) for part in parts}
                assert rows[number] == {row for row in boxes if row[1] is not None}, said
            for port, rows in enumerate(gives):
                boxes = {(part.place, part.gives[port]) for part in parts}
                assert rows[number] == boxes, said
                assert tables.gives[port].are_sums[number] == are_addends(parts), said
            expected = [0] * DEVICE_COUNT
            for part in parts:
                expected[part.place] = part.multiply_adds
            assert tables.multiply_adds[number].tolist() == expected, said
        ops.add(operation.node.op)
    assert ops >= {"Conv2D", "Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropInput"}
    assert ops >= {"MaxPoolGrad", "AvgPool", "ConcatV2", "Pad", "MatMul", "BiasAddGrad", "Mean"}
    assert refused, "some nodes have to be whole"


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
        (Degrees(filter=2), True, None),
    ],
)
def test_a_part_takes_the_measured_time_of_its_convolution(
    degrees: Degrees, allow_tf32: bool, milliseconds: float | None
) -> None:
    layers = layers_of(lambda: convolution(image(8, 28, 28, 16), 32, "a"))
    node = layers.view.index_of["a"]
    measured = MeasuredParts(PROFILE, allow_tf32=allow_tf32)
    seconds = None if milliseconds is None else pytest.approx(milliseconds / 1e3)
    for part in layers.parts(node, degrees) or ():
        assert measured.seconds(layers.operations[node], part) == seconds
    [bias] = layers.parts(layers.view.index_of["a/bias"], Degrees()) or ()
    assert measured.seconds(layers.operations[layers.view.index_of["a/bias"]], bias) is None

    devices = uniform_device_graph(
        ["/device:GPU:0", "/device:GPU:1"],
        **{"multiply_adds_per_s": 1e15, "memory_bytes_per_s": 1e15, "bytes_per_s": 1e9},
        latency_s=0.0,
    )
    [costs] = find_costs(layers, devices, [0] * len(layers.view), measured).layers
    place = costs.place_of(degrees)
    assert costs.are_measured[place] == (milliseconds is not None)
    assert costs.compute_s[place] == pytest.approx((milliseconds or 0) / 1e3, abs=1e-6)
