"""Makes nodes of a GraphDef on one device."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2

from tf_interop.parallel.regions import Interval


class NodeMaker:
    """Makes the nodes of parts on one device.

    A tensor is known by its name: that of its node for the first output, `name:1` for the second.
    """

    def __init__(
        self, graph_def: graph_pb2.GraphDef, device: str, prefix: str, taken: set[str]
    ) -> None:
        """Prepares to add nodes to `graph_def`.

        Args:
            graph_def: it is added to.
            device: of all nodes.
            prefix: what their names begin with.
            taken: names that no new node may have; those of new nodes are added.
        """
        self._graph_def = graph_def
        self._device = device
        self._prefix = prefix
        self._taken = taken
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
        name = f"{self._prefix}/{op}"
        numbered = (f"{name}_{number}" for number in itertools.count(1))
        name = next(each for each in itertools.chain([name], numbered) if each not in self._taken)
        self._taken.add(name)
        node = self._graph_def.node.add(name=name, op=op, device=self._device, input=inputs)
        for attribute, value in attributes.items():
            node.attr[attribute].CopyFrom(_attribute(value))
        return name

    def constant(self, value: Any, dtype: Any = "int32") -> str:
        """A Const; equal ones are one node."""
        dtype = tf.as_dtype(dtype)
        array = np.asarray(value, dtype.as_numpy_dtype)
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self._constants:
            tensor = tf.make_tensor_proto(array, dtype=dtype, shape=array.shape)
            self._constants[key] = self(
                "Const", dtype=dtype, value=attr_value_pb2.AttrValue(tensor=tensor)
            )
        return self._constants[key]

    def slice(
        self, tensor: str, begin: Sequence[int], shape: Sequence[int], dtype: tf.DType
    ) -> str:
        """The part of a tensor that begins at `begin`."""
        bounds = self.constant(begin), self.constant(shape)
        return self("Slice", tensor, *bounds, T=dtype, Index=tf.int32)

    def pad(
        self, tensor: str, margins: Sequence[Interval], dtype: tf.DType, value: str = ""
    ) -> str:
        """A tensor with a value around it, or zeros.

        Args:
            tensor: the tensor.
            margins: for each dimension how many values come before and after; where all are 0,
                nothing is added.
            dtype: of the tensor.
            value: a tensor with the value.
        """
        if not np.any(margins):
            return tensor
        values = [value] if value else []
        op = "PadV2" if value else "Pad"
        return self(op, tensor, self.constant(margins), *values, T=dtype, Tpaddings=tf.int32)

    def fill(self, shape: Sequence[int], dtype: tf.DType, value: str = "") -> str:
        """A tensor that holds one value, or zeros."""
        types = {"T": dtype, "index_type": tf.int32}
        return self("Fill", self.constant(shape), value or self.constant(0, dtype), **types)

    def reshape(self, tensor: str, shape: Sequence[int], dtype: tf.DType) -> str:
        """The values of a tensor in another shape."""
        return self("Reshape", tensor, self.constant(shape), T=dtype, Tshape=tf.int32)


def own_attributes(node: node_def_pb2.NodeDef) -> dict[str, attr_value_pb2.AttrValue]:
    """The attributes that a node's op has, for a node of the same op; without notes of others."""
    return {name: value for name, value in node.attr.items() if not name.startswith("_")}


def without_nodes(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """A graph with the function library and the versions of another."""
    empty = graph_pb2.GraphDef(versions=graph_def.versions)
    if graph_def.HasField("library"):
        empty.library.CopyFrom(graph_def.library)
    return empty


def _attribute(value: Any) -> attr_value_pb2.AttrValue:
    """An attribute of a node as protobufs have it."""
    if isinstance(value, attr_value_pb2.AttrValue):
        return value
    for kind, field in ((bool, "b"), (int, "i"), (float, "f")):
        if isinstance(value, kind):
            return attr_value_pb2.AttrValue(**{field: value})
    if isinstance(value, str):
        return attr_value_pb2.AttrValue(s=value.encode())
    if isinstance(value, tf.DType):
        return attr_value_pb2.AttrValue(type=value.as_datatype_enum)
    if isinstance(value, tf.TensorShape):
        return attr_value_pb2.AttrValue(shape=value.as_proto())
    items = attr_value_pb2.AttrValue.ListValue(i=value)
    return attr_value_pb2.AttrValue(list=items)
