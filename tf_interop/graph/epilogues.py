"""Fuses biases and activations into convolutions, for functions that XLA compiles.

    before                                 after

    x ── Conv2D ── AddV2 ── Relu ── …      x ── _FusedConv2D (BiasAdd, Relu) ── …
    bias ────────────^                     bias ──────^

In other functions Grappler has done so. XLA does it by itself, but not for convolutions in stages.

Preconditions:
  1. nothing but the addition reads the convolution, and nothing but the activation reads the sum;
  2. neither name must be preserved, and only the convolution may have control dependencies;
  3. all are on one device and have one dtype;
  4. the bias has one value for each channel.

Guaranteed: the fused node has the name of the last node that it replaces, so readers stay as they
are. XLA has no kernel for a fused node, so `separate_epilogues` restores those outside stages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2

from tf_interop.convolution import Shape
from tf_interop.graph.ops import (
    CONVOLUTION_KINDS,
    SUPPORTED_DTYPES,
    attribute_of,
    set_attributes,
)
from tf_interop.graph.properties import GraphProperties, is_fully_known
from tf_interop.graph.view import COLOCATION, GraphView, recolocate
from tf_interop.graph.xla import xla_mark

_FUSED = {"Conv2D": "_FusedConv2D", "Conv3D": "_FusedConv3D"}
_SUMS = frozenset({"Add", "AddV2"})
# Not LeakyRelu: not every cuDNN has an engine for it.
_ACTIVATIONS = frozenset({"Relu", "Relu6", "Elu"})
# cuDNN has no engine for an epilogue of doubles.
_DTYPES = SUPPORTED_DTYPES.keys() - {types_pb2.DT_DOUBLE}
_SHARED_ATTRIBUTES = (
    *("T", "strides", "padding", "explicit_paddings", "data_format", "dilations"),
    "_output_shapes",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Epilogue:
    """A convolution and what becomes part of it.

    Attributes:
        convolution: the convolution's node.
        bias_add: the node that adds the bias.
        bias_position: the operand of `bias_add` that is the bias.
        activation: the activation's node; None if there is none.
    """

    convolution: int
    bias_add: int
    bias_position: int
    activation: int | None

    @property
    def last(self) -> int:
        """The node whose place the fused one takes."""
        return self.bias_add if self.activation is None else self.activation


def without_unread_convolutions(view: GraphView) -> GraphView:
    """Drops convolutions that nothing reads, as XLA does: a stage would compute them.

    The gradient of a network by its images is one.
    """
    kept = view.with_nodes(
        node
        for node, readers in zip(view.nodes, view.fanouts, strict=True)
        if readers or node.op not in CONVOLUTION_KINDS or node.name in view.preserved
    )
    return GraphView(kept, view.preserved, view.fetches)


def find_epilogues(view: GraphView, properties: GraphProperties) -> tuple[Epilogue, ...]:
    """Finds the convolutions with a bias."""
    found: list[Epilogue] = []
    taken = set()
    for index, op in enumerate(view.ops):
        if op not in _FUSED:
            continue
        bias_add = _only_reader(view, index)
        if bias_add is None or bias_add in taken:
            continue
        position = _bias_position(view, properties, index, bias_add)
        if position is None:
            continue
        activation = _only_reader(view, bias_add)
        if activation is not None and view.ops[activation] not in _ACTIVATIONS:
            activation = None
        taken.add(bias_add)
        found.append(Epilogue(index, bias_add, position, activation))
    return tuple(found)


def fuse_epilogues(view: GraphView, epilogues: Sequence[Epilogue]) -> graph_pb2.GraphDef:
    """Makes one node of each convolution and its epilogue."""
    fused = {each.last: _fused_node(view, each) for each in epilogues}
    gone = {each.convolution for each in epilogues}
    gone |= {each.bias_add for each in epilogues} - fused.keys()
    graph_def = view.with_nodes(
        fused.get(index, node) for index, node in enumerate(view.nodes) if index not in gone
    )
    names = {
        view.names[index]: view.names[each.last]
        for each in epilogues
        for index in (each.convolution, each.bias_add)
    }
    recolocate(graph_def.node, names)
    return graph_def


def separate_epilogues(
    graph_def: graph_pb2.GraphDef, original: GraphView, epilogues: Sequence[Epilogue]
) -> graph_pb2.GraphDef:
    """Restores the nodes of those epilogues that are still nodes of a changed graph.

    Args:
        graph_def: made from the graph with `epilogues` fused.
        original: the graph before.
        epilogues: all that were fused.
    """
    by_name = {original.names[each.last]: each for each in epilogues}
    separated = original.with_nodes(())
    for node in graph_def.node:
        epilogue = by_name.get(node.name)
        if epilogue is None or node.op not in _FUSED.values():
            separated.node.add().CopyFrom(node)
            continue
        places = [epilogue.convolution, epilogue.bias_add]
        if epilogue.activation is not None:
            places.append(epilogue.activation)
        restored = [separated.node.add() for _ in places]
        for new, place in zip(restored, places, strict=True):
            new.CopyFrom(original.nodes[place])
            new.attr.pop(COLOCATION, None)  # placed with nodes that may be in a stage now
        # What the node reads may have moved into a stage.
        image, filter_, bias, *controls = node.input
        restored[0].input[:] = [image, filter_, *controls]
        restored[1].input[epilogue.bias_position] = bias
    return separated


def _only_reader(view: GraphView, index: int) -> int | None:
    """The node that alone reads a node's output, once, and may become one with it."""
    readers = view.fanouts[index]
    if len(readers) != 1 or view.names[index] in view.preserved:
        return None
    [reader] = readers
    node, other = view.nodes[index], view.nodes[reader]
    is_plain = (
        view.fanins[reader].count((index, 0)) == 1
        and not view.control_fanins[reader]
        and node.device == other.device
        and attribute_of(node, "T").type == attribute_of(other, "T").type
        and attribute_of(node, "T").type in _DTYPES
        and xla_mark(node) is None
        and xla_mark(other) is None
    )
    return reader if is_plain else None


