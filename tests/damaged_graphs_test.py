"""Damaged GraphDefs through the whole pass: it refuses them or leaves them legal."""

from __future__ import annotations

import random

import pytest
import tensorflow as tf
from graph_builder import CPU, FLOAT, HALF, add_shapes, graph_of
from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2, types_pb2

from tf_interop.errors import TfInteropError
from tf_interop.graph.check import check_rewrite
from tf_interop.graph.view import GraphView
from tf_interop.runtime.graph_pass import run_conv_stage_pass
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.settings import Policy, Settings

GRAPHS = 2400
GRAPHS_PER_TEST = 600

ALWAYS = Settings(policy=Policy.ALWAYS)
NARROW = Settings(policy=Policy.ALWAYS, has_host_stages=False)

SHAPES = {
    **{"image": [2, 8, 8, 4], "filter": [3, 3, 4, 4], "depthwise_filter": [3, 3, 4, 1]},
    "bias": [4],
}
# Two branches forward, and the gradients of one of them.
NODES = {
    **dict.fromkeys(SHAPES, "Placeholder"),
    **{"a": "Conv2D image filter", "b": "_FusedConv2D image filter bias"},
    **{"c": "Conv2D a filter", "depthwise": "DepthwiseConv2dNative b depthwise_filter"},
    "image_gradient": "Conv2DBackpropInput image_sizes filter c",
    "filter_gradient": "Conv2DBackpropFilter a filter_sizes c",
    **{"relu": "Relu depthwise", "sum": "AddN c relu"},
    **{"out": "Identity sum ^image_gradient", "gradient": "Identity filter_gradient"},
}

OPS = (
    *("Conv2D", "_FusedConv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", "Relu", "Const"),
    *("DepthwiseConv2dNative", "Placeholder", "Identity", "Switch", "Merge", "Enter", "Exit"),
    *("NextIteration", "LoopCond", "TfInterop>ConvStage", "NoSuchOp", ""),
    *("TfInterop>Unit", "MatMul", "Cast", "ConcatV2"),
)
DEVICES = ("", CPU, "/device:GPU:1", "/job:worker/task:3", "no device", "/device:CPU:")
NAMES = ("", "a", "^a", "a:0", "stage_0", "x" * 300, "\u00e9", "a/b/c")
INPUTS = (
    *("{}", "{}:1", "{}:0", "^{}", "{}:-1", "{}:99999999999999999999", "{}:x", "", "^", ":0"),
)


def whole_graph() -> graph_pb2.GraphDef:
    sizes = graph_of({}, CPU)
    for name, of in (("image_sizes", "image"), ("filter_sizes", "filter")):
        sizes.sizes(name, SHAPES[of])
        sizes.node(name).attr["dtype"].type = types_pb2.DT_INT32
    graph = graph_of({"image_sizes": "Const", "filter_sizes": "Const", **NODES}, CPU)
    for node in sizes.graph_def.node:
        graph.node(node.name).CopyFrom(node)
    for name, shape in SHAPES.items():
        node = graph.node(name)
        del node.attr["T"]
        node.attr["dtype"].type = FLOAT
        add_shapes(node, "_output_shapes", [shape])
    graph.node("sum").attr["N"].i = 2
    return graph.graph_def


def change_value(value: attr_value_pb2.AttrValue, choose: random.Random) -> None:
    match choose.randrange(7):
        case 0:
            value.i = choose.choice((-1, 0, 2**40, -(2**63)))
        case 1:
            value.s = choose.choice((b"", b"NCHW", b"SAME", b"VALID", b"EXPLICIT", b"\xff\xfe"))
        case 2:
            value.type = choose.choice((HALF, types_pb2.DT_INT8, types_pb2.DT_DOUBLE, 9999))
        case 3:
            value.list.i.append(choose.choice((-1, 0, 3, 2**40)))
        case 4:
            del value.list.i[:]
        case 5:
            value.shape.dim.add(size=choose.choice((-2, -1, 0, 2**40)))
        case _:
            value.tensor.tensor_content = b"\x01\x02\x03"


def damage(graph_def: graph_pb2.GraphDef, choose: random.Random) -> None:
    """Makes an edit that is not sure to keep the graph legal."""
    node: node_def_pb2.NodeDef = choose.choice(graph_def.node)
    inputs, attributes = list(node.input), sorted(node.attr)
    match choose.randrange(11):
        case 0:
            graph_def.node.remove(node)
        case 1:
            graph_def.node.add().CopyFrom(node)
        case 2:
            copy = graph_def.node.add()
            copy.CopyFrom(node)
            copy.name = f"copy_{len(graph_def.node)}"
        case 3:
            node.name = choose.choice(NAMES)
        case 4:
            node.op = choose.choice(OPS)
        case 5:
            node.device = choose.choice(DEVICES)
        case 6:
            text = choose.choice(INPUTS).format(choose.choice(graph_def.node).name)
            if inputs and choose.random() < 0.5:
                node.input[choose.randrange(len(inputs))] = text
            else:
                node.input.append(text)
        case 7 if inputs:
            del node.input[choose.randrange(len(inputs))]
        case 8 if attributes:
            del node.attr[choose.choice(attributes)]
        case 9 if attributes:
            change_value(node.attr[choose.choice(attributes)], choose)
        case _ if inputs:
            inputs.append(inputs.pop(choose.randrange(len(inputs))))
            node.input[:] = inputs


def can_be_imported(graph_def: graph_pb2.GraphDef) -> bool:
    try:
        with tf.Graph().as_default():
            tf.import_graph_def(graph_def, name="")
    # What TensorFlow raises depends on what is wrong.
    except Exception:
        return False
    return True


def test_the_whole_graph_gets_stages_and_can_be_imported() -> None:
    result = run_conv_stage_pass(whole_graph(), ALWAYS, "CPU")
    assert result.report is not None
    assert sum(len(each.stage.lanes) for each in result.report.plan.stages) >= 4
    get_plugin()  # registers the op
    assert result.graph_def is not None
    assert can_be_imported(result.graph_def)


def test_the_whole_graph_gets_narrow_units_and_can_be_imported() -> None:
    result = run_conv_stage_pass(whole_graph(), NARROW, "CPU", ("out",))
    assert result.report is not None
    assert len(result.report.plan.narrow_units) >= 4
    get_plugin()  # registers the op
    assert result.graph_def is not None
    assert can_be_imported(result.graph_def)


@pytest.mark.parametrize("settings", [ALWAYS, NARROW], ids=["stages", "units"])
@pytest.mark.parametrize("first", range(0, GRAPHS, GRAPHS_PER_TEST))
def test_damaged_graphs_are_refused_or_stay_legal(first: int, settings: Settings) -> None:
    get_plugin()
    refused = rewritten = 0
    for seed in range(first, first + GRAPHS_PER_TEST):
        choose = random.Random(seed)
        graph_def = whole_graph()
        for _ in range(choose.randint(1, 4)):
            damage(graph_def, choose)
        before = graph_def.SerializeToString(deterministic=True)
        try:
            result = run_conv_stage_pass(graph_def, settings, "CPU", ("out",)).graph_def
        except TfInteropError:
            refused += 1
            result = None
        assert graph_def.SerializeToString(deterministic=True) == before
        if result is not None:
            rewritten += 1
            check_rewrite(GraphView(graph_def), GraphView(result), ("out",))
            assert can_be_imported(result) or not can_be_imported(graph_def)
    # Both happen often, or the edits have lost their teeth.
    assert refused > GRAPHS_PER_TEST // 10
    assert rewritten > GRAPHS_PER_TEST // 10
