"""The view of a graph: edges, order and cycles."""

from __future__ import annotations

import pytest
from graph_builder import GraphBuilder, graph_of, same_graph
from tensorflow.core.framework import graph_pb2

from tf_interop.errors import GraphError
from tf_interop.graph.view import GraphView

LOOP = "enter = Enter start; merge = Merge enter next; body = Neg merge; next = NextIteration body"


def test_indexes_edges() -> None:
    view = GraphView(graph_of("b = Split a:0; c = AddN b:12 b ^a ^a ^b").graph_def)
    assert view.names == ["a", "b", "c"]
    assert view.ops == ["_Arg", "Split", "AddN"]
    assert view.fanins == [(), ((0, 0),), ((1, 12), (1, 0))]
    assert view.control_fanins == [(), (), (0, 0, 1)]
    assert view.fanouts == [[1, 2], [2], []]


ORDERS = {
    "by_level": (
        "last = Add middle first; middle = Neg first; apart = NoOp ^first",
        "first middle apart last",
        "first apart middle last",
    ),
    "nodes_of_one_level_as_in_the_graph": (
        "a = Neg second; b = Neg first",
        "second first a b",
        "first second a b",
    ),
    "loop_without_its_back_edge": (LOOP, *["start enter merge body next"] * 2),
}


@pytest.mark.parametrize(("nodes", "order", "by_rank"), ORDERS.values(), ids=ORDERS)
def test_orders(nodes: str, order: str, by_rank: str) -> None:
    graph = graph_of(nodes)
    before = graph_pb2.GraphDef.FromString(graph.graph_def.SerializeToString())
    view = GraphView(graph.graph_def)
    assert [view.names[index] for index in view.topological_order()] == order.split()
    assert [view.names[index] for index in view.by_rank(range(len(view)))] == by_rank.split()
    assert same_graph(graph.graph_def, before)


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        ("", "name:port"),
        *((text, "name:port") for text in ("^", ":1", "a:", "a:-1", "a:x", "a:1:2", "^a:0", "^^a")),
        *((text, "") for text in ("nowhere:1", "^nowhere", "^a a")),
    ],
)
def test_rejects_inputs_and_names_the_reader(inputs: str, match: str) -> None:
    graph = GraphBuilder()
    graph.source("a")
    graph.add("reader", "Neg", *inputs.split(" "))
    with pytest.raises(GraphError, match=f"{match}.*'reader'"):
        GraphView(graph.graph_def)


@pytest.mark.parametrize(
    ("nodes", "match"),
    [
        ("b = Add a d; c = Neg b; d = NoOp ^c; after = Neg d", "'[bcd]' -> '[bcd]' -> '[bcd]'"),
        ("a = Neg a", "'a' -> 'a'"),
        (
            LOOP.replace("NextIteration", "Identity"),
            "'merge' -> 'body' -> 'next'|'next' -> 'merge'",
        ),
    ],
    ids=["of_three_nodes", "of_one", "that_only_a_merge_closes"],
)
def test_rejects_cycle_and_names_its_nodes(nodes: str, match: str) -> None:
    view = GraphView(graph_of(nodes).graph_def)
    with pytest.raises(GraphError, match=match):
        view.topological_order()
