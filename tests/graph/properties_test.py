"""Where shapes of tensors come from, and how units treat nodes that compute little."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from graph_builder import CPU, GraphBuilder, add_shapes
from tensorflow.core.framework import graph_pb2, types_pb2

from tf_interop.convolution import Shape
from tf_interop.graph.properties import MOST_ELEMENTS, GraphProperties, find_small, merge_shapes
from tf_interop.graph.rewrite import rewrite_units
from tf_interop.graph.units import MOST_ANCHORS, Unit, find_units
from tf_interop.graph.view import GraphView


def test_merges() -> None:
    for first, second, expected in [
        (None, None, None),
        ((1, None), None, (1, None)),
        ((1, None, 3), (None, 2, None), (1, 2, 3)),
        ((1, 2), (1, 3), (1, None)),
        ((1, 2), (1, 2, 3), None),
    ]:
        assert merge_shapes(first, second) == merge_shapes(second, first) == expected


def test_infers_only_where_a_dimension_is_open() -> None:
    asked = []

    def infer(name: str) -> list[Shape | None]:
        asked.append(name)
        return [(7, 9)]

    graph = GraphBuilder()
    graph.source("known", (1, 2))
    graph.source("open", (None, 2))
    graph.add("b", "Add", "known", "open")
    add_shapes(graph.node("b"), "_input_shapes", [None, (None, None)])
    properties = GraphProperties(GraphView(graph.graph_def), infer)
    for _ in range(2):
        # Of the open shape's second dimension two sources say different things: it is not known.
        assert properties.input_shape(2, 0) == (1, 2)
        assert properties.input_shape(2, 1) == (7, None)
    assert asked == ["open"]


def _graph() -> GraphBuilder:
    graph = GraphBuilder()
    graph.source("open", (None, 4))
    graph.add("reader", "Neg", "open")
    add_shapes(graph.node("reader"), "_input_shapes", [(3, None)])
    graph.add("no_rank", "_Arg")
    add_shapes(graph.node("no_rank"), "_output_shapes", [None])
    graph.add("split", "Split")
    add_shapes(graph.node("split"), "_output_shapes", [(1,), (2,)])
    graph.add("of_split", "Neg", "split:1")
    graph.sizes("constant", [2, 7, 7, 176])
    graph.sizes("last_value_repeated", [4, 4, 4, 4])
    tensor = graph.node("last_value_repeated").attr["value"].tensor
    tensor.tensor_content = b""
    tensor.int_val.extend([3, 4])
    graph.sizes("not_int32", [1, 2, 3, 4])
    graph.node("not_int32").attr["value"].tensor.dtype = types_pb2.DT_INT64
    graph.add("argument", "_Arg")
    add_shapes(graph.node("argument"), "_handle_shapes", [(3, 3, 8, 16)])
    graph.add("read", "ReadVariableOp", "argument")
    for name in ("variable", "without_shape"):
        graph.add(name, "VarHandleOp")
        graph.add(f"read_{name}", "ReadVariableOp", name)
    graph.node("variable").attr["shape"].shape.dim.add(size=11)
    graph.add("shape", "Shape", "split:1")
    graph.add("shapes", "ShapeN", "constant", "open")
    return graph


def test_reads_what_nodes_say_and_leaves_the_graph_alone() -> None:
    graph = _graph()
    before = graph_pb2.GraphDef.FromString(graph.graph_def.SerializeToString())
    view = GraphView(graph.graph_def)
    properties = GraphProperties(view, lambda name: None)  # inference that knows nothing
    for name, port, expected in [
        ("open", 0, (None, 4)),
        ("no_rank", 0, None),
        ("split", 1, (2,)),
        ("split", 2, None),
        ("constant", 0, (4,)),
        ("read", 0, (3, 3, 8, 16)),
        ("read_variable", 0, (11,)),
        ("read_without_shape", 0, None),
    ]:
        assert properties.output_shape(view.index_of[name], port) == expected, name
    assert properties.input_shape(view.index_of["reader"], 0) == (3, 4)
    assert properties.input_shape(view.index_of["of_split"], 0) == (2,)
    for name, port, held in [
        ("constant", 0, (2, 7, 7, 176)),
        ("last_value_repeated", 0, (3, 4, 4, 4)),
        ("not_int32", 0, None),
        ("open", 0, None),
        ("shape", 0, (2,)),
        ("shapes", 0, (4,)),
        ("shapes", 1, (None, 4)),
    ]:
        assert properties.held_shape(view.index_of[name], port) == held, name
    assert graph.graph_def == before


def deep_image(channels: int) -> tf.Tensor:
    """Images in batches of unknown size, some levels deep, as in a network."""
    image = tf.compat.v1.placeholder(tf.float32, (None, 8, 8, channels), "image")
    for _ in range(3):
        image = tf.debugging.check_numerics(image, "No step of a unit.", "deep")
    return image


def normalized_convolution(channels: int = 4) -> graph_pb2.GraphDef:
    """A convolution, times a scale that is made of a vector and ranks before it.

    Others read both the mean of the channels and the result.
    """
    with tf.Graph().as_default() as graph:
        image = deep_image(3)
        variance = tf.constant(np.full(channels, 0.5, np.float32), name="variance")
        scale = tf.math.rsqrt(tf.add(variance, 0.001, "shifted"), "scale")
        convolved = tf.nn.conv2d(image, np.ones((1, 1, 3, channels), np.float32), 1, "SAME")
        scaled = tf.multiply(tf.identity(convolved, "convolved"), scale, "scaled")
        for read in (tf.reduce_mean(scaled, (0, 1, 2), name="mean"), tf.nn.relu(scaled, "result")):
            tf.debugging.check_numerics(read, "No step of a unit.")
    return on_cpu(graph)


def on_cpu(graph: tf.Graph) -> graph_pb2.GraphDef:
    graph_def = graph.as_graph_def(add_shapes=True)
    for node in graph_def.node:
        node.device = CPU
    return graph_def


def small_names(graph_def: graph_pb2.GraphDef) -> set[str]:
    view = GraphView(graph_def)
    small = find_small(view, range(len(view)), GraphProperties(view))
    return {name for name, is_small in zip(view.names, small, strict=True) if is_small}


def batch_input(view: GraphView, units: Sequence[Unit]) -> str:
    """The input of the only unit that its batch sizes go by."""
    rewritten = rewrite_units(view, units, (), cores=[{8: 1}])
    [node] = [node for node in rewritten.node if node.op == "TfInterop>Unit"]
    return node.input[0]


def test_vectors_and_what_comes_of_them_alone_are_small() -> None:
    names = small_names(normalized_convolution())
    assert {"variance", "shifted", "scale", "mean"} <= names
    assert names.isdisjoint({"image", "convolved", "scaled", "result"})
    assert "scale" in small_names(normalized_convolution(MOST_ELEMENTS))
    assert "scale" not in small_names(normalized_convolution(MOST_ELEMENTS + 1))


def test_a_unit_takes_along_the_scale_that_it_alone_reads_and_a_mean_beside_it() -> None:
    view = GraphView(normalized_convolution())
    [unit], _ = find_units(view)
    names = [view.names[step] for step in unit.steps]
    assert names.index("shifted") < names.index("scale") < names.index("scaled")
    assert {"Conv2D", "mean", "result"} <= set(names)
    assert view.names[unit.head] == "Conv2D"
    assert batch_input(view, [unit]) == "deep_2"


def test_a_scale_of_two_units_is_in_neither() -> None:
    with tf.Graph().as_default() as graph:
        image = deep_image(4)
        scale = tf.math.rsqrt(tf.add(tf.constant([0.5] * 4), 0.001, "shifted"), "scale")
        for name in ("left", "right"):
            tf.multiply(tf.nn.avg_pool2d(image, 2, 1, "SAME"), scale, name)
    view = GraphView(on_cpu(graph))
    units, _ = find_units(view)
    assert [[view.names[step] for step in unit.steps] for unit in units] == [
        ["shifted", "scale"],
        ["AvgPool2D", "left"],
        ["AvgPool2D_1", "right"],
    ]


def test_a_small_product_is_none_of_the_few_convolutions_of_a_unit() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (1, 8, 8, 4), "image")
        for _ in range(MOST_ANCHORS):
            x = tf.nn.conv2d(x, np.ones((1, 1, 4, 4), np.float32), 1, "SAME")
        gate = tf.matmul(tf.reduce_mean(x, (1, 2)), np.eye(4, dtype=np.float32), name="gate")
        tf.multiply(x, tf.reshape(gate, (1, 1, 1, 4)), "result")
    view = GraphView(on_cpu(graph))
    [unit], _ = find_units(view)
    assert {"gate", "result"} <= {view.names[step] for step in unit.steps}


def test_a_head_may_read_a_scale_that_was_taken_in() -> None:
    with tf.Graph().as_default() as graph:
        image = deep_image(4)
        scale = tf.math.rsqrt(tf.constant([0.5] * 4), "scale")
        tf.nn.relu(tf.multiply(scale, image, "head"), "result")
    view = GraphView(on_cpu(graph))
    units, _ = find_units(view)
    assert [view.names[step] for step in units[0].steps] == ["scale", "head", "result"]
    assert batch_input(view, units) == "deep_2"
