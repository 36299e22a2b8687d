"""The parts of a divided graph, and the transfers between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest
import tensorflow as tf
from graph_builder import node_of
from parallel.traced_layers import image, layer_names, layers_of, trace, two_products

from tf_interop.parallel.layers.find import LayerGraph
from tf_interop.parallel.parted_graph import LayerDivision, PartedGraph, part_graph
from tf_interop.parallel.regions import Box, Part, PartedTensor, Piece, pieces_of
from tf_interop.parallel.types import Degrees

SAMPLES, FILTERS, CHANNELS = (
    LayerDivision(Degrees(**{axis: 2}), (0, 1)) for axis in ("sample", "filter", "channel")
)
X, V, W = (((0, 4), (0, 6)), ((0, 6), (0, 8)), ((0, 8), (0, 2)))
R, Y = ((0, 4), (0, 8)), ((0, 4), (0, 2))


def traced(build: Callable[[], object]) -> LayerGraph:
    return layers_of(build, ["result"])


def parted(layers: LayerGraph, *divisions: LayerDivision | None, preserve: str = "") -> PartedGraph:
    """The graph with these divisions of its layers; all nodes are on device 0."""
    pairs = zip(layer_names(layers), divisions, strict=False)
    given = {name: each for name, each in pairs if each is not None}
    layers = dataclasses.replace(layers, preserved={"result", *preserve.split()})
    return part_graph(layers, given, [0] * len(layers.view))


def sent(graph: PartedGraph) -> list[tuple[str, Box, int, int, int]]:
    """The transfers, with names of nodes or variables."""
    names = [name.removesuffix("/r") for name in graph.layers.view.names]
    return [
        (names[each.tensor[0]], each.box, each.source, each.destination, each.byte_count)
        for each in graph.transfers
    ]


def sent_names(graph: PartedGraph) -> list[str]:
    return [name for name, *_ in sent(graph)]


@pytest.mark.parametrize(
    ("divisions", "expected"),
    [
        (
            (SAMPLES, SAMPLES),
            [
                ("x", ((2, 4), (0, 6)), 0, 1, 48),
                ("v", V, 0, 1, 192),
                ("w", W, 0, 1, 64),
                ("y", ((2, 4), (0, 2)), 1, 0, 16),
            ],
        ),
        # No activation between the layers.
        (
            (FILTERS, CHANNELS),
            [
                ("x", X, 0, 1, 96),
                ("v", ((0, 6), (4, 8)), 0, 1, 96),
                ("w", ((4, 8), (0, 2)), 0, 1, 32),
                ("y", Y, 1, 0, 32),
            ],
        ),
        (
            (None, LayerDivision(Degrees(), (3,))),
            [("r", R, 0, 3, 128), ("w", W, 0, 3, 64), ("y", Y, 3, 0, 32)],
        ),
    ],
    ids=["samples", "filters then channels", "another device"],
)
def test_sends_only_the_boxes_that_are_read(
    divisions: Sequence[LayerDivision | None], expected: list[tuple[str, Box, int, int, int]]
) -> None:
    graph = parted(traced(two_products), *divisions)
    assert sent(graph) == expected
    is_sum = graph.tensors[graph.layers.view.index_of["y"], 0].is_sum
    assert is_sum == (CHANNELS in divisions)


def test_reads_the_first_of_several_copies() -> None:
    tensor = PartedTensor((4,), (Part(1, ((2, 4),)), Part(0, ((0, 2),)), Part(0, ((2, 4),))))
    assert pieces_of(tensor, ((1, 4),)) == (Piece(1, ((1, 2),)), Piece(0, ((2, 4),)))


def with_a_shape() -> None:
    two_products()
    r = tf.compat.v1.get_default_graph().get_tensor_by_name("r:0")
    tf.reshape(r, tf.raw_ops.Shape(input=r, name="shape"), name="dropped")


def test_keeps_and_gathers_only_needed_and_preserved_nodes() -> None:
    layers = traced(with_a_shape)
    assert layers.layer_of[layers.view.index_of["dropped"]] == 0
    graph = parted(layers, SAMPLES, SAMPLES)
    assert {"shape", "dropped"}.isdisjoint(map(layers.view.names.__getitem__, graph.parts))
    assert "r" not in sent_names(graph)
    graph = parted(layers, SAMPLES, SAMPLES, preserve="shape")
    assert ("r", ((2, 4), (0, 8)), 1, 0, 64) in sent(graph)


def test_keeps_the_nodes_that_close_loops() -> None:
    def with_a_loop() -> None:
        two_products()
        y = tf.compat.v1.get_default_graph().get_tensor_by_name("y:0")
        enter = tf.raw_ops.Enter(data=y, frame_name="loop")
        merged, _ = tf.raw_ops.Merge(inputs=[enter, enter], name="merge")
        tf.raw_ops.NextIteration(data=merged, name="next")

    graph_def = trace(with_a_loop)
    node_of(graph_def, "merge").input[1] = "next"
    layers = layers_of(graph_def, ["result"])
    assert layers.view.index_of["next"] in parted(layers, SAMPLES).parts


def test_sends_a_constant_only_if_a_session_may_feed_it() -> None:
    def with_a_constant() -> None:
        x, c = image(4, 6, name="x"), tf.constant(1.0, shape=(6, 2), name="c")
        tf.negative(tf.matmul(x, c, name="y"), name="result")

    layers = traced(with_a_constant)
    assert "c" not in sent_names(parted(layers, SAMPLES))
    assert "c" in sent_names(parted(layers, SAMPLES, preserve="c"))
