"""Which variables an optimizer's update can be divided with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from parallel.traced_layers import image, trace
from parallel_values import DEVICE_GRAPH

from tf_interop.graph.view import GraphView
from tf_interop.parallel.costs.tables import find_costs
from tf_interop.parallel.layers.find import LayerGraph, find_layers
from tf_interop.parallel.parted_graph import LayerDivision, part_graph
from tf_interop.parallel.rewrite import rewrite_divided
from tf_interop.parallel.rules.shares import ASSIGN_OPS
from tf_interop.parallel.types import Degrees

raw = tf.raw_ops
SHAPE = (64, 128)

Update = Callable[[Any, Any, Any, Any], Any]
"""Builds the update from the gradient, the filter's value, and the handles of it and of a slot."""


def read(handle: tf.Tensor) -> tf.Tensor:
    return raw.ReadVariableOp(resource=handle, dtype=tf.float32)


def momentum(gradient: Any, _: Any, weights: Any, slot: Any) -> None:
    assign = raw.AssignVariableOp(resource=slot, value=0.9 * read(slot) - 0.1 * gradient)
    with tf.control_dependencies([assign]):
        raw.AssignAddVariableOp(resource=weights, value=read(slot))


def with_decay(gradient: Any, value: Any, weights: Any, slot: Any) -> None:
    raw.AssignAddVariableOp(resource=slot, value=tf.square(gradient) - read(slot))
    raw.AssignSubVariableOp(resource=weights, value=gradient + 0.01 * value)


def with_norm_of_the_slot(gradient: Any, value: Any, weights: Any, slot: Any) -> None:
    raw.AssignAddVariableOp(resource=slot, value=gradient)
    norm = tf.sqrt(tf.nn.l2_loss(read(slot)))
    raw.AssignSubVariableOp(resource=weights, value=gradient / norm)


def slot_is_gathered(gradient: Any, value: Any, weights: Any, slot: Any) -> None:
    momentum(gradient, value, weights, slot)
    raw.ResourceGather(resource=slot, indices=[0], dtype=tf.float32)


def slot_is_a_vector(gradient: Any, value: Any, weights: Any, slot: Any) -> None:
    raw.AssignSubVariableOp(resource=weights, value=gradient * tf.reduce_sum(read(slot), 0))


def filter_is_passed_on(gradient: Any, value: Any, weights: Any, slot: Any) -> None:
    raw.AssignSubVariableOp(resource=weights, value=gradient)
    tf.identity(weights)


def layers_with(update: Update, shape: tuple[int, int], *preserve: str) -> LayerGraph:
    def build() -> None:
        handles = [
            raw.VarHandleOp(dtype=tf.float32, shape=shape, shared_name=name, name=name)
            for name in ("weights", "slot")
        ]
        value = read(handles[0])
        x = image(8, shape[0], name="x")
        y = tf.matmul(x, value, name="y")
        [gradient] = tf.gradients(tf.nn.relu(y), [value])
        update(gradient, value, *handles)

    view = GraphView(trace(build))
    return find_layers(view, nodes_to_preserve=preserve, shares="shares")


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        (momentum, {"slot", "weights"}),
        (with_decay, {"slot", "weights"}),
        (with_norm_of_the_slot, {"slot", "weights"}),
        (slot_is_gathered, set()),  # and the filter depends on it
        (slot_is_a_vector, {"weights"}),
        (filter_is_passed_on, set()),
    ],
)
def test_variables_that_only_the_update_uses(update: Update, expected: set[str]) -> None:
    layers = layers_with(update, SHAPE)
    [layer] = layers.layers
    names = layers.view.names
    updates = set(layers.update_of.values())
    assert {names[variable] for each in updates for variable in each.variables} == expected
    divided = {node for node in layers.update_of if layers.view.ops[node] in ASSIGN_OPS}
    assert {names[layers.view.fanins[node][0][0]] for node in divided} == expected
    assert layers.update_of.keys() <= set(layer.nodes)


def test_small_variables_stay_on_one_device() -> None:
    assert not layers_with(momentum, (8, 16)).update_of


def test_reads_and_assignments_of_a_function_may_be_divided_although_their_names_stay() -> None:
    layers = layers_with(with_decay, SHAPE, "AssignAddVariableOp", "ReadVariableOp_1")
    [update] = set(layers.update_of.values())
    assert len(update.variables) == 2


def with_an_unused_read(gradient: Any, value: Any, weights: Any, slot: Any) -> None:
    with_decay(gradient, value, weights, slot)
    raw.ReadVariableOp(resource=slot, dtype=tf.float32, name="unused")


def test_names_stay_where_parts_replace_reads_and_assignments() -> None:
    preserve = ("unused", "AssignAddVariableOp")
    layers = layers_with(with_an_unused_read, SHAPE, *preserve)
    [layer] = layers.layers
    division = {layer.name: LayerDivision(Degrees(sample=2), (0, 1))}
    parted = part_graph(layers, division, [0] * len(layers.view))
    new = rewrite_divided(parted, ["/device:CPU:0", "/device:CPU:1"])
    ops = {node.name: node.op for node in new.node}
    assert [ops[name] for name in preserve] == ["NoOp", "NoOp"]
    assert sum(op == "AssignAddVariableOp" for op in ops.values()) == 2


def test_memory_counts_each_share_once() -> None:
    layers = layers_with(momentum, SHAPE)
    [costs] = find_costs(layers, DEVICE_GRAPH, [0] * len(layers.view)).layers
    memory = costs.memory[costs.place_of(Degrees(sample=2))] / (4 * math.prod(SHAPE))
    # Halves of the filter and of its slot, its gradient, what the update computes, small images.
    assert ((memory > 3) & (memory < 3.25)).all(), memory


def test_memory_counts_filters_that_devices_put_together() -> None:
    def build() -> None:
        handle = raw.VarHandleOp(dtype=tf.float32, shape=SHAPE, shared_name="weights")
        value, x = read(handle), image(1024, SHAPE[0], name="x")
        y = tf.nn.relu(tf.matmul(x, value))
        gradient, of_image = tf.gradients(y, [value, x])
        raw.AssignSubVariableOp(resource=handle, value=gradient)
        tf.identity(of_image, name="result")

    layers = find_layers(GraphView(trace(build)), nodes_to_preserve=["result"], shares="shares")
    [costs] = find_costs(layers, DEVICE_GRAPH, [0] * len(layers.view)).layers
    image_bytes, filter_bytes = 4 * 1024 * SHAPE[0], 4 * math.prod(SHAPE)
    whole, _ = costs.memory[costs.place_of(Degrees())]
    at_peak = whole - image_bytes - filter_bytes
    _, halves = costs.memory[costs.place_of(Degrees(sample=2))]
    assert halves == image_bytes / 2 + filter_bytes / 2 + at_peak / 2 + filter_bytes
    _, filters = costs.memory[costs.place_of(Degrees(filter=2))]
    assert filters == image_bytes + filter_bytes / 2 + at_peak / 2
