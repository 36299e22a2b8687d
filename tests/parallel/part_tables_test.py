"""Parts of all configurations at once, against what rules say of each configuration."""

from __future__ import annotations

import collections
import functools

import tensorflow as tf
from parallel.traced_layers import convolution, gradients, image, layers_of, parameter

from tf_interop.parallel.costs.box_tables import BoxTable, BoxTables
from tf_interop.parallel.costs.part_tables import PartTables, combine
from tf_interop.parallel.costs.tables import configurations_of
from tf_interop.parallel.op_parts import OpPart, are_addends
from tf_interop.parallel.regions import whole

DEVICE_COUNT = 8
HOME = 3


def network() -> list[tf.Tensor]:
    """The gradients of layers whose extents are no multiples of the number of devices."""
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


def _rows(table: BoxTable) -> dict[int, set[tuple[int, tuple[tuple[int, int], ...]]]]:
    """Devices and boxes that are not empty, by configuration."""
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
        reads, gives = map(_rows, tables.reads), list(map(_rows, tables.gives))
        reads = list(reads)
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
    assert refused, "something has to be whole"
