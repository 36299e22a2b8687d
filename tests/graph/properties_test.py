"""Shapes of tensors: which source counts, and when inference is asked."""

from __future__ import annotations

import pytest
from graph_builder import GraphBuilder, add_shapes
from tensorflow.core.framework import types_pb2

from tf_interop.convolution import Shape
from tf_interop.graph.properties import GraphProperties, ShapeInference, merge_shapes
from tf_interop.graph.view import GraphView


def _properties(
    graph: GraphBuilder, infer: ShapeInference | None = None
) -> tuple[GraphView, GraphProperties]:
    view = GraphView(graph.graph_def)
    return view, GraphProperties(view, infer)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (None, None, None),
        ((1, None), None, (1, None)),
        (None, (1, None), (1, None)),
        ((1, None), (None, 2), (1, 2)),
        ((1, None, 3), (1, 2, None), (1, 2, 3)),
        ((1, 2), (1, 3), (1, None)),
        ((1, 2), (1, 2, 3), None),
    ],
)
def test_merges(first: Shape | None, second: Shape | None, expected: Shape | None) -> None:
    assert merge_shapes(first, second) == expected


def test_joins_what_reader_and_producer_say() -> None:
    graph = GraphBuilder()
    graph.source("a", (None, 4))
    graph.add("b", "Neg", "a")
    add_shapes(graph.node("b"), "_input_shapes", [(3, None)])
    view, properties = _properties(graph)
    assert properties.input_shape(view.index_of["b"], 0) == (3, 4)


def test_unknown_rank_is_none() -> None:
    graph = GraphBuilder()
    graph.add("a", "_Arg")
    add_shapes(graph.node("a"), "_output_shapes", [None])
    _, properties = _properties(graph)
    assert properties.output_shape(0, 0) is None


def test_takes_the_output_that_is_read() -> None:
    graph = GraphBuilder()
    graph.add("a", "Split")
    add_shapes(graph.node("a"), "_output_shapes", [(1,), (2,)])
    graph.add("b", "Neg", "a:1")
    view, properties = _properties(graph)
    assert properties.input_shape(view.index_of["b"], 0) == (2,)
    assert properties.output_shape(view.index_of["a"], 2) is None


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
    view, properties = _properties(graph, infer)
    for _ in range(2):
        # Of the open shape's second dimension two sources say different things: it is not known.
        assert properties.input_shape(view.index_of["b"], 0) == (1, 2)
        assert properties.input_shape(view.index_of["b"], 1) == (7, None)
    assert asked == ["open"]


def test_inference_may_know_nothing() -> None:
    graph = GraphBuilder()
    graph.source("a", (None, 2))
    _, properties = _properties(graph, lambda name: None)
    assert properties.output_shape(0, 0) == (None, 2)


def test_reads_constants_and_variables() -> None:
    graph = GraphBuilder()
    graph.sizes("constant", [5, 6])
    graph.add("handle", "_Arg")
    add_shapes(graph.node("handle"), "_handle_shapes", [(3, 3, 8, 16)])
    graph.add("read", "ReadVariableOp", "handle")
    graph.add("variable", "VarHandleOp")
    graph.node("variable").attr["shape"].shape.dim.add(size=11)
    graph.add("read_too", "ReadVariableOp", "variable")
    view, properties = _properties(graph)
    assert properties.output_shape(view.index_of["constant"], 0) == (2,)
    assert properties.output_shape(view.index_of["read"], 0) == (3, 3, 8, 16)
    assert properties.output_shape(view.index_of["read_too"], 0) == (11,)


def test_held_shape_of_constant() -> None:
    graph = GraphBuilder()
    graph.sizes("packed", [2, 7, 7, 176])
    graph.sizes("last_value_repeated", [4, 4, 4, 4])
    tensor = graph.node("last_value_repeated").attr["value"].tensor
    tensor.tensor_content = b""
    tensor.int_val.extend([3, 4])
    graph.sizes("not_int32", [1, 2, 3, 4])
    graph.node("not_int32").attr["value"].tensor.dtype = types_pb2.DT_INT64
    graph.source("other")
    view, properties = _properties(graph)
    assert properties.held_shape(view.index_of["packed"], 0) == (2, 7, 7, 176)
    assert properties.held_shape(view.index_of["last_value_repeated"], 0) == (3, 4, 4, 4)
    assert properties.held_shape(view.index_of["not_int32"], 0) is None
    assert properties.held_shape(view.index_of["other"], 0) is None


def test_held_shape_of_what_is_measured() -> None:
    graph = GraphBuilder()
    graph.source("a", (1, 2))
    graph.source("b", (None, 4))
    graph.add("shape", "Shape", "a")
    graph.add("shapes", "ShapeN", "a", "b")
    view, properties = _properties(graph)
    assert properties.held_shape(view.index_of["shape"], 0) == (1, 2)
    assert properties.held_shape(view.index_of["shapes"], 1) == (None, 4)


def test_leaves_the_graph_alone() -> None:
    graph = GraphBuilder()
    graph.source("a")
    graph.add("c", "Const")
    graph.add("v", "VarHandleOp")
    graph.add("b", "ReadVariableOp", "v")
    before = graph.graph_def.SerializeToString(deterministic=True)
    view, properties = _properties(graph)
    for index in range(len(view)):
        for position in range(len(view.fanins[index])):
            properties.input_shape(index, position)
        properties.output_shape(index, 0)
        properties.held_shape(index, 0)
    assert graph.graph_def.SerializeToString(deterministic=True) == before
