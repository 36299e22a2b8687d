"""Graphs with branches, and edits that damage a GraphDef at random."""

from __future__ import annotations

from collections.abc import Callable

from graph_builder import CPU, FLOAT, HALF, GraphBuilder
from tensorflow.core.framework import graph_pb2, types_pb2

Choose = Callable[[int], int]
"""Gives a number from 0 to below its argument, which is at least 1."""

OPS = (
    "Conv2D",
    "_FusedConv2D",
    "Conv2DBackpropInput",
    "Conv2DBackpropFilter",
    "DepthwiseConv2dNative",
    "Relu",
    "Const",
    "Placeholder",
    "Identity",
    "Switch",
    "Merge",
    "Enter",
    "Exit",
    "NextIteration",
    "LoopCond",
    "TfInterop>ConvStage",
    "NoSuchOp",
    "",
)
DEVICES = ("", CPU, "/device:GPU:1", "/job:worker/task:3", "no device", "/device:CPU:")
INPUT_FORMS = (
    "{}",
    "{}:1",
    "{}:0",
    "^{}",
    "{}:-1",
    "{}:99999999999999999999",
    "{}:x",
    "",
    "^",
    ":0",
)


_SHAPES = {
    "image": [2, 8, 8, 4],
    "filter": [3, 3, 4, 4],
    "depthwise_filter": [3, 3, 4, 1],
    "bias": [4],
}


def whole_graph() -> graph_pb2.GraphDef:
    """Two branches forward, and the gradients of one of them."""
    graph = GraphBuilder(device=CPU)
    for name, shape in _SHAPES.items():
        graph.source(name, shape, op="Placeholder")
        graph.node(name).attr["dtype"].type = FLOAT
    graph.conv("a", "image", "filter")
    graph.fused_conv("b", "image", "filter", "bias")
    graph.conv("c", "a", "filter")
    graph.conv("depthwise", "b", "depthwise_filter", op="DepthwiseConv2dNative")
    graph.sizes("image_sizes", [2, 8, 8, 4])
    graph.sizes("filter_sizes", [3, 3, 4, 4])
    for name in ("image_sizes", "filter_sizes"):
        graph.node(name).attr["dtype"].type = types_pb2.DT_INT32
    graph.conv("image_gradient", "image_sizes", "filter", "c", op="Conv2DBackpropInput")
    graph.conv("filter_gradient", "a", "filter_sizes", "c", op="Conv2DBackpropFilter")
    graph.add("relu", "Relu", "depthwise", T=FLOAT)
    graph.add("sum", "AddN", "c", "relu", T=FLOAT, N=2)
    graph.add("out", "Identity", "sum", "^image_gradient", T=FLOAT)
    graph.add("gradient", "Identity", "filter_gradient", T=FLOAT)
    return graph.graph_def


def damage_graph(graph_def: graph_pb2.GraphDef, choose: Choose, edits: int) -> None:
    """Makes up to `edits` edits, none of which is sure to keep the graph legal."""
    for _ in range(edits):
        if graph_def.node:
            _EDITS[choose(len(_EDITS))](graph_def, choose)


def _some_node(graph_def: graph_pb2.GraphDef, choose: Choose):  # type: ignore[no-untyped-def]
    return graph_def.node[choose(len(graph_def.node))]


def _remove_node(graph_def: graph_pb2.GraphDef, choose: Choose) -> None:
    del graph_def.node[choose(len(graph_def.node))]


def _repeat_node(graph_def: graph_pb2.GraphDef, choose: Choose) -> None:
    node = _some_node(graph_def, choose)
    graph_def.node.add().CopyFrom(node)


def _copy_node(graph_def: graph_pb2.GraphDef, choose: Choose) -> None:
    node = graph_def.node.add()
    node.CopyFrom(_some_node(graph_def, choose))
    node.name = f"copy_{len(graph_def.node)}"


def _rename_node(graph_def: graph_pb2.GraphDef, choose: Choose) -> None:
    names = ("", "a", "^a", "a:0", "stage_0", "x" * 300, "\u00e9", "a/b/c")
    _some_node(graph_def, choose).name = names[choose(len(names))]


def _change_op(graph_def: graph_pb2.GraphDef, choose: Choose) -> None:
    _some_node(graph_def, choose).op = OPS[choose(len(OPS))]


def _change_device(graph_def: graph_pb2.GraphDef, choose: Choose) -> None:
    _some_node(graph_def, choose).device = DEVICES[choose(len(DEVICES))]


def _change_input(graph_def: graph_pb2.GraphDef, choose: Choose) -> None:
    node = _some_node(graph_def, choose)
    text = INPUT_FORMS[choose(len(INPUT_FORMS))].format(_some_node(graph_def, choose).name)
    if node.input and choose(2):
        node.input[choose(len(node.input))] = text
    else:
        node.input.append(text)


def _remove_input(graph_def: graph_pb2.GraphDef, choose: Choose) -> None:
    node = _some_node(graph_def, choose)
    if node.input:
        del node.input[choose(len(node.input))]


def _remove_attribute(graph_def: graph_pb2.GraphDef, choose: Choose) -> None:
    node = _some_node(graph_def, choose)
    if node.attr:
        del node.attr[sorted(node.attr)[choose(len(node.attr))]]


def _change_attribute(graph_def: graph_pb2.GraphDef, choose: Choose) -> None:
    node = _some_node(graph_def, choose)
    if not node.attr:
        return
    value = node.attr[sorted(node.attr)[choose(len(node.attr))]]
    form = choose(7)
    if form == 0:
        value.i = (-1, 0, 2**40, -(2**63))[choose(4)]
    elif form == 1:
        value.s = (b"", b"NCHW", b"SAME", b"VALID", b"EXPLICIT", b"\xff\xfe")[choose(6)]
    elif form == 2:
        value.type = (HALF, types_pb2.DT_INT8, types_pb2.DT_DOUBLE, 9999)[choose(4)]
    elif form == 3:
        value.list.i.append((-1, 0, 3, 2**40)[choose(4)])
    elif form == 4:
        del value.list.i[:]
    elif form == 5:
        value.shape.dim.add(size=(-2, -1, 0, 2**40)[choose(4)])
    else:
        value.tensor.tensor_content = b"\x01\x02\x03"


def _swap_inputs(graph_def: graph_pb2.GraphDef, choose: Choose) -> None:
    node = _some_node(graph_def, choose)
    if node.input:
        inputs = list(node.input)
        inputs.append(inputs.pop(choose(len(inputs))))
        del node.input[:]
        node.input.extend(inputs)


_EDITS = (
    _remove_node,
    _repeat_node,
    _copy_node,
    _rename_node,
    _change_op,
    _change_device,
    _change_input,
    _remove_input,
    _remove_attribute,
    _change_attribute,
    _swap_inputs,
)
