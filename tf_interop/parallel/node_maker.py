"""Makes nodes of a GraphDef."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2

from tf_interop.graph.ops import make_node
from tf_interop.graph.view import free_name
from tf_interop.parallel.regions import Interval


class NodeMaker:
    """Makes the nodes of parts on one device.

    The name of a tensor is its node's name for the first output, and `name:1` for the second.

    Attributes:
        graph_def: the graph that gets the nodes.
    """

    def __init__(
        self, graph_def: graph_pb2.GraphDef, device: str, prefix: str, taken: set[str]
    ) -> None:
        """Prepares to add nodes on a device, with names that begin with `prefix`.

        No node gets a name that is `taken`; new names are added there.
        """
        self.graph_def = graph_def
        self._device = device
        self._prefix = prefix
        self._taken = taken
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._variables: dict[str, str] = {}

    def named(self, prefix: str) -> NodeMaker:
        """A maker with another prefix, which shares the constants and the variables."""
        maker = copy.copy(self)
        maker._prefix = prefix
        return maker

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node and returns its name.

        Control dependencies, `^name`, are its last inputs. Attributes are as for `set_attributes`;
        those without a default are required.
        """
        name = free_name(f"{self._prefix}/{op}", self._taken)
        self._taken.add(name)
        self.graph_def.node.append(make_node(op, name, inputs, self._device, **attributes))
        return name

    def constant(self, value: Any, dtype: Any = "int32") -> str:
        """Adds a Const, unless an equal one exists."""
        dtype = tf.as_dtype(dtype)
        array = np.asarray(value, dtype.as_numpy_dtype)
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self._constants:
            tensor = tf.make_tensor_proto(array, dtype=dtype, shape=array.shape)
            self._constants[key] = self("Const", dtype=dtype, value=tensor)
        return self._constants[key]

    def variable(self, name: str, shape: Sequence[int], dtype: tf.DType) -> str:
        """Adds the handle of the device's variable of this name, unless it exists."""
        if name not in self._variables:
            self._variables[name] = self(
                "VarHandleOp", dtype=dtype, shape=tf.TensorShape(shape), shared_name=name
            )
        return self._variables[name]

    def slice(
        self, tensor: str, begin: Sequence[int], shape: Sequence[int], dtype: tf.DType
    ) -> str:
        """Adds a Slice."""
        bounds = self.constant(begin), self.constant(shape)
        return self("Slice", tensor, *bounds, T=dtype, Index=tf.int32)

    def pad(
        self, tensor: str, margins: Sequence[Interval], dtype: tf.DType, value: str = ""
    ) -> str:
        """Pads a tensor with the value of another one, or zeros, unless all margins are 0."""
        if not np.any(margins):
            return tensor
        values = [value] if value else []
        op = "PadV2" if value else "Pad"
        return self(op, tensor, self.constant(margins), *values, T=dtype, Tpaddings=tf.int32)

    def fill(self, shape: Sequence[int], dtype: tf.DType, value: str = "") -> str:
        """Adds a Fill with the value of a tensor, or zeros."""
        types = {"T": dtype, "index_type": tf.int32}
        return self("Fill", self.constant(shape), value or self.constant(0, dtype), **types)

    def reshape(self, tensor: str, shape: Sequence[int], dtype: tf.DType) -> str:
        """Adds a Reshape."""
        return self("Reshape", tensor, self.constant(shape), T=dtype, Tshape=tf.int32)


def own_attributes(node: node_def_pb2.NodeDef) -> dict[str, attr_value_pb2.AttrValue]:
    """A node's attributes without annotations, for another node of the same op."""
    return {name: value for name, value in node.attr.items() if not name.startswith("_")}