def _bias_position(
    view: GraphView, properties: GraphProperties, convolution: int, reader: int
) -> int | None:
    """Which operand of a convolution's reader is a bias; None if neither is."""
    node, op = view.nodes[convolution], view.ops[reader]
    layout = attribute_of(node, "data_format").s
    if op == "BiasAdd":
        has_same_layout = attribute_of(view.nodes[reader], "data_format").s.startswith(layout[:2])
        return 1 if has_same_layout and view.fanins[reader][0][0] == convolution else None
    if op not in _SUMS:
        return None
    position = 1 - view.fanins[reader].index((convolution, 0))
    filter_shape = properties.input_shape(convolution, 1)
    bias_shape = properties.input_shape(reader, position)
    if not is_fully_known(filter_shape) or not is_fully_known(bias_shape):
        return None
    assert filter_shape is not None
    assert bias_shape is not None
    rank = len(filter_shape)
    axis = rank - 1 if layout.endswith(b"C") else 1
    expected: Shape = tuple(filter_shape[-1] if i == axis else 1 for i in range(rank))
    # Stages take no scalar.
    fits = bias_shape and (1,) * (rank - len(bias_shape)) + tuple(bias_shape) == expected
    return position if fits else None


def _fused_node(view: GraphView, epilogue: Epilogue) -> node_def_pb2.NodeDef:
    old = view.nodes[epilogue.convolution]
    new = node_def_pb2.NodeDef(name=view.names[epilogue.last], op=_FUSED[old.op], device=old.device)
    bias = view.nodes[epilogue.bias_add].input[epilogue.bias_position]
    operands = len(view.fanins[epilogue.convolution])
    new.input.extend([*old.input[:operands], bias, *old.input[operands:]])
    for name in _SHARED_ATTRIBUTES:
        if name in old.attr:
            new.attr[name].CopyFrom(old.attr[name])
    fused_ops = [b"BiasAdd"]
    if epilogue.activation is not None:
        fused_ops.append(view.ops[epilogue.activation].encode())
    set_attributes(new, fused_ops=fused_ops, num_args=1)
    if new.op == "_FusedConv2D":
        set_attributes(new, num_host_args=0, TArgs=[old.attr["T"].type])
    return new
