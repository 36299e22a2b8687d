"""Finds the layers of a graph. All nodes of a layer are divided in the same way.

A layer begins with a convolution or a matrix product. The ops that follow it node by node belong to
it, and so do the gradients of all these ops. Pooling is a layer of its own, and so is a node that
joins several layers.

    x --> Conv2D --> BiasAdd --> Relu --+--> Conv2D --> BiasAdd --> AddV2 --> Relu --> ...
                                        +---------------------------^
          [------- layer 1 ---------]        [---- layer 2 ---]     [--- layer 3 ---]

A node goes to the layer of the largest tensor that it reads. A gradient goes to the layer of the
forward tensor that it reads, or if it reads none, to the layer of the op that its name refers to.
Readers of a parameter's gradient are in no layer, because parameters are updated where they are,
unless devices keep shares of the parameters (`rules/shares.py`): then the update of its filter
belongs to a layer.
A node in the wrong layer can make a plan slower, but never changes the result.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_interop.convolution import SPATIAL_AXES, ConvolutionKind
from tf_interop.graph.control_flow import ControlFlow
from tf_interop.graph.ops import TRIVIAL_OPS, attribute_of, output_dtypes
from tf_interop.graph.properties import (
    MOST_ELEMENTS,
    GraphProperties,
    ShapeInference,
    is_fully_known,
)
from tf_interop.graph.view import GraphView
from tf_interop.graph.xla import xla_mark
from tf_interop.parallel.layers.heads import HEAD_OPS, find_heads
from tf_interop.parallel.layers.updates import VARIABLE_OPS, Update, argument_of, find_updates
from tf_interop.parallel.op_parts import Operation, OpPart
from tf_interop.parallel.rules import RULES
from tf_interop.parallel.rules.shapes import LAYOUT_AFTER
from tf_interop.parallel.rules.shares import ASSIGN_OPS, READ_OP, divide_update
from tf_interop.parallel.types import Axis, Degrees

_POOLING_OPS = frozenset({"MaxPool", "AvgPool"})
_FORWARD_PLACES = {
    **dict.fromkeys(("ReluGrad", "Relu6Grad", "LeakyReluGrad", "EluGrad", "SeluGrad"), 1),
    **dict.fromkeys(("SoftplusGrad", "SoftsignGrad", "MaxPoolGrad"), 1),
    **dict.fromkeys(("SigmoidGrad", "TanhGrad", "SqrtGrad", "RsqrtGrad", "ReciprocalGrad"), 0),
    **dict.fromkeys(("FusedBatchNormGradV3", "FusedBatchNormGradV2"), 3),
    "LRNGrad": 2,
}
"""The input of each gradient that is a tensor of its layer's forward pass."""

_GRADIENT_NAME = re.compile(r"(|.*/)(?:gradient_tape|gradients(?:_\d+)?)/(.*)")
_SEVERAL = -1
"""Stands for several layers."""

SHAPES_ARE_UNKNOWN = "its shapes are unknown"
"""Why a node is in no layer, which a copy of its function with known shapes may change."""

LEAST_SHARED_BYTES = 16 << 10
"""Smaller parameters stay on one device: messages with pieces of them would take longer."""

_MOST_KNOWN_VALUES = 64
"""The most values of a constant that rules see: sizes, axes, paddings, scalars."""


