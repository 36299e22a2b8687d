"""Dependencies between convolutions, through tensors and control dependencies."""

from __future__ import annotations

import itertools
import random

import pytest
from graph_builder import nodes_of
from planning_graphs import make_graph

from tf_interop.graph.independence import Independence, find_follows


def _ancestors(nodes: dict[str, str]) -> dict[str, set[str]]:
    """The ancestors of each convolution, by name."""
    view, convolutions = make_graph(nodes)
    names = [node.name for node in convolutions]
    return {
        name: {other for place, other in enumerate(names) if ancestors >> place & 1}
        for name, ancestors in zip(names, Independence(view, convolutions).ancestors, strict=True)
    }


def test_back_edges_do_not_count() -> None:
    # The Merge is ready only after the back edge's source, so a wrong edge would count.
    nodes = (
        "enter = Enter; beside = Conv2D enter; next = NextIteration beside; later = Neg enter; "
        "latest = Neg later; merge = Merge latest next; after = Conv2D merge"
    )
    assert _ancestors(nodes_of(nodes)) == {"beside": set(), "after": set()}


@pytest.mark.parametrize("seed", range(50))
def test_agrees_with_search_on_random_graphs(seed: int) -> None:
    choose = random.Random(seed)
    nodes = {"n0": "Placeholder"}
    sources: dict[str, set[str]] = {"n0": set()}
    for number in range(1, choose.randrange(5, 40)):
        name = f"n{number}"
        sources[name] = {choose.choice(list(nodes)) for _ in range(choose.randrange(1, 4))}
        inputs = [choose.choice([each, f"^{each}"]) for each in sources[name]]
        inputs.sort(key=lambda text: text.startswith("^"))
        nodes[name] = " ".join(["Conv2D" if number % 2 else "Neg", *inputs])

    def reached_by(name: str) -> set[str]:
        return sources[name].union(*(reached_by(source) for source in sources[name]))

    ancestors = _ancestors(nodes)
    for name, found in ancestors.items():
        assert found == reached_by(name) & ancestors.keys()
    pairs = itertools.combinations(ancestors, 2)
    expected = sum(a not in ancestors[b] and b not in ancestors[a] for a, b in pairs)
    independence = Independence(*make_graph(nodes))
    assert independence.independent_pair_count == expected
    depths = dict(zip(ancestors, independence.depths, strict=True))
    for name, depth in depths.items():
        assert depth == 1 + max((depths[each] for each in ancestors[name]), default=0)


FOLLOWS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "filter": ("a = Conv2D; x = Neg; b = Conv2D x a a", {"b": ("a",)}),
    "through_another": ("a = Conv2D; x = Relu a; b = Conv2D x", {}),
    "also_through_another": ("a = Conv2D; x = MaxPool a; b = Conv2D a x", {}),
    "also_through_control_edges": ("a = Conv2D; x = NoOp ^a; b = Conv2D a ^x", {}),
    "control_dependency_alone": ("a = Conv2D; b = Conv2D ^a", {}),
    "read_and_waited_for": ("a = Conv2D; b = Conv2D a ^a", {"b": ("a",)}),
    "two": ("a = Conv2D; b = Conv2D; c = Conv2D b a", {"c": ("b", "a")}),
}


@pytest.mark.parametrize(("nodes", "expected"), FOLLOWS.values(), ids=FOLLOWS)
def test_find_follows(nodes: str, expected: dict[str, tuple[str, ...]]) -> None:
    assert find_follows(*make_graph(nodes_of(nodes))) == expected


def test_find_follows_ignores_other_convolutions() -> None:
    view, convolutions = make_graph(nodes_of("a = Conv2D; b = Conv2D a; c = Conv2D b"))
    assert find_follows(view, [convolutions[0], convolutions[2]]) == {}
