"""Prepares a graph to be divided, and finds its layers.

Fused operations are taken apart, so that the ops after a convolution are divided as it is:

    x, filter, bias --> _FusedConv2D            x, filter --> Conv2D --> BiasAdd --> Relu
                        [BiasAdd, Relu]   =>                    bias ----^

Where the channels of an image are divided, parts of the convolution are addends, and only their sum
can have a bias and an activation.

An operation is taken apart if
1. its layouts are NHWC and HWIO, or NCHW and HWIO,
2. its arguments have its dtype,
3. all of its fused operations exist as ops.

Guaranteed: the last new node has the fused node's name, the first has its control dependencies, and
all have its device; a second run changes nothing. The new nodes state their shapes, because shape
inference does not know their names.

Once the division is known, batch normalizations that would run whole are also replaced
(`rules/normalization.py`): those with statistics of a divided batch or of divided images.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop import tensorflow_internals
from tf_interop.convolution import Shape
from tf_interop.graph.ops import attribute_of
from tf_interop.graph.properties import GraphProperties, ShapeInference, state_shapes
from tf_interop.graph.view import GraphView
from tf_interop.parallel.layers.find import LayerGraph, find_layers
from tf_interop.parallel.node_maker import NodeMaker
from tf_interop.parallel.rules.normalization import (
    expand_normalization,
    find_normalizations,
    is_with_its_pair,
)
from tf_interop.parallel.types import Degrees

_HEADS = {
    "_FusedConv2D": "Conv2D",
    "_FusedDepthwiseConv2dNative": "DepthwiseConv2dNative",
    "_FusedMatMul": "MatMul",
}
"""The first op of each fused op. It reads the first two tensors; the fused operations read the
others."""

_ARGUMENT_COUNTS = {
    **{"BiasAdd": 1, "AddV2": 1, "FusedBatchNormV3": 4},
    **dict.fromkeys(("Relu", "Relu6", "LeakyRelu", "Elu", "Tanh", "Sigmoid"), 0),
}
"""The number of tensors that each op reads in addition to the result of the op before it."""

_OWN_NAMES = {"Add": "AddV2", "FusedBatchNorm": "FusedBatchNormV3"}
"""The names of fused operations that differ from their ops' names."""


def prepare(
    graph_def: graph_pb2.GraphDef,
    infer: ShapeInference | None = None,
    nodes_to_preserve: Collection[str] = (),
    shares: str = "",
) -> LayerGraph:
    """Takes the fused operations of a copy of a graph apart, and finds its layers.

    See `LayerGraph` for the arguments.

    Raises:
        GraphError: the graph is malformed.
    """
    view = GraphView(graph_def)
    view = GraphView(unfuse(view, GraphProperties(view, infer)))
    return find_layers(view, infer, nodes_to_preserve, shares)


def expand_layers(layers: LayerGraph, degrees_of: Mapping[str, Degrees]) -> LayerGraph:
    """Replaces batch normalizations that would run whole if layers have these degrees, by name.

    Returns:
        The layers of an equivalent graph, with the same names; `layers` itself if there is nothing
        to replace.
    """
    view, properties = layers.view, layers.properties
    whole = set()
    for node in find_normalizations(view, properties) & layers.layer_of.keys():
        degrees = degrees_of.get(layers.layers[layers.layer_of[node]].name)
        if degrees is not None and layers.parts(node, degrees) is None:
            whole.add(node)
    nodes = [node for node in whole if is_with_its_pair(view, whole, node)]
    if not nodes:
        return layers
    expanded = GraphView(expand_normalization(view, properties, nodes))
    return find_layers(expanded, layers.infer, layers.preserved, layers.shares)


def unfuse(view: GraphView, properties: GraphProperties) -> graph_pb2.GraphDef:
    """Makes a new graph with fused operations taken apart."""
    graph_def = view.with_nodes(())
    taken = set(view.names)
    for index, node in enumerate(view.nodes):
        if _can_be_unfused(node, len(view.fanins[index])):
            _unfuse_node(graph_def, node, properties.output_shape(index, 0), taken)
        else:
            graph_def.node.append(node)
    return graph_def


def _can_be_unfused(node: node_def_pb2.NodeDef, input_count: int) -> bool:
    if node.op not in _HEADS:
        return False
    ops = _fused_ops(node)
    dtype = attribute_of(node, "T").type
    return (
        all(op in _ARGUMENT_COUNTS for op in ops)
        and sum(_ARGUMENT_COUNTS[op] for op in ops) == input_count - 2
        and attribute_of(node, "num_host_args").i == 0
        and set(attribute_of(node, "TArgs").list.type) <= {dtype}
        and attribute_of(node, "data_format").s in (b"", b"NHWC", b"NCHW")
        and attribute_of(node, "filter_format").s in (b"", b"HWIO")
        and tf.as_dtype(dtype).is_floating
        # A normalization that is an op of its own has float32 parameters.
        and ("FusedBatchNormV3" not in ops or dtype == tf.float32.as_datatype_enum)
    )


def _fused_ops(node: node_def_pb2.NodeDef) -> list[str]:
    """The ops of a node's fused operations, in order."""
    names = [name.decode() for name in attribute_of(node, "fused_ops").list.s]
    return [_OWN_NAMES.get(name, name) for name in names]


def _unfuse_node(
    graph_def: graph_pb2.GraphDef, node: node_def_pb2.NodeDef, shape: Shape | None, taken: set[str]
) -> None:
    """Adds the nodes of a fused one to `graph_def`."""
    make = NodeMaker(graph_def, node.device, node.name, taken)
    tensors = [text for text in node.input if not text.startswith("^")]
    inputs = [*tensors[:2], *node.input[len(tensors) :]]
    rest = iter(tensors[2:])
    new: list[node_def_pb2.NodeDef] = []
    for op in (_HEADS[node.op], *_fused_ops(node)):
        if new:
            inputs = [new[-1].name, *itertools.islice(rest, _ARGUMENT_COUNTS[op])]
        make(op, *inputs)
        new.append(graph_def.node[-1])
        _describe(new[-1], node, shape)
    new[-1].name = node.name


def _describe(new: node_def_pb2.NodeDef, node: node_def_pb2.NodeDef, shape: Shape | None) -> None:
    """Copies to a new node the attributes that it shares with the fused one, and the shape."""
    op_def = tensorflow_internals.op_def(new.op)
    own = {attribute.name for attribute in op_def.attr}
    for name, value in node.attr.items():
        if name in own or name.startswith("_"):
            new.attr[name].CopyFrom(value)
    if new.op == "LeakyRelu" and "leakyrelu_alpha" in node.attr:
        new.attr["alpha"].CopyFrom(node.attr["leakyrelu_alpha"])
    elif new.op == "FusedBatchNormV3":
        new.attr["U"].type = node.attr["T"].type
        new.attr["is_training"].b = False
    new.attr.pop("_input_shapes", None)
    state_shapes(new, shape, *[None] * (len(op_def.output_arg) - 1))
    new.experimental_debug_info.CopyFrom(node.experimental_debug_info)
