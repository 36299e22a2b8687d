"""What runs where in a divided graph, and what is sent."""

from __future__ import annotations

import pytest
from graph_builder import FLOAT
from parallel.fake_layers import SHAPES, FakeLayers, layers_of, two_products, whole_of

from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.parted_graph import LayerDivision, PartedGraph, part_graph
from tf_interop.parallel.regions import Box


def parted(layers: FakeLayers, *divisions: LayerDivision | None, preserve: str = "") -> PartedGraph:
    """The graph with these divisions of its layers; all nodes have device 0."""
    given = {place: each for place, each in enumerate(divisions) if each is not None}
    return part_graph(layers, given, [0] * len(layers.view), preserve.split())


def sent(graph: PartedGraph) -> list[tuple[str, Box, int, int, int]]:
    """The transfers, with names for nodes."""
    names = graph.layers.view.names
    return [
        (names[each.tensor[0]], each.box, each.source, each.destination, each.byte_count)
        for each in graph.transfers
    ]


def test_a_graph_without_divisions_sends_nothing() -> None:
    layers = layers_of(two_products())
    graph = parted(layers)
    assert set(graph.parts) == set(range(len(layers.view)))
    assert not any(map(graph.is_divided, graph.parts))
    assert graph.tensors == {}
    assert graph.transfers == ()


def test_samples_are_sent_with_all_parameters_and_come_back() -> None:
    halves = LayerDivision(Degrees(sample=2), (0, 1))
    graph = parted(layers_of(two_products()), halves, halves)
    assert sent(graph) == [
        ("x", ((2, 4), (0, 6)), 0, 1, 48),
        ("v", whole_of("v"), 0, 1, 192),
        ("w", whole_of("w"), 0, 1, 64),
        ("y", ((2, 4), (0, 2)), 1, 0, 16),
    ]


def test_filters_then_channels_send_no_activation_between_layers() -> None:
    filters = LayerDivision(Degrees(filter=2), (0, 1))
    channels = LayerDivision(Degrees(channel=2), (0, 1))
    graph = parted(layers_of(two_products()), filters, channels)
    assert sent(graph) == [
        ("x", whole_of("x"), 0, 1, 96),
        ("v", ((0, 6), (4, 8)), 0, 1, 96),
        ("w", ((4, 8), (0, 2)), 0, 1, 32),
        ("y", whole_of("y"), 1, 0, 32),
    ]
    [y] = [tensor for (node, _), tensor in graph.tensors.items() if layers_name(graph, node) == "y"]
    assert y.is_sum


def layers_name(graph: PartedGraph, node: int) -> str:
    return graph.layers.view.names[node]


def test_sums_are_added_by_whoever_reads_them() -> None:
    graph = two_products()
    graph.node("y").op = "Relu"
    del graph.node("y").input[1]
    layers = FakeLayers(graph.graph_def, (("h",), ("r", "y")), {**SHAPES, "y": (4, 8)})
    channels = LayerDivision(Degrees(channel=2), (0, 1))
    samples = LayerDivision(Degrees(sample=2), (0, 1))
    of_h = [each for each in sent(parted(layers, channels, samples)) if each[0] == "h"]
    assert of_h == [
        ("h", ((0, 2), (0, 8)), 1, 0, 64),
        ("h", ((2, 4), (0, 8)), 0, 1, 64),
    ]


def test_a_box_is_sent_once_to_a_device_whoever_reads_it() -> None:
    graph = two_products()
    graph.add("s", "Relu", "y", T=FLOAT)
    graph.add("z", "MatMul", "r", "w", T=FLOAT)
    graph.add("result2", "_Retval", "z", T=FLOAT, index=1)
    layers = FakeLayers(graph.graph_def, (("h", "r"), ("y",), ("z",)), {**SHAPES, "z": (4, 2)})
    moved = LayerDivision(Degrees(), (1,))
    names = [each[0] for each in sent(parted(layers, None, moved, moved))]
    assert sorted(names) == ["r", "w", "y", "z"]


def test_a_layer_on_one_other_device_is_sent_there_and_back() -> None:
    graph = parted(layers_of(two_products()), None, LayerDivision(Degrees(), (3,)))
    assert sent(graph) == [
        ("r", whole_of("r"), 0, 3, 128),
        ("w", whole_of("w"), 0, 3, 64),
        ("y", whole_of("y"), 3, 0, 32),
    ]


def test_constants_are_not_sent() -> None:
    graph = two_products()
    graph.add("c", "Const", dtype=FLOAT)
    graph.node("y").input[1] = "c"
    graph.node("y").input.append("^w")
    halves = LayerDivision(Degrees(sample=2), (0, 1))
    layers = layers_of(graph)
    assert "c" not in [each[0] for each in sent(parted(layers, halves, halves))]
    assert layers.view.index_of["c"] not in parted(layers, halves, halves).parts
    # A Session may feed it another value.
    assert "c" in [each[0] for each in sent(parted(layers, halves, halves, preserve="c"))]


def test_nothing_is_sent_for_what_nothing_needs() -> None:
    graph = two_products()
    graph.add("unread", "Shape", "r", T=FLOAT)
    graph.add("dropped", "Relu", "unread", T=FLOAT)  # of a layer
    halves = LayerDivision(Degrees(sample=2), (0, 1))
    layers = FakeLayers(
        graph.graph_def,
        (("h", "r"), ("y",), ("dropped",)),
        {**SHAPES, "unread": (2,), "dropped": (2, 1)},
    )
    graph_of_all = parted(layers, halves, halves, halves)
    assert {"unread", "dropped"}.isdisjoint(map(layers.view.names.__getitem__, graph_of_all.parts))
    assert "r" not in [each[0] for each in sent(graph_of_all)]


def test_what_is_to_be_preserved_stays_and_is_gathered() -> None:
    graph = two_products()
    graph.add("kept", "Shape", "r", T=FLOAT)
    graph.add("reader", "Relu", "kept", T=FLOAT)
    halves = LayerDivision(Degrees(sample=2), (0, 1))
    assert ("r", ((2, 4), (0, 8)), 1, 0, 64) in sent(
        parted(layers_of(graph), halves, halves, preserve="kept")
    )


def test_a_division_names_a_device_of_every_part() -> None:
    with pytest.raises(ValueError, match="Expected 2 devices for the parts of 'sample 2', got 1"):
        LayerDivision(Degrees(sample=2), (0,))
