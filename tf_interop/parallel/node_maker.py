"""Makes nodes of a GraphDef on one device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2


class NodeMaker:
    """Makes the nodes of parts on one device.

    A tensor is known by its name: that of its node for the first output, `name:1` for the second.
    """

    def __init__(
        self,
        graph_def: graph_pb2.GraphDef,
        device: str,
        prefix: str,
        unique_name: Callable[[str], str],
    ) -> None:
        """Prepares to add nodes to `graph_def`.

        Args:
            graph_def: it is added to.
            device: of all nodes.
            prefix: what their names begin with.
            unique_name: gives a name that is like the given one and not taken.
        """
        self._graph_def = graph_def
        self._device = device
        self._prefix = prefix
        self._unique_name = unique_name
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def named(self, prefix: str) -> NodeMaker:
        """A maker of nodes of other names on the same device, which shares the constants."""
        maker = copy.copy(self)
        maker._prefix = prefix
        return maker

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node.

        Args:
            op: its op type.
            *inputs: what it reads; `^name` is a control dependency, after all others.
            **attributes: Python values: numbers, strings, dtypes, lists of them, or AttrValues.
                All that the op has no default for have to be given.

        Returns:
            Its name.
        """
        node = self._graph_def.node.add()
        name = self._unique_name(f"{self._prefix}/{op}")
        node.name = name
        node.op = op
        node.device = self._device
        node.input.extend(inputs)
        for attribute, value in attributes.items():
            node.attr[attribute].CopyFrom(_attribute(value))
        return name

    def constant(self, value: Any, dtype: Any = "int32") -> str:
        """A Const; equal ones are one node."""
        array = np.asarray(value, tf.as_dtype(dtype).as_numpy_dtype)
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self._constants:
            tensor = tf.make_tensor_proto(array, dtype=tf.as_dtype(dtype), shape=array.shape)
            self._constants[key] = self(
                "Const", dtype=tf.as_dtype(dtype), value=attr_value_pb2.AttrValue(tensor=tensor)
            )
        return self._constants[key]


def own_attributes(node: node_def_pb2.NodeDef) -> dict[str, attr_value_pb2.AttrValue]:
    """The attributes that a node's op has, for a node of the same op; without notes of others."""
    return {name: value for name, value in node.attr.items() if not name.startswith("_")}


def _attribute(value: Any) -> attr_value_pb2.AttrValue:
    """An attribute of a node as protobufs have it."""
    if isinstance(value, attr_value_pb2.AttrValue):
        return value
    if isinstance(value, bool):
        return attr_value_pb2.AttrValue(b=value)
    if isinstance(value, int):
        return attr_value_pb2.AttrValue(i=value)
    if isinstance(value, float):
        return attr_value_pb2.AttrValue(f=value)
    if isinstance(value, str):
        return attr_value_pb2.AttrValue(s=value.encode())
    if isinstance(value, tf.DType):
        return attr_value_pb2.AttrValue(type=value.as_datatype_enum)
    of_items = [_attribute(each) for each in value]
    items = attr_value_pb2.AttrValue.ListValue()
    for each in of_items:
        kind = each.WhichOneof("value")
        getattr(items, kind).append(getattr(each, kind))
    return attr_value_pb2.AttrValue(list=items)
