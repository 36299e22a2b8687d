"""Builds small GraphDefs for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2

from tf_interop.graph.ops import CONVOLUTION_KINDS

CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
FLOAT = types_pb2.DT_FLOAT
HALF = types_pb2.DT_HALF
BFLOAT16 = types_pb2.DT_BFLOAT16
DOUBLE = types_pb2.DT_DOUBLE


class GraphBuilder:
    """A GraphDef in the making. Methods that add a node return its name."""

    def __init__(self, device: str = GPU) -> None:
        self.graph_def = graph_pb2.GraphDef()
        self.graph_def.versions.producer = 2474
        self._device = device

    def add(
        self, name: str, op: str, *inputs: str, device: str | None = None, **attributes: Any
    ) -> str:
        """Adds a node with attributes as in `set_attributes`."""
        node = self.graph_def.node.add(name=name, op=op, input=inputs)
        node.device = self._device if device is None else device
        set_attributes(node, **attributes)
        return name

    def source(self, name: str, shape: Sequence[int | None] | None = None) -> str:
        """Adds a node without inputs, with a shape if one is given."""
        self.add(name, "_Arg")
        if shape is not None:
            add_shapes(self.node(name), "_output_shapes", [shape])
        return name

    def sizes(self, name: str, values: Sequence[int]) -> str:
        """Adds a Const that is a vector of int32."""
        self.add(name, "Const")
        self.node(name).attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values, tf.int32))
        return name

    def conv(
        self, name: str, *inputs: str, op: str = "Conv2D", device: str | None = None, **changes: Any
    ) -> str:
        """Adds a convolution of any kind; `changes` replace the default attributes."""
        attributes: dict[str, Any] = {
            "T": FLOAT,
            "strides": [1, 1, 1, 1],
            "padding": "SAME",
            "explicit_paddings": [],
            "data_format": "NHWC",
            "dilations": [1, 1, 1, 1],
        }
        if "3D" in op:
            ones = [1] * 5
            attributes.update(
                strides=ones, dilations=ones, data_format="NDHWC", explicit_paddings=None
            )
        attributes.update(changes)
        return self.add(name, op, *inputs, device=device, **attributes)

    def fused_conv(self, name: str, *inputs: str, op: str = "_FusedConv2D", **changes: Any) -> str:
        """Adds a convolution with bias and Relu."""
        attributes: dict[str, Any] = {
            "TArgs": [FLOAT],
            "num_args": 1,
            "num_host_args": 0,
            "fused_ops": ["BiasAdd", "Relu"],
        }
        if op == "_FusedConv3D":
            attributes.update(TArgs=None, num_host_args=None)
        attributes.update(changes)
        return self.conv(name, *inputs, op=op, **attributes)

    def node(self, name: str) -> node_def_pb2.NodeDef:
        """The node with this name."""
        return node_of(self.graph_def, name)


def nodes_of(text: str) -> dict[str, str]:
    """Parses `a = Conv2D x f; b = Relu a` to op and inputs by name."""
    return dict(node.split(" = ") for node in text.split("; "))


def graph_of(nodes: Mapping[str, str] | str, device: str = GPU) -> GraphBuilder:
    """A graph of nodes given as op and inputs, such as `a = Conv2D x f ^c; b = Relu a @device`.

    Missing inputs become sources. A convolution has default attributes. An Enter's frame is the
    part of its name before a slash.
    """
    graph = GraphBuilder(device)
    nodes = nodes_of(nodes) if isinstance(nodes, str) else nodes
    words = {name: text.partition(" @") for name, text in nodes.items()}
    for text, _, _ in words.values():
        for read in text.split()[1:]:
            source = read.removeprefix("^").partition(":")[0]
            if source not in nodes and all(node.name != source for node in graph.graph_def.node):
                graph.source(source)
    for name, (text, _, at) in words.items():
        op, *inputs = text.split()
        if op in CONVOLUTION_KINDS:
            add = graph.fused_conv if op.startswith("_Fused") else graph.conv
            add(name, *inputs, op=op, device=at or None)
        else:
            frame = {"frame_name": name.partition("/")[0]} if op == "Enter" else {}
            graph.add(name, op, *inputs, device=at or None, T=FLOAT, **frame)
    return graph


def same_graph(first: graph_pb2.GraphDef, second: graph_pb2.GraphDef) -> bool:
    """Whether two graphs have the same bytes; an attribute that reading has added differs."""
    one, other = (each.SerializeToString(deterministic=True) for each in (first, second))
    return bool(one == other)


def node_of(graph_def: graph_pb2.GraphDef, name: str) -> node_def_pb2.NodeDef:
    """The node with this name."""
    return next(node for node in graph_def.node if node.name == name)


def set_attributes(node: node_def_pb2.NodeDef, **attributes: Any) -> None:
    """Sets attributes to Python values; skips None. `T` and `T...` are types."""
    for name, value in attributes.items():
        if value is None:
            continue
        attribute = node.attr[name]
        attribute.Clear()
        if isinstance(value, bool):
            attribute.b = value
        elif name.startswith("T") and isinstance(value, int):
            attribute.type = value
        elif name.startswith("T"):
            attribute.list.type.extend(value)
        elif isinstance(value, int):
            attribute.i = value
        elif isinstance(value, float):
            attribute.f = value
        elif isinstance(value, str):
            attribute.s = value.encode()
        elif all(isinstance(element, int) for element in value):
            attribute.list.SetInParent()
            attribute.list.i.extend(value)
        else:
            attribute.list.s.extend(
                element.encode() if isinstance(element, str) else element for element in value
            )


def add_shapes(
    node: node_def_pb2.NodeDef, attribute: str, shapes: Sequence[Sequence[int | None] | None]
) -> None:
    """Adds a list of shapes, such as `_output_shapes`; None is an unknown rank."""
    protos = [tf.TensorShape(shape).as_proto() for shape in shapes]
    node.attr[attribute].list.shape.extend(protos)
