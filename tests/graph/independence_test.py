"""Which convolutions depend on each other, through tensors and control dependencies."""

from __future__ import annotations

import itertools
import random

import pytest
from graph_builder import GraphBuilder
from planning_graphs import make_graph

from tf_interop.errors import GraphError
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.independence import Independence
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView


def _independence(graph: GraphBuilder) -> tuple[Independence, dict[str, int]]:
    view = GraphView(graph.graph_def)
    convolutions, refusals = find_convolutions(view, GraphProperties(view))
    assert not refusals
    positions = {node.name: position for position, node in enumerate(convolutions)}
    return Independence(view, convolutions), positions


def _are_independent(independence: Independence, first: int, second: int) -> bool:
    ancestors = independence.ancestors
    return not (ancestors[first] >> second & 1 or ancestors[second] >> first & 1)


def test_chain_and_branches() -> None:
    graph = GraphBuilder()
    graph.source("x")
    graph.source("f")
    graph.conv("a", "x", "f")
    graph.add("relu", "Relu", "a")
    graph.conv("b", "relu", "f")
    graph.conv("c", "x", "f")
    independence, at = _independence(graph)
    assert not _are_independent(independence, at["a"], at["b"])
    assert not _are_independent(independence, at["b"], at["a"])
    assert _are_independent(independence, at["a"], at["c"])
    assert _are_independent(independence, at["c"], at["b"])
    assert independence.ancestors[at["b"]] == 1 << at["a"]
    assert [independence.depths[at[name]] for name in "abc"] == [1, 2, 1]
    assert independence.independent_pair_count == 2


def test_control_dependency_is_a_dependency() -> None:
    graph = GraphBuilder()
    graph.source("x")
    graph.source("f")
    graph.conv("a", "x", "f")
    graph.add("assign", "NoOp", "^a")
    graph.conv("b", "x", "f", "^assign")
    independence, at = _independence(graph)
    assert not _are_independent(independence, at["a"], at["b"])
    assert independence.depths[at["b"]] == 2


def test_back_edge_is_no_dependency() -> None:
    graph = GraphBuilder()
    graph.source("x")
    graph.source("f")
    graph.add("enter", "Enter", "x", frame_name="loop")
    graph.add("enter_filter", "Enter", "f", frame_name="loop")
    graph.add("merge", "Merge", "enter", "next")
    graph.conv("early", "merge", "enter_filter")
    graph.conv("beside", "enter", "enter_filter")
    graph.conv("late", "early", "enter_filter")
    graph.add("next", "NextIteration", "late")
    independence, at = _independence(graph)
    assert independence.ancestors[at["early"]] == 0
    assert independence.ancestors[at["late"]] == 1 << at["early"]
    assert _are_independent(independence, at["beside"], at["late"])


def test_back_edge_that_closes_no_loop_is_no_dependency() -> None:
    graph = GraphBuilder()
    graph.source("x")
    graph.source("f")
    graph.add("enter", "Enter", "x", frame_name="loop")
    graph.add("enter_filter", "Enter", "f", frame_name="loop")
    graph.conv("beside", "enter", "enter_filter")
    graph.add("next", "NextIteration", "beside")
    # Ready only after the back edge's source, so that the edge would count if it were looked at.
    graph.add("later", "Neg", "enter")
    graph.add("later_still", "Neg", "later")
    graph.add("latest", "Neg", "later_still")
    graph.add("merge", "Merge", "latest", "next")
    graph.conv("behind", "merge", "enter_filter")
    independence, at = _independence(graph)
    assert _are_independent(independence, at["beside"], at["behind"])


def test_raises_on_cycle() -> None:
    graph = GraphBuilder()
    graph.source("f")
    graph.conv("a", "b", "f")
    graph.conv("b", "a", "f")
    with pytest.raises(GraphError, match="cycle"):
        Independence(GraphView(graph.graph_def), ())


@pytest.mark.parametrize("seed", range(50))
def test_agrees_with_search_on_random_graphs(seed: int) -> None:
    choose = random.Random(seed)
    graph = GraphBuilder()
    graph.source("n0")
    graph.source("f")
    readers: dict[str, set[str]] = {}
    names = ["n0"]
    for number in range(1, choose.randrange(5, 40)):
        name = f"n{number}"
        controls = {choose.choice(names) for _ in range(choose.randrange(3))}
        data = choose.choice(names)
        inputs = [data, *(["f"] if number % 2 else []), *(f"^{c}" for c in sorted(controls))]
        if number % 2:
            graph.conv(name, *inputs)
        else:
            graph.add(name, "Neg", *inputs)
        for source in {data, *controls}:
            readers.setdefault(source, set()).add(name)
        names.append(name)

    def reached_from(name: str) -> set[str]:
        reached: set[str] = set()
        stack = [name]
        while stack:
            for reader in readers.get(stack.pop(), ()):
                if reader not in reached:
                    reached.add(reader)
                    stack.append(reader)
        return reached

    independence, at = _independence(graph)
    pairs = 0
    for first, second in itertools.combinations(at, 2):
        expected = second not in reached_from(first) and first not in reached_from(second)
        assert _are_independent(independence, at[first], at[second]) == expected
        pairs += expected
    assert independence.independent_pair_count == pairs


def test_direct_predecessors_leave_out_those_behind_others() -> None:
    nodes = {"x": "Placeholder", "a": "Conv2D x", "b": "Conv2D a", "c": "Conv2D b a", "d": "Relu c"}
    view, convolutions = make_graph({**nodes, "e": "Conv2D d a"})
    independence = Independence(view, convolutions)
    assert independence.direct_predecessors(range(4)) == [(), (0,), (1,), (2,)]
    # Without c, what reaches e through it still does.
    assert independence.direct_predecessors([0, 1, 3]) == [(), (0,), (1,)]
