"""Shapes of a graph's tensors, from its nodes and, if these say too little, from inference.

From them follows which nodes compute little: scales, means of channels, sizes, updates of vectors.
Such a node takes about a microsecond, less than it costs TensorFlow's executor to run it as a node
of its own. So a unit may take it along wherever it stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence

import tensorflow as tf
from tensorflow.core.framework import tensor_shape_pb2, types_pb2

from tf_interop.convolution import Shape
from tf_interop.graph.view import GraphView

ShapeInference = Callable[[str], Sequence[Shape | None] | None]
"""Gives the shapes of the outputs of the node of a name, or None if it knows nothing."""

_VARIABLE_SHAPES = {"_Arg": "_handle_shapes", "VarHandleOp": "shape"}


def is_fully_known(shape: Shape | None) -> bool:
    """Whether the rank and every dimension of `shape` are known."""
    return shape is not None and None not in shape


def merge_shapes(first: Shape | None, second: Shape | None) -> Shape | None:
    """Joins what two sources know about one tensor: every dimension that one of the two knows.

    Where they contradict each other one of them is out of date, and nobody can say which: the
    dimension (or, if ranks differ, the shape) is not known.
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
    """What is known about the shapes of a graph's tensors. Shapes are read when they are asked for.

    Sources, in this order: the attributes `_input_shapes` of the reader and `_output_shapes` of the
    producer, the value of a Const, the shape of the variable that a ReadVariableOp reads; then, if
    they leave a dimension open, inference. Of each dimension the source that knows it counts.
    """

    def __init__(self, view: GraphView, infer: ShapeInference | None = None) -> None:
        """Prepares to look at `view`.

        Inference is expensive: it is asked once for a node at most, and only where the graph itself
        leaves a dimension open.
        """
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
        """The shape that a vector of sizes holds, such as the `input_sizes` of a gradient.

        It is the value of a Const, or the shape of what a Shape or ShapeN reads; None for other
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
        """The shape of the only output of a Const or of a ReadVariableOp."""
        view = self._view
        op = view.ops[node_index]
        if op == "Const":
            attributes = view.nodes[node_index].attr
            return (
                shape_of(attributes["value"].tensor.tensor_shape) if "value" in attributes else None
            )
        if op == "ReadVariableOp" and view.fanins[node_index]:
            variable = view.fanins[node_index][0][0]
            attribute = _VARIABLE_SHAPES.get(view.ops[variable])
            attributes = view.nodes[variable].attr
            if attribute is not None and attribute in attributes:
                value = attributes[attribute]
                if value.HasField("shape"):
                    return shape_of(value.shape)
                if len(value.list.shape) == 1:
                    return shape_of(value.list.shape[0])
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
    attributes = view.nodes[node_index].attr
    # Reading a missing key of a protobuf map would add it to the graph.
    if attribute not in attributes:
        return []
    return [shape_of(proto) for proto in attributes[attribute].list.shape]


def shape_of(proto: tensor_shape_pb2.TensorShapeProto) -> Shape | None:
    """A shape as the attributes of nodes have it."""
    if proto.unknown_rank:
        return None
    return tuple(dim.size if dim.size >= 0 else None for dim in proto.dim)


MOST_ELEMENTS = 4096
"""What a small result has at most: the channels of the widest layers."""

PARAMETER_OPS = frozenset({"Const", "ReadVariableOp"})
# What may be small though it reads what is not, or the reverse. Others are small where all that
# they read is.
_RESIZING_OPS = frozenset(
    {"Mean", "Sum", "Max", "Min", "Prod", "BiasAddGrad", "L2Loss", "MatMul", "_FusedMatMul"}
    | {"Tile", "BroadcastTo", "Slice", "StridedSlice", "ConcatV2", "Pack", "Pad"}
)


def find_small(view: GraphView, steps: Container[int], properties: GraphProperties) -> list[bool]:
    """Which nodes have small results. Nodes that are neither `steps` nor parameters have none.

    Shapes are looked up for parameters and for what reduces or expands; the rest follows. So one
    that does not know the batch size gives the same result, but for what is small by it alone.
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