@dataclasses.dataclass(frozen=True, slots=True)
class Layer:
    """Nodes that are divided in the same way.

    Attributes:
        name: the name of its first node.
        op: the op type of its first node.
        nodes: its nodes, ascending.
        layout: layout of its tensors of rank 4, `NHWC` or `NCHW`.
        extents: the size of each axis of its work; 1 for an axis that cannot be divided.
    """

    name: str
    op: str
    nodes: tuple[int, ...]
    layout: str
    extents: Mapping[Axis, int]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LayerGraph:
    """The layers of a graph.

    Attributes:
        view: the graph.
        layers: in topological order of their first nodes.
        layer_of: for each node in a layer, the layer's index in `layers`. All other nodes run
            whole on their own devices.
        why_whole: why costly nodes are in no layer, by the name of the node.
        operations: the nodes of layers as rules see them.
        properties: the shapes of the graph.
        infer: shape inference for these; None for shapes that attributes state.
        preserved: names that must stay.
        shares: the beginning of the names of shares that devices keep; empty if they keep none.
        update_of: the update that a node of a layer belongs to.
        gradients: the nodes of layers that belong to the backward pass.
    """

    view: GraphView
    layers: tuple[Layer, ...]
    layer_of: Mapping[int, int]
    why_whole: Mapping[str, str]
    operations: Mapping[int, Operation]
    properties: GraphProperties
    infer: ShapeInference | None
    preserved: frozenset[str]
    shares: str
    update_of: Mapping[int, Update]
    gradients: frozenset[int]

    def parts(self, node: int, degrees: Degrees) -> Sequence[OpPart] | None:
        """The parts of a layer's node; None if it runs whole."""
        update = self.update_of.get(node)
        if update is None:
            return RULES[self.view.ops[node]].divide(self.operations[node], degrees)
        gradient_parts = self.parts(update.gradient, degrees)
        if gradient_parts is None:
            return None
        return divide_update(self.operations[node], gradient_parts, self._variable_of(node))

    def _variable_of(self, node: int) -> str:
        """The beginning of the names of the shares of the variable that a node uses."""
        first = next((source for source, _ in self.view.fanins[node]), None)
        if first is None or self.view.ops[first] not in VARIABLE_OPS:
            return ""
        number = argument_of(self.view, first)
        return f"{self.shares}/{self.view.names[first] if number is None else number}"


def find_layers(
    view: GraphView,
    infer: ShapeInference | None = None,
    nodes_to_preserve: Collection[str] = (),
    shares: str = "",
) -> LayerGraph:
    """Finds the layers of a graph, forward and backward together; see `LayerGraph` for arguments.

    Raises:
        GraphError: the graph has a cycle that no loop closes.
    """
    return _Finder(view, infer, frozenset(nodes_to_preserve), shares).run()


def legal_degrees(layer: Layer, count: int) -> tuple[Degrees, ...]:
    """All ways to divide a layer into `count` parts without an empty one, in order."""
    choices = (
        [each for each in range(1, min(count, layer.extents[axis]) + 1) if count % each == 0]
        for axis in Axis
    )
    products = itertools.product(*choices)
    return tuple(Degrees(*each) for each in products if math.prod(each) == count)


