"""Takes fused operations apart, so that they can be divided like those that Grappler did not fuse.

    x, filter, bias --> _FusedConv2D            x, filter --> Conv2D --> BiasAdd --> Relu
                        [BiasAdd, Relu]   =>                    bias ----^

Where the channels of an image are divided, parts are addends of the convolution. A bias may be
added to their sum alone, and so may be done what follows it.

Taken apart is an operation
1. in the layouts NHWC and HWIO, or NCHW and HWIO,
2. whose arguments have its dtype,
3. and whose fused operations all have ops of their own.

Guaranteed: the last of the new nodes has the name of the fused one, the first its control
dependencies, all its device; a second run changes nothing. The new nodes state their shapes, which
nobody could infer by their names.
"""

from __future__ import annotations

import itertools

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2

from tf_interop import tensorflow_internals
from tf_interop.convolution import Shape
from tf_interop.graph.ops import attribute_of
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.parallel.node_maker import NodeMaker, without_nodes

_HEADS = {
    "_FusedConv2D": "Conv2D",
    "_FusedDepthwiseConv2dNative": "DepthwiseConv2dNative",
    "_FusedMatMul": "MatMul",
}
"""What each fused op begins with. It reads the first two tensors, what is fused to it the rest."""

_ARGUMENT_COUNTS = {
    **{"BiasAdd": 1, "AddV2": 1, "FusedBatchNormV3": 4},
    **dict.fromkeys(("Relu", "Relu6", "LeakyRelu", "Elu", "Tanh", "Sigmoid"), 0),
}
"""How many tensors each op takes beside the result of the one before."""

_OWN_NAMES = {"Add": "AddV2", "FusedBatchNorm": "FusedBatchNormV3"}
"""The ops of fused operations that are called otherwise."""


def unfuse(view: GraphView, properties: GraphProperties) -> graph_pb2.GraphDef:
    """Takes the fused operations of a graph apart.

    Args:
        view: the graph. It is not altered.
        properties: its shapes.

    Returns:
        The new graph.
    """
    graph_def = without_nodes(view.graph_def)
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
        # The parameters of a normalization by itself are of float32.
        and ("FusedBatchNormV3" not in ops or dtype == tf.float32.as_datatype_enum)
    )


def _fused_ops(node: node_def_pb2.NodeDef) -> list[str]:
    """The ops of what is fused to a node, in order."""
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
    """Gives a new node what it has in common with the fused one, and the shape of its result."""
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
    shapes = [shape, *[None] * (len(op_def.output_arg) - 1)]
    new.attr["_output_shapes"].list.Clear()
    new.attr["_output_shapes"].list.shape.extend(tf.TensorShape(each).as_proto() for each in shapes)
    new.experimental_debug_info.CopyFrom(node.experimental_debug_info)
