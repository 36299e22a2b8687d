"""The order in which shares of parameters travel."""

from __future__ import annotations

import pytest
import tensorflow as tf
from parallel.traced_layers import image, trace
from tensorflow.core.framework import graph_pb2

from tf_interop.graph.ops import make_node
from tf_interop.graph.view import GraphView
from tf_interop.parallel import sending_order
from tf_interop.parallel.layers.find import find_layers
from tf_interop.parallel.node_maker import NodeMaker
from tf_interop.parallel.parted_graph import LayerDivision, part_graph
from tf_interop.parallel.rewrite import rewrite_divided
from tf_interop.parallel.sending_order import _LEAST_GROUP_BYTES, Gathering, order_gatherings
from tf_interop.parallel.types import Degrees

DEVICES = ("/device:CPU:0", "/device:CPU:1")


def test_a_group_is_read_when_the_group_before_the_last_has_arrived() -> None:
    graph_def = graph_pb2.GraphDef()
    gatherings = []
    # Two small parameters are one group.
    for name, share in (("a", 1.0), ("b", 0.5), ("c", 0.5), ("d", 1.0), ("e", 1.0)):
        reads = {device: [f"{name}/read_{at}"] for at, device in enumerate(DEVICES)}
        gathered = {device: [f"{name}/all_{at}"] for at, device in enumerate(DEVICES)}
        for device in DEVICES:
            for node in (*reads[device], *gathered[device]):
                graph_def.node.append(make_node("NoOp", node, (), device))
        gatherings.append(Gathering(reads, gathered, int(share * _LEAST_GROUP_BYTES)))
    taken = {node.name for node in graph_def.node}
    makers = {device: NodeMaker(graph_def, device, "", taken) for device in DEVICES}
    order_gatherings(graph_def, gatherings, makers)

    view = GraphView(graph_def)

    def awaited(read: str) -> set[str]:
        """What a read waits for, over one node that collects it."""
        [arrived] = view.control_fanins[view.index_of[read]]
        return {view.names[node] for node in view.control_fanins[arrived]}

    for at in (0, 1):
        other = 1 - at
        assert awaited(f"d/read_{at}") == {f"a/all_{other}"}
        assert awaited(f"e/read_{at}") == {f"b/all_{other}", f"c/all_{other}"}
        for name in "abc":
            assert not view.control_fanins[view.index_of[f"{name}/read_{at}"]]
    assert {view.nodes[node].device for node in range(len(view))} == set(DEVICES)


def test_shares_of_layers_are_read_in_the_order_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending_order, "_LEAST_GROUP_BYTES", 1)
    raw = tf.raw_ops

    def build() -> None:
        """Four products, the filters of which are updated."""
        handles, values, x = [], [], image(8, 128, name="x")
        for name in "abcd":
            shape = (128, 128)
            handles.append(raw.VarHandleOp(dtype=tf.float32, shape=shape, shared_name=name))
            values.append(raw.ReadVariableOp(resource=handles[-1], dtype=tf.float32, name=name))
            x = tf.nn.relu(tf.matmul(x, values[-1], name=f"{name}_product"))
        for handle, gradient in zip(handles, tf.gradients(x, values), strict=True):
            raw.AssignSubVariableOp(resource=handle, value=gradient)

    layers = find_layers(GraphView(trace(build)), shares="shares")
    halves = LayerDivision(Degrees(sample=2), (0, 1))
    parted = part_graph(layers, {each.name: halves for each in layers.layers}, [0] * 99)
    view = GraphView(rewrite_divided(parted, DEVICES))
    view.topological_order()  # has no circle

    def awaited_parameters(read: int) -> set[str]:
        """The parameters of which all of a device's pieces must have arrived before a read."""
        arrived = {
            gather for each in view.control_fanins[read] for gather in view.control_fanins[each]
        }
        return {view.names[gather].partition("/")[0] for gather in arrived}

    reads = {
        (view.names[node].partition("/")[0], view.nodes[node].device): awaited_parameters(node)
        for node, op in enumerate(view.ops)
        if op == "ReadVariableOp"
    }
    expected = {"a": set(), "b": set(), "c": {"a"}, "d": {"b"}}
    assert reads == {(name, each): expected[name] for name in expected for each in DEVICES}
