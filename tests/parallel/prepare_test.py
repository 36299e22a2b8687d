"""Which normalizations of divided layers become elementary operations."""

from __future__ import annotations

import pytest
from graph_builder import CPU, FLOAT, GraphBuilder, add_shapes

from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.parallel.layers.find import LayerGraph, find_layers
from tf_interop.parallel.layers.prepare import expand_layers
from tf_interop.parallel.types import Degrees

IMAGE = (4, 6, 6, 8)


def normalized_convolution(*, is_training: bool) -> LayerGraph:
    graph = GraphBuilder(CPU)
    shapes = {"x": (4, 6, 6, 3), "f": (3, 3, 3, 8), **dict.fromkeys("somv", (8,))}
    for index, (name, shape) in enumerate(shapes.items()):
        graph.add(name, "_Arg", T=FLOAT, index=index)
        add_shapes(graph.node(name), "_output_shapes", [shape])
    graph.conv("c", "x", "f")
    graph.add(
        *("n", "FusedBatchNormV3", "c", "s", "o", "m", "v"),
        **{"T": FLOAT, "epsilon": 0.001, "exponential_avg_factor": 1.0},
        **{"data_format": "NHWC", "is_training": is_training},
    )
    graph.node("n").attr["U"].type = FLOAT
    graph.add("r", "Relu", "n", T=FLOAT)
    add_shapes(graph.node("c"), "_output_shapes", [IMAGE])
    add_shapes(graph.node("n"), "_output_shapes", [IMAGE, *[(8,)] * 4, (0,)])
    add_shapes(graph.node("r"), "_output_shapes", [IMAGE])
    graph.add("result", "_Retval", "r", T=FLOAT, index=0)
    view = GraphView(graph.graph_def)
    return find_layers(view, GraphProperties(view))


@pytest.mark.parametrize("axis", ["sample", "height", "width"])
def test_expands_where_statistics_are_of_parts(axis: str) -> None:
    layers = normalized_convolution(is_training=True)
    degrees = Degrees(**{axis: 2})
    expanded = expand_layers(layers, {0: degrees})
    assert "FusedBatchNormV3" not in expanded.view.ops
    assert [each.name for each in expanded.layers] == [each.name for each in layers.layers] == ["c"]
    last = expanded.view.index_of["n"]
    assert expanded.layer_of[last] == 0
    parts = expanded.parts(last, degrees)
    assert parts is not None
    assert len(parts) == 2


def test_keeps_what_can_be_divided_as_it_is() -> None:
    layers = normalized_convolution(is_training=True)
    assert expand_layers(layers, {0: Degrees(filter=2)}) is layers
    assert expand_layers(layers, {}) is layers
    layers = normalized_convolution(is_training=False)
    assert expand_layers(layers, {0: Degrees(sample=2)}) is layers
