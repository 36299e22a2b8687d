"""Fused operations and batch normalizations before a graph is divided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from graph_builder import CPU, FLOAT, GraphBuilder, node_of, same_graph
from parallel.parts_runner import run_graph
from parallel.traced_layers import image, layers_of, parameter
from tensorflow.core.framework import graph_pb2

from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.parallel.layers.find import LayerGraph
from tf_interop.parallel.layers.prepare import expand_layers, unfuse
from tf_interop.parallel.types import Degrees

ARGUMENTS = {"BiasAdd": [(4,)], "Add": [(2, 5, 6, 4)], "FusedBatchNorm": [(4,)] * 4}
Feeds = dict[str, np.ndarray[Any, Any]]


def fused_graph(op: str, fused: Sequence[str], **changes: Any) -> tuple[graph_pb2.GraphDef, Feeds]:
    """A fused operation "y" and its reader, and random values for the inputs."""
    is_product = op == "_FusedMatMul"
    filter_ = (3, 3, 4, 1) if "Depthwise" in op else (3, 3, 4, 4)
    shapes = [(2, 3), (3, 4)] if is_product else [(2, 5, 6, 4), filter_]
    arguments = [shape for name in fused for shape in ARGUMENTS.get(name, [])]
    if is_product:
        arguments = [(2, 4) if len(shape) == 4 else shape for shape in arguments]
    random = np.random.default_rng(0)
    feeds = {
        f"x{place}": np.abs(random.standard_normal(shape)).astype(np.float32) - 0.1 * (place < 2)
        for place, shape in enumerate([*shapes, *arguments])
    }
    graph = GraphBuilder(CPU)
    for name, value in feeds.items():
        graph.add(name, "Placeholder", dtype=FLOAT)
        graph.node(name).attr["dtype"].type = FLOAT
        graph.node(name).attr["shape"].shape.CopyFrom(tf.TensorShape(value.shape).as_proto())
    graph.add("before", "NoOp")
    attributes: dict[str, Any] = {
        "fused_ops": fused,
        "num_args": len(arguments),
        "leakyrelu_alpha": 0.3,
        "epsilon": 0.01,
        **changes,
    }
    if is_product:
        graph.add("y", op, *feeds, "^before", T=FLOAT, **attributes)
    else:
        if op == "_FusedConv2D":
            attributes = {"TArgs": [FLOAT] * len(arguments), **attributes}
        else:
            attributes |= {"TArgs": None, "num_host_args": None}
        graph.fused_conv("y", *feeds, "^before", op=op, **attributes)
    result = (2, 4) if is_product else (2, 5, 6, 4)
    graph.node("y").attr["_output_shapes"].list.shape.append(tf.TensorShape(result).as_proto())
    graph.add("reader", "Neg", "y", T=FLOAT)
    graph.graph_def.library.SetInParent()
    return graph.graph_def, feeds


def unfused(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    view = GraphView(graph_def)
    return unfuse(view, GraphProperties(view))


CASES = [
    ("_FusedConv2D", ["BiasAdd"]),
    *(("_FusedConv2D", ["BiasAdd", each]) for each in ("Relu", "Relu6", "Elu", "LeakyRelu")),
    ("_FusedConv2D", ["BiasAdd", "Add", "Relu"]),
    ("_FusedConv2D", ["FusedBatchNorm"]),
    ("_FusedConv2D", ["FusedBatchNorm", "Relu"]),
    ("_FusedDepthwiseConv2dNative", ["BiasAdd", "Relu6"]),
    ("_FusedMatMul", ["BiasAdd"]),
    ("_FusedMatMul", ["BiasAdd", "Tanh"]),
    ("_FusedMatMul", ["BiasAdd", "Add"]),
]


@pytest.mark.parametrize(("op", "fused"), CASES, ids=str)
def test_unfused_operations_compute_the_same(op: str, fused: Sequence[str]) -> None:
    graph_def, feeds = fused_graph(op, fused)
    apart = unfused(graph_def)
    names = {"Add": "AddV2", "FusedBatchNorm": "FusedBatchNormV3"}
    ops = [op.removeprefix("_Fused"), *(names.get(each, each) for each in fused)]
    assert [node.op for node in apart.node][-len(ops) - 1 : -1] == ops
    [after], [before] = (
        run_graph(each, feeds, ["reader"], optimizes=False) for each in (apart, graph_def)
    )
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


def test_the_last_op_gets_the_name_and_the_first_the_control_dependencies() -> None:
    graph_def, _ = fused_graph("_FusedConv2D", ["BiasAdd", "Relu"])
    apart = unfused(graph_def)
    assert [(node.name, [*node.input]) for node in apart.node][-4:] == [
        ("y/Conv2D", ["x0", "x1", "^before"]),
        ("y/BiasAdd", ["y/Conv2D", "x2"]),
        ("y", ["y/BiasAdd"]),
        ("reader", ["y"]),
    ]
    assert {node.device for node in apart.node} == {CPU}


def test_new_nodes_state_their_shapes_and_have_new_names() -> None:
    graph_def, _ = fused_graph("_FusedConv2D", ["FusedBatchNorm", "Relu"])
    graph_def.node.add(name="y/Conv2D", op="NoOp")
    apart = unfused(graph_def)
    view = GraphView(apart)
    properties = GraphProperties(view)
    for name in ("y/Conv2D_1", "y/FusedBatchNormV3", "y"):
        assert properties.output_shape(view.index_of[name], 0) == (2, 5, 6, 4)
    assert same_graph(unfused(apart), apart)


@pytest.mark.parametrize(
    ("fused", "changes"),
    [
        (["BiasAdd", "GeluExact"], {"num_args": 1}),
        # One argument too many.
        (["BiasAdd"], {}),
        (["BiasAdd", "Relu"], {"num_host_args": 1}),
        (["BiasAdd", "Relu"], {"filter_format": "OIHW"}),
        (["BiasAdd", "Relu"], {"TArgs": [tf.float64.as_datatype_enum]}),
        (["BiasAdd", "Relu"], {"data_format": "NCHW_VECT_C"}),
        (["Relu"], {"T": tf.qint8.as_datatype_enum}),
    ],
    ids=str,
)
def test_keeps_operations_without_separate_ops(
    fused: Sequence[str], changes: dict[str, Any]
) -> None:
    graph_def, _ = fused_graph("_FusedConv2D", fused, **changes)
    if not changes:
        node_of(graph_def, "y").input.insert(2, "x2")
    assert same_graph(unfused(graph_def), graph_def)


def normalized_convolution(*, is_training: bool) -> LayerGraph:
    def network() -> None:
        weights = parameter(3, 3, 3, 8, name="w")
        x = tf.nn.conv2d(image(4, 6, 6, 3), weights, 1, "SAME", name="c")
        vectors = {
            each: parameter(8, name=each) for each in ("scale", "offset", "mean", "variance")
        }
        y, *_ = tf.raw_ops.FusedBatchNormV2(x=x, **vectors, is_training=is_training, name="n")
        tf.identity(tf.nn.relu(y), name="result")

    return layers_of(network, ["result"])


@pytest.mark.parametrize("axis", ["sample", "height", "width"])
def test_expands_a_normalization_whose_statistics_are_divided(axis: str) -> None:
    layers = normalized_convolution(is_training=True)
    degrees = Degrees(**{axis: 2})
    expanded = expand_layers(layers, {"c": degrees})
    assert "FusedBatchNormV2" not in expanded.view.ops
    assert [each.name for each in expanded.layers] == [each.name for each in layers.layers] == ["c"]
    last = expanded.view.index_of["n"]
    assert expanded.layer_of[last] == 0
    assert len(expanded.parts(last, degrees) or ()) == 2


def test_keeps_a_normalization_that_can_be_divided() -> None:
    layers = normalized_convolution(is_training=True)
    assert expand_layers(layers, {"c": Degrees(filter=2)}) is layers
    assert expand_layers(layers, {}) is layers
    layers = normalized_convolution(is_training=False)
    assert expand_layers(layers, {"c": Degrees(sample=2)}) is layers
