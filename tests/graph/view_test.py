"""The view of a graph: edges, order and cycles."""

from __future__ import annotations

import pytest
from graph_builder import GraphBuilder, graph_of

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


def test_orders_by_level_without_back_edges() -> None:
    graph = graph_of(f"last = Add middle first; middle = Neg first; apart = NoOp ^first; {LOOP}")
    view = GraphView(graph.graph_def)
    order = " ".join(view.names[index] for index in view.topological_order())
    assert order == "first start middle apart enter last merge body next"
    by_rank = " ".join(view.names[index] for index in view.by_rank(range(len(view))))
    assert by_rank == "first start apart enter middle last merge body next"


@pytest.mark.parametrize("inputs", ["", "nowhere:1", "^nowhere", "a:", "a:x", "^a:0", "^a a"])
def test_rejects_inputs_and_names_the_reader(inputs: str) -> None:
    graph = GraphBuilder()
    graph.source("a")
    graph.add("reader", "Neg", *inputs.split(" "))
    with pytest.raises(GraphError, match="'reader'"):
        GraphView(graph.graph_def)


@pytest.mark.parametrize(
    ("nodes", "match"),
    [
        ("b = Add a d; c = Neg b; d = NoOp ^c; after = Neg d", "'[bcd]' -> '[bcd]' -> '[bcd]'"),
        # No NextIteration closes it.
        (LOOP.replace("NextIteration", "Identity"), "'merge' -> 'body'|'body' -> 'next'"),
    ],
)
def test_rejects_cycle_and_names_its_nodes(nodes: str, match: str) -> None:
    view = GraphView(graph_of(nodes).graph_def)
    with pytest.raises(GraphError, match=match):
        view.topological_order()
