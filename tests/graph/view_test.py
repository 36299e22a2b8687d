"""The view of a graph: edges, order and cycles."""

from __future__ import annotations

import pytest
from graph_builder import GraphBuilder

from tf_interop.errors import GraphError
from tf_interop.graph.view import CONTROL_PORT, GraphView, parse_input


def _add_loop(graph: GraphBuilder) -> None:
    graph.source("start")
    graph.add("enter", "Enter", "start", frame_name="loop")
    graph.add("merge", "Merge", "enter", "next")
    graph.add("body", "Neg", "merge")
    graph.add("next", "NextIteration", "body")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a/b", ("a/b", 0)),
        ("a:0", ("a", 0)),
        ("a:12", ("a", 12)),
        ("^a", ("a", CONTROL_PORT)),
    ],
)
def test_parses_input(text: str, expected: tuple[str, int]) -> None:
    assert parse_input(text) == expected


@pytest.mark.parametrize("text", ["", "^", ":1", "a:", "a:-1", "a:x", "a:1:2", "^a:0", "^^a"])
def test_rejects_input(text: str) -> None:
    with pytest.raises(GraphError, match="name:port"):
        parse_input(text)


def test_indexes_edges() -> None:
    graph = GraphBuilder()
    graph.source("a")
    graph.add("b", "Split", "a")
    graph.add("c", "Add", "b:1", "b", "^a", "^b")
    view = GraphView(graph.graph_def)
    assert view.names == ["a", "b", "c"]
    assert view.ops == ["_Arg", "Split", "Add"]
    assert view.fanins == [(), ((0, 0),), ((1, 1), (1, 0))]
    assert view.control_fanins == [(), (), (0, 1)]
    assert view.fanouts == [[1, 2], [2], []]


def test_orders_by_level() -> None:
    graph = GraphBuilder()
    graph.add("last", "Add", "middle", "first")
    graph.add("middle", "Neg", "first")
    graph.source("first")
    graph.add("apart", "NoOp", "^first")
    view = GraphView(graph.graph_def)
    assert [view.names[index] for index in view.topological_order()] == [
        "first",
        "middle",
        "apart",
        "last",
    ]
    assert view.levels == [2, 1, 0, 1]


def test_fanouts_hold_a_reader_once() -> None:
    graph = GraphBuilder()
    graph.source("a")
    graph.add("b", "AddN", "a", "a:1", "^a", "^a")
    view = GraphView(graph.graph_def)
    assert view.fanouts == [[1], []]
    assert view.topological_order() == [0, 1]


def test_orders_nodes_of_one_level_as_the_graph_does() -> None:
    graph = GraphBuilder()
    graph.source("first")
    graph.source("second")
    graph.add("a", "Neg", "second")
    graph.add("b", "Neg", "first")
    assert GraphView(graph.graph_def).topological_order() == [0, 1, 2, 3]


def test_orders_loop_without_back_edge() -> None:
    graph = GraphBuilder()
    _add_loop(graph)
    view = GraphView(graph.graph_def)
    assert [view.names[index] for index in view.topological_order()] == [
        "start",
        "enter",
        "merge",
        "body",
        "next",
    ]
    assert view.sources(view.index_of["merge"]) == [view.index_of["enter"]]


@pytest.mark.parametrize("inputs", [["nowhere:1"], ["^nowhere"], ["a:x"], ["^a", "a"]])
def test_rejects_inputs_and_names_the_reader(inputs: list[str]) -> None:
    graph = GraphBuilder()
    graph.source("a")
    graph.add("reader", "Neg", *inputs)
    with pytest.raises(GraphError, match="'reader'"):
        GraphView(graph.graph_def)


def test_rejects_duplicate_name() -> None:
    graph = GraphBuilder()
    graph.source("twice")
    graph.source("once")
    graph.source("twice")
    with pytest.raises(GraphError, match="two nodes 'twice'"):
        GraphView(graph.graph_def)


def test_rejects_cycle_and_names_its_nodes() -> None:
    graph = GraphBuilder()
    graph.source("a")
    graph.add("b", "Add", "a", "d")
    graph.add("c", "Neg", "b")
    graph.add("d", "NoOp", "^c")
    graph.add("after", "Neg", "d")
    view = GraphView(graph.graph_def)
    with pytest.raises(GraphError, match=r"'[bcd]' -> '[bcd]' -> '[bcd]'"):
        view.topological_order()


def test_rejects_a_node_that_reads_itself() -> None:
    graph = GraphBuilder()
    graph.add("a", "Neg", "a")
    with pytest.raises(GraphError, match="'a' -> 'a'"):
        GraphView(graph.graph_def).topological_order()


def test_rejects_cycle_that_only_a_merge_closes() -> None:
    graph = GraphBuilder()
    _add_loop(graph)
    graph.node("next").op = "Identity"
    with pytest.raises(GraphError, match=r"'merge' -> 'body' -> 'next'|'next' -> 'merge'"):
        GraphView(graph.graph_def).topological_order()


def test_leaves_the_graph_alone() -> None:
    graph = GraphBuilder()
    _add_loop(graph)
    before = graph.graph_def.SerializeToString(deterministic=True)
    GraphView(graph.graph_def).topological_order()
    assert graph.graph_def.SerializeToString(deterministic=True) == before
