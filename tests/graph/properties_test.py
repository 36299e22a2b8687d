"""The sources of shapes, and the nodes with small results."""

from __future__ import annotations

import pytest
from graph_builder import GraphBuilder, add_shapes, graph_of
from tensorflow.core.framework import graph_pb2, types_pb2

from tf_interop.convolution import Shape
from tf_interop.graph.properties import MOST_ELEMENTS, GraphProperties, find_small, merge_shapes
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
        # Two sources contradict each other about the open shape's second dimension.
        assert properties.input_shape(2, 0) == (1, 2)
        assert properties.input_shape(2, 1) == (7, None)
    assert asked == ["open"]


def test_reads_what_nodes_say_and_leaves_the_graph_alone() -> None:
    graph = graph_of(
        "reader = Neg open; split = Split; of_split = Neg split:1; read = ReadVariableOp argument; "
        "variable = VarHandleOp; read_variable = ReadVariableOp variable; shape = Shape split:1; "
        "no_shape = VarHandleOp; read_no_shape = ReadVariableOp no_shape; no_rank = _Arg"
    )
    for name, attribute, shapes in [
        ("open", "_output_shapes", [(None, 4)]),
        ("reader", "_input_shapes", [(3, None)]),
        ("no_rank", "_output_shapes", [None]),
        ("split", "_output_shapes", [(1,), (2,)]),
        ("argument", "_handle_shapes", [(3, 3, 8, 16)]),
    ]:
        add_shapes(graph.node(name), attribute, shapes)
    graph.node("variable").attr["shape"].shape.dim.add(size=11)
    for name in ("constant", "last_value_repeated", "not_int32"):
        graph.sizes(name, [2, 7, 7, 176])
    tensor = graph.node("last_value_repeated").attr["value"].tensor
    tensor.tensor_content = b""
    tensor.int_val.extend([3, 4])
    graph.node("not_int32").attr["value"].tensor.dtype = types_pb2.DT_INT64
    graph.add("shapes", "ShapeN", "constant", "open")
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
        ("read_no_shape", 0, None),
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


@pytest.mark.parametrize(
    ("channels", "is_small"), [(MOST_ELEMENTS, True), (MOST_ELEMENTS + 1, False)]
)
def test_vectors_and_results_of_nothing_else_are_small(channels: int, is_small: bool) -> None:
    graph = graph_of("k = Const; scale = Rsqrt k; a = Mul x scale; mean = Mean a; r = Relu mean")
    for name, shape in {"k": (channels,), "mean": (channels,), "x": (None, 8, 8, channels)}.items():
        add_shapes(graph.node(name), "_output_shapes", [shape])
    view = GraphView(graph.graph_def)
    small = find_small(view, range(len(view)), GraphProperties(view))
    found = {name for name, is_one in zip(view.names, small, strict=True) if is_one}
    assert found == ({"k", "scale", "mean", "r"} if is_small else set())