class _Finder:
    """Assigns nodes to layers, in topological order."""

    def __init__(
        self,
        view: GraphView,
        infer: ShapeInference | None,
        preserved: frozenset[str],
        shares: str,
    ) -> None:
        self._view = view
        self._shares = shares
        self._infer = infer
        self._properties = GraphProperties(view, infer)
        self._preserved = preserved
        self._heads = find_heads(view, self._properties)
        self._control_flow = ControlFlow(view)
        self._order = view.topological_order()
        self._rank = {node: rank for rank, node in enumerate(self._order)}
        self._operations: dict[int, Operation | None] = {}
        self._layouts: dict[int, str] = {}  # all others are NHWC
        self._nodes: list[list[int]] = []
        self._layer_of: dict[int, int] = {}
        # The layer whose tensors each node computes from. The node itself may be in no layer.
        self._followed: list[int | None] = [None] * len(view)
        self._is_gradient = bytearray(len(view))
        self._layer_of_scope: dict[str, int] = {}
        self._why_whole: dict[str, str] = {}

    def run(self) -> LayerGraph:
        for node in self._order:
            self._visit(node)
        update_of = self._add_updates() if self._shares else {}
        operations = {node: self._operation(node) for node in self._layer_of}
        known = {node: each for node, each in operations.items() if each is not None}
        layers = tuple(self._layer(nodes, known[nodes[0]]) for nodes in self._nodes)
        return LayerGraph(
            self._view,
            layers,
            self._layer_of,
            self._why_whole,
            known,
            self._properties,
            self._infer,
            self._preserved,
            self._shares,
            update_of,
            frozenset(node for node in self._layer_of if self._is_gradient[node]),
        )

    def _add_updates(self) -> dict[int, Update]:
        """Puts the updates of filters into their layers."""
        gradients = [
            node
            for node in self._order
            if node in self._layer_of
            and node in self._heads
            and self._heads[node].role is ConvolutionKind.BACKWARD_FILTER
            and self._is_large(node)
        ]
        update_of: dict[int, Update] = {}
        for update in find_updates(
            self._view, self._properties, gradients, self._can_be_updated_like
        ):
            layer = self._layer_of[update.gradient]
            self._nodes[layer] += update.nodes
            for node in update.nodes:
                self._layer_of[node] = layer
                self._operations[node] = self._operation_of_update(node, update)
                update_of[node] = update
        return update_of

    def _is_large(self, gradient: int) -> bool:
        """Whether a parameter is large enough to gain from shares."""
        shape: Any = self._properties.output_shape(gradient, 0)
        if not is_fully_known(shape):
            return False
        dtype = tf.as_dtype(output_dtypes(self._view.nodes[gradient])[0])
        return bool(math.prod(shape) * dtype.size >= LEAST_SHARED_BYTES)

    def _can_be_updated_like(self, node: int, gradient: int) -> bool:
        """Whether a node in no layer may be divided as a gradient."""
        # What a function returns is never one of these, so a NoOp of the same name can stay.
        can_be_left = (READ_OP, *ASSIGN_OPS)
        is_free = (
            self._view.names[node] not in self._preserved or self._view.ops[node] in can_be_left
        )
        return (
            is_free
            and node not in self._layer_of
            and self._why_not_replaced(node) is None
            and self._view.nodes[node].device == self._view.nodes[gradient].device
        )

    def _operation_of_update(self, node: int, update: Update) -> Operation | None:
        """A node of an update as rules see it. A variable counts as a scalar."""
        gradient = self._operation(update.gradient)
        assert gradient is not None
        shape = gradient.output_shapes[0]
        old = self._view.nodes[node]
        if self._view.ops[node] == READ_OP:
            return Operation(old, ((),), (shape,), (None,))
        if self._view.ops[node] in ASSIGN_OPS:
            return Operation(old, ((), shape), (), (None, None))
        return self._make_operation(node)

    def _visit(self, node: int) -> None:
        """Puts a node into its layer, if it can be in one."""
        view = self._view
        principal = self._principal(node)
        followed = None if principal is None else self._followed[principal]
        self._is_gradient[node] = self._is_first_gradient(node) or any(
            self._is_gradient[source] for source, _ in view.fanins[node]
        )
        layout = self._layout_of(node, principal)
        if layout != "NHWC":
            self._layouts[node] = layout
        begins = self._begins_layer(node)
        layer = len(self._nodes) if begins else self._layer_to_join(node, followed)
        if layer is None:
            return
        why = self._why_not(node, layer)
        if why is None:
            if begins:
                self._nodes.append([])
            self._nodes[layer].append(node)
            self._layer_of[node] = layer
            if not self._is_gradient[node]:
                self._remember_name(node, layer)
        elif self._costs(node):
            self._why_whole[view.names[node]] = why
        if not self._is_gradient_of_parameter(node):
            self._followed[node] = layer if why is None else followed

    def _operation(self, node: int) -> Operation | None:
        """A node as rules see it; None if a shape is unknown."""
        if node not in self._operations:
            self._operations[node] = self._make_operation(node)
        return self._operations[node]

    def _make_operation(self, node: int) -> Operation | None:
        view, properties = self._view, self._properties
        places, ports = range(len(view.fanins[node])), range(len(output_dtypes(view.nodes[node])))
        inputs: Any = tuple(properties.input_shape(node, place) for place in places)
        outputs: Any = tuple(properties.output_shape(node, port) for port in ports)
        if not all(map(is_fully_known, inputs + outputs)):
            return None
        return Operation(
            view.nodes[node],
            inputs,
            outputs,
            tuple(self._value(*tensor) for tensor in view.fanins[node]),
            self._layouts.get(node, "NHWC"),
            self._heads[node].role if node in self._heads else ConvolutionKind.FORWARD,
        )

    def _value(self, node: int, port: int) -> np.ndarray[Any, Any] | None:
        """The value of a small constant, or of a vector of sizes."""
        if self._view.ops[node] == "Const":
            shape: Any = self._properties.output_shape(node, 0)
            if not is_fully_known(shape) or math.prod(shape) > _MOST_KNOWN_VALUES:
                return None
            return np.asarray(tf.make_ndarray(self._view.nodes[node].attr["value"].tensor))
        sizes = self._properties.held_shape(node, port)
        return np.asarray(sizes, np.int32) if is_fully_known(sizes) else None

    def _following(self, node: int) -> list[tuple[int, int]]:
        """The inputs of a node that follow a layer: their places and their source nodes.

        Scalars do not, such as the norm that scales all gradients.
        """
        return [
            (at, source)
            for at, (source, _) in enumerate(self._view.fanins[node])
            if self._followed[source] is not None and self._properties.input_shape(node, at) != ()
        ]

    def _principal(self, node: int) -> int | None:
        """The source of the largest input that follows a layer; the latest of equal ones."""
        sources = {source: at for at, source in self._following(node)}
        if len(sources) < 2:
            return next(iter(sources), None)
        return max(sources, key=lambda each: (self._size(node, sources[each]), self._rank[each]))

    def _begins_layer(self, node: int) -> bool:
        op = self._view.ops[node]
        head = self._heads.get(node)
        if head is not None:
            return head.first not in self._layer_of
        return not self._is_gradient[node] and (
            op in _POOLING_OPS or self._is_global_mean(node) or self._is_join(node)
        )

    def _layer_to_join(self, node: int, followed: int | None) -> int | None:
        op = self._view.ops[node]
        if node in self._heads:
            return self._layer_of[self._heads[node].first]
        if op in _FORWARD_PLACES:
            source, _ = self._view.fanins[node][_FORWARD_PLACES[op]]
            return followed if self._followed[source] is None else self._followed[source]
        if self._is_gradient[node] and followed is not None:
            named = self._named_layer(node)
            return followed if named is None else named
        return followed

    def _why_not(self, node: int, layer: int) -> str | None:
        """The reason why a node cannot be in a layer; None if it can."""
        view = self._view
        if view.ops[node] not in RULES:
            return f"nothing divides {view.ops[node]}"
        if view.names[node] in self._preserved:
            return "its name must stay"
        why = self._why_not_replaced(node)
        if why is not None:
            return why
        if layer < len(self._nodes):
            first = self._nodes[layer][0]
            if view.nodes[node].device != view.nodes[first].device:
                return "it is not on its layer's device"
        operation = self._operation(node)
        if operation is None:
            return SHAPES_ARE_UNKNOWN
        shapes = operation.input_shapes + operation.output_shapes
        if not any(len(shape) in (2, 4) for shape in shapes):
            return "its tensors have neither rank 4 nor 2"
        return None

    def _why_not_replaced(self, node: int) -> str | None:
        if xla_mark(self._view.nodes[node]) is not None:
            return "XLA compiles it"
        if not self._control_flow.always_runs_once(node):
            return "it is in a loop or a branch"
        return None

    def _costs(self, node: int) -> bool:
        """Whether a node is costly enough to report why it runs whole."""
        if self._view.ops[node] in TRIVIAL_OPS or not output_dtypes(self._view.nodes[node]):
            return False
        shape: Any = self._properties.output_shape(node, 0)
        is_large = not is_fully_known(shape) or math.prod(shape) > MOST_ELEMENTS
        return is_large or self._view.ops[node] in HEAD_OPS

    def _is_first_gradient(self, node: int) -> bool:
        """Whether a node is a gradient even if it reads no gradient."""
        op = self._view.ops[node]
        head = self._heads.get(node)
        if head is not None:
            return head.first != node or head.role is ConvolutionKind.BACKWARD_FILTER
        return "Grad" in op and op not in TRIVIAL_OPS

    def _is_gradient_of_parameter(self, node: int) -> bool:
        head = self._heads.get(node)
        is_of_filter = head is not None and head.role is ConvolutionKind.BACKWARD_FILTER
        return is_of_filter or self._view.ops[node] == "BiasAddGrad"

    def _is_join(self, node: int) -> bool:
        """Whether a node reads tensors of several layers and broadcasts none of them."""
        read = self._following(node)
        if self._view.ops[node] != "ConcatV2" and len(read) > 1:
            sizes = {at: self._size(node, at) for at, _ in read}
            read = [each for each in read if sizes[each[0]] == max(sizes.values())]
        return len({self._followed[source] for _, source in read}) > 1

    def _is_global_mean(self, node: int) -> bool:
        """Whether a node is the mean of all pixels of each image and channel."""
        if self._view.ops[node] != "Mean":
            return False
        operation = self._operation(node)
        if operation is None or len(operation.input_shapes[0]) != 4:
            return False
        axes = operation.input_values[1]
        pixels = set(SPATIAL_AXES[operation.layout])
        return axes is not None and {int(axis) % 4 for axis in axes.flat} == pixels

    def _layout_of(self, node: int, principal: int | None) -> str:
        """The layout of a node's tensors of rank 4."""
        view = self._view
        op = view.ops[node]
        if op in RULES:
            data_format: str = attribute_of(view.nodes[node], "data_format").s.decode()
            if data_format in ("NHWC", "NCHW"):
                return data_format
        if principal is None:
            return "NHWC"
        layout = self._layouts.get(principal, "NHWC")
        if op == "Transpose":
            permutation: Any = self._properties.held_shape(*view.fanins[node][1])
            return LAYOUT_AFTER.get(permutation, layout)
        return layout

    def _remember_name(self, node: int, layer: int) -> None:
        """Records the layer of a node's name and of its scopes."""
        scope = self._view.names[node]
        while scope and (known := self._layer_of_scope.get(scope)) not in (layer, _SEVERAL):
            self._layer_of_scope[scope] = layer if known is None else _SEVERAL
            scope = scope.rpartition("/")[0]

    def _named_layer(self, gradient: int) -> int | None:
        """The layer that a gradient's name refers to; None if it is not exactly one.

        TensorFlow names gradients `gradient_tape/pool/AvgPoolGrad` or
        `gradients/pool_grad/AvgPoolGrad`.
        """
        match = _GRADIENT_NAME.fullmatch(self._view.names[gradient])
        if match is None:
            return None
        scope, name = match.groups()
        scope += name.partition("_grad/")[0]
        while scope and scope not in self._layer_of_scope:
            scope = scope.rpartition("/")[0]
        layer = self._layer_of_scope.get(scope, _SEVERAL)
        return None if layer == _SEVERAL else layer

    def _size(self, node: int, place: int) -> int:
        """The number of values of an input; 0 if it is unknown."""
        shape: Any = self._properties.input_shape(node, place)
        return math.prod(shape) if is_fully_known(shape) else 0

    def _layer(self, nodes: list[int], first: Operation) -> Layer:
        rule = RULES[first.node.op]
        extents = rule.extents(first) or {}

        def may_be_divided(axis: Axis) -> bool:
            parts = rule.divide(first, Degrees(**{axis.value: 2}))
            return extents.get(axis, 1) > 1 and bool(parts)

        return Layer(
            first.node.name,
            first.node.op,
            tuple(sorted(nodes)),
            first.layout,
            {axis: extents[axis] if may_be_divided(axis) else 1 for axis in Axis},
        )
