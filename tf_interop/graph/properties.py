"""Shapes of a graph's tensors, from its nodes and, where these leave gaps, from inference.

They also show which nodes compute little: scales, means of channels, sizes, updates of vectors.
Such a node takes about 1 µs, less than TensorFlow's executor needs to dispatch it. So a unit may
include it anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Sequence

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, tensor_shape_pb2, types_pb2

from tf_interop.convolution import Shape
from tf_interop.graph.ops import HANDLE_OPS, attribute_of
from tf_interop.graph.view import GraphView

ShapeInference = Callable[[str], Sequence[Shape | None] | None]
"""Returns the shapes of a node's outputs by the node's name; None if it knows nothing."""


def is_fully_known(shape: Shape | None) -> bool:
    """Whether the rank and every dimension of `shape` are known."""
    return shape is not None and None not in shape


def merge_shapes(first: Shape | None, second: Shape | None) -> Shape | None:
    """Merges two shapes of one tensor: every dimension that one of them knows.

    If they contradict each other, one is out of date, and it is unclear which, so the dimension
    (or, if the ranks differ, the shape) is unknown.
    """
    if first is None or second is None or first == second:
        return second if first is None else first
    if len(first) != len(second):
        return None
    return tuple(
        (a if b is None or a == b else b if a is None else None)
        for a, b in zip(first, second, strict=True)
    )


class GraphProperties:
    """The known shapes of a graph's tensors, read on demand.

    The sources are the attributes `_input_shapes` of the reader and `_output_shapes` of the
    producer, the value of a Const, and the shape of a ReadVariableOp's variable; then, if they
    leave a dimension open, inference. `merge_shapes` joins them.
    """

    def __init__(self, view: GraphView, infer: ShapeInference | None = None) -> None:
        """Prepares to read `view`; inference, which is expensive, runs at most once for a node."""
        self._view = view
        self._infer = infer
        self._stated: dict[tuple[int, int], Shape | None] = {}
        self._inferred: dict[int, Sequence[Shape | None]] = {}

    def input_shape(self, node_index: int, position: int) -> Shape | None:
        """The shape of the tensor that node `node_index` reads at `position`."""
        of_inputs = _shape_list(self._view, node_index, "_input_shapes")
        shape = of_inputs[position] if position < len(of_inputs) else None
        if is_fully_known(shape):
            return shape
        return self._complete(shape, *self._view.fanins[node_index][position])

    def output_shape(self, node_index: int, port: int) -> Shape | None:
        """The shape of output `port` of node `node_index`."""
        return self._complete(None, node_index, port)

    def held_shape(self, node_index: int, port: int) -> Shape | None:
        """The shape in a size vector, such as the `input_sizes` of a gradient.

        It is the value of a Const, or the shape of the input of a Shape or ShapeN; None for other
        ops.
        """
        op = self._view.ops[node_index]
        if op == "Const":
            return self._constant_sizes(node_index)
        if op in ("Shape", "ShapeN") and port < len(self._view.fanins[node_index]):
            return self.input_shape(node_index, port)
        return None

    def _complete(self, shape: Shape | None, node_index: int, port: int) -> Shape | None:
        shape = merge_shapes(shape, self._stated_shape(node_index, port))
        if is_fully_known(shape) or self._infer is None:
            return shape
        inferred = self._inferred.get(node_index)
        if inferred is None:
            inferred = self._infer(self._view.names[node_index]) or ()
            self._inferred[node_index] = inferred
        return merge_shapes(shape, inferred[port]) if port < len(inferred) else shape

    def _stated_shape(self, node_index: int, port: int) -> Shape | None:
        key = (node_index, port)
        if key not in self._stated:
            of_outputs = _shape_list(self._view, node_index, "_output_shapes")
            shape = of_outputs[port] if port < len(of_outputs) else None
            if not is_fully_known(shape):
                shape = merge_shapes(shape, self._static_shape(node_index))
            self._stated[key] = shape
        return self._stated[key]

    def _static_shape(self, node_index: int) -> Shape | None:
        """The shape of the only output of a Const or a ReadVariableOp."""
        view = self._view
        op = view.ops[node_index]
        if op == "Const":
            attributes = view.nodes[node_index].attr
            return (
                shape_of(attributes["value"].tensor.tensor_shape) if "value" in attributes else None
            )
        if op == "ReadVariableOp" and view.fanins[node_index]:
            variable, port = view.fanins[node_index][0]
            attribute = attribute_of(view.nodes[variable], HANDLE_OPS.get(view.ops[variable], ""))
            if attribute.HasField("shape"):
                return shape_of(attribute.shape)
            if port < len(attribute.list.shape):
                return shape_of(attribute.list.shape[port])
        return None

    def _constant_sizes(self, node_index: int) -> Shape | None:
        attributes = self._view.nodes[node_index].attr
        if "value" not in attributes:
            return None
        tensor = attributes["value"].tensor
        if tensor.dtype != types_pb2.DT_INT32 or len(tensor.tensor_shape.dim) != 1:
            return None
        return tuple(size if size >= 0 else None for size in tf.make_ndarray(tensor).tolist())


def _shape_list(view: GraphView, node_index: int, attribute: str) -> list[Shape | None]:
    return [shape_of(proto) for proto in attribute_of(view.nodes[node_index], attribute).list.shape]


def state_shapes(node: node_def_pb2.NodeDef, *shapes: Sequence[int | None] | None) -> None:
    """States the shapes of a node's outputs; None is an unknown rank."""
    del node.attr["_output_shapes"].list.shape[:]
    node.attr["_output_shapes"].list.shape.extend(shape_protos(shapes))


def shape_protos(
    shapes: Iterable[Sequence[int | None] | None],
) -> list[tensor_shape_pb2.TensorShapeProto]:
    """Shapes as in a node's attribute."""
    return [tf.TensorShape(shape).as_proto() for shape in shapes]


def shape_of(proto: tensor_shape_pb2.TensorShapeProto) -> Shape | None:
    """Reads a shape from a node's attribute."""
    if proto.unknown_rank:
        return None
    return tuple(dim.size if dim.size >= 0 else None for dim in proto.dim)


MOST_ELEMENTS = 4096
"""The most elements of a small result: the channels of the widest layers."""

PARAMETER_OPS = frozenset({"Const", "ReadVariableOp"})
# Their results may be small when their inputs are not, or the reverse. The results of other ops are
# small if all inputs are.
_RESIZING_OPS = frozenset(
    {"Mean", "Sum", "Max", "Min", "Prod", "BiasAddGrad", "L2Loss", "MatMul", "_FusedMatMul"}
    | {"Tile", "BroadcastTo", "Slice", "StridedSlice", "ConcatV2", "Pack", "Pad"}
)


def find_small(view: GraphView, steps: Container[int], properties: GraphProperties) -> list[bool]:
    """Which nodes have small results; only `steps` and parameters may.

    Only the shapes of parameters and of ops that reduce or expand are read. So without the batch
    size the answer is the same, except for tensors that are small only because of it.
    """

    def has_small_shape(index: int) -> bool:
        shape = properties.output_shape(index, 0)
        return is_fully_known(shape) and math.prod(shape or ()) <= MOST_ELEMENTS  # type: ignore[arg-type]

    small = [False] * len(view)
    for index in view.topological_order():
        op = view.ops[index]
        if op in PARAMETER_OPS:
            small[index] = has_small_shape(index)
        elif index in steps:
            if op in _RESIZING_OPS:
                small[index] = has_small_shape(index)
            else:
                sources = view.fanins[index]
                small[index] = bool(sources) and all(small[source] for source, _ in sources)
    return small
