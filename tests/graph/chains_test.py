"""Which convolutions may come right after others in one lane."""

from __future__ import annotations

import pytest
from planning_graphs import INCEPTION, make_graph

from tf_interop.graph.chains import find_follows


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param(
            INCEPTION, {"3x3": ("3x3_reduce",), "5x5": ("5x5_reduce",)}, id="chains_of_a_module"
        ),
        pytest.param({"a": "Conv2D", "b": "Conv2D x a a", "x": "Neg"}, {"b": ("a",)}, id="filter"),
        pytest.param({"a": "Conv2D", "x": "Relu a", "b": "Conv2D x"}, {}, id="through_another"),
        pytest.param(
            {"a": "Conv2D", "x": "MaxPool a", "b": "Conv2D a x"}, {}, id="also_through_another"
        ),
        pytest.param(
            {"a": "Conv2D", "x": "NoOp ^a", "b": "Conv2D a ^x"}, {}, id="also_through_control_edges"
        ),
        pytest.param({"a": "Conv2D", "b": "Conv2D ^a"}, {}, id="control_dependency_alone"),
        pytest.param({"a": "Conv2D", "b": "Conv2D a ^a"}, {"b": ("a",)}, id="read_and_waited_for"),
        pytest.param(
            {"a": "Conv2D", "b": "Conv2D a", "c": "Conv2D a b"},
            {"b": ("a",), "c": ("b",)},
            id="nearest",
        ),
        pytest.param(
            {"a": "Conv2D", "b": "Conv2D", "c": "Conv2D b a"}, {"c": ("b", "a")}, id="two"
        ),
        pytest.param(
            {"s": "Enter", "m": "Merge s n", "a": "Conv2D m", "n": "NextIteration a"},
            {},
            id="back_edge",
        ),
    ],
)
def test_find_follows(nodes: dict[str, str], expected: dict[str, tuple[str, ...]]) -> None:
    assert find_follows(*make_graph(nodes)) == expected


def test_only_the_convolutions_given_count() -> None:
    nodes = {"a": "Conv2D", "b": "Conv2D a", "c": "Conv2D b"}
    view, convolutions = make_graph(nodes)
    assert find_follows(view, [convolutions[0], convolutions[2]]) == {}
