"""Graphs of parts: what they hold, and that they compute what the whole graph does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf
from graph_builder import CPU, FLOAT, GraphBuilder, same_graph
from parallel.fake_layers import SHAPES, FakeLayers
from tensorflow.core.framework import graph_pb2

from tf_interop.errors import GraphError
from tf_interop.graph.view import GraphView
from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.parted_graph import LayerDivision, part_graph
from tf_interop.parallel.rewrite import PART_ATTRIBUTE, rewrite_divided, was_divided

DEVICES = [CPU.replace("CPU:0", f"CPU:{number}") for number in range(4)]
SAMPLES = LayerDivision(Degrees(sample=2), (0, 1))
FILTERS = LayerDivision(Degrees(filter=2), (0, 1))
CHANNELS = LayerDivision(Degrees(channel=2), (1, 0))
MOVED = LayerDivision(Degrees(), (3,))
MIXED = LayerDivision(Degrees(sample=2, channel=2), (0, 1, 2, 3))
STATIONARY_W = LayerDivision(Degrees(filter=2, channel=2), (3, 2, 1, 0))


def two_products() -> GraphBuilder:
    """y = relu(x v) w, and z = relu(relu(x v)), where w is a constant."""
    graph = GraphBuilder(CPU)
    for name in ("x", "v"):
        graph.add(name, "Placeholder", dtype=FLOAT)
        graph.node(name).attr["dtype"].type = FLOAT
    graph.add("w", "Const")
    values = np.random.default_rng(1).normal(size=SHAPES["w"]).astype(np.float32)
    graph.node("w").attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values))
    graph.node("w").attr["dtype"].type = FLOAT
    graph.add("h", "MatMul", "x", "v", T=FLOAT)
    graph.add("r", "Relu", "h", T=FLOAT)
    graph.add("y", "MatMul", "r", "w", T=FLOAT)
    graph.add("s", "Neg", "y", "^r", T=FLOAT)
    graph.add("t", "Relu", "r", "^y", T=FLOAT)
    graph.add("u", "Neg", "t", T=FLOAT)
    graph.node("s").attr["_class"].list.s.extend([b"loc:@r", b"loc:@x"])
    return graph


LAYERS = (("h", "r"), ("y",), ("t",))
PRESERVE = ("x", "v", "s", "u")


def divide(
    graph: GraphBuilder,
    divisions: Sequence[LayerDivision | None],
    devices: Sequence[str] = tuple(DEVICES),
) -> graph_pb2.GraphDef:
    layers = FakeLayers(graph.graph_def, LAYERS, {**SHAPES, "t": (4, 8), "u": (4, 8)})
    given = {place: each for place, each in enumerate(divisions) if each is not None}
    parted = part_graph(layers, given, [0] * len(layers.view), PRESERVE)
    return rewrite_divided(parted, devices, PRESERVE)


def results_of(graph_def: graph_pb2.GraphDef) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    feeds = {f"{name}:0": random.normal(size=SHAPES[name]) for name in ("x", "v")}
    with tf.compat.v1.Session(graph=graph) as session:
        return session.run(["s:0", "u:0"], feeds)


@pytest.mark.parametrize(
    "divisions",
    [
        pytest.param((), id="whole"),
        pytest.param((SAMPLES, SAMPLES, SAMPLES), id="samples"),
        pytest.param((FILTERS, CHANNELS, None), id="filters-then-channels"),
        pytest.param((CHANNELS, FILTERS, SAMPLES), id="channels-then-filters"),
        pytest.param((None, MOVED, MOVED), id="moved"),
        pytest.param((MIXED, STATIONARY_W, MIXED), id="mixed"),
        pytest.param((STATIONARY_W, MIXED, FILTERS), id="stationary-w"),
    ],
)
def test_parts_compute_what_the_graph_does(divisions: Sequence[LayerDivision | None]) -> None:
    before = two_products()
    expected = results_of(before.graph_def)
    # All parts on one device: TensorFlow's devices cannot be changed in this process any more.
    for ours, stock in zip(results_of(divide(before, divisions, [CPU] * 4)), expected, strict=True):
        np.testing.assert_allclose(ours, stock, rtol=1e-5, atol=1e-5)  # sums in another order
    after = GraphView(divide(before, divisions))
    after.topological_order()
    assert set(PRESERVE) <= set(after.names)
    assert was_divided(after.graph_def) == bool(divisions)


def test_the_same_graph_comes_of_the_same_arguments() -> None:
    divisions = (MIXED, STATIONARY_W, FILTERS)
    before = two_products()
    untouched = graph_pb2.GraphDef.FromString(before.graph_def.SerializeToString())
    assert same_graph(divide(before, divisions), divide(two_products(), divisions))
    assert same_graph(before.graph_def, untouched)


def test_parts_are_on_their_devices_and_pieces_where_they_are_cut_out() -> None:
    after = divide(two_products(), (SAMPLES, None, None))
    devices = {node.name: node.device[-len("CPU:0") :] for node in after.node}
    assert devices["h/part_0/MatMul"] == devices["x/piece/Slice"] == devices["r/box/ConcatV2"]
    assert devices["h/part_0/MatMul"] == "CPU:0"
    assert devices["h/part_1/MatMul"] == devices["r/part_1/Relu"] == "CPU:1"
    view = GraphView(after)
    cut = {
        view.names[reader]: view.names[view.fanins[reader][0][0]]
        for reader, op in enumerate(view.ops)
        if op == "MatMul"
    }
    assert cut == {
        "h/part_0/MatMul": "x/piece/Slice",
        "h/part_1/MatMul": "x/piece/Slice_1",
        "y": "r/box/ConcatV2",
    }
    [part] = (node for node in after.node if node.name == "r/part_1/Relu")
    assert part.attr[PART_ATTRIBUTE].s == b"r"
    for index, node in enumerate(view.nodes):
        if node.op == "Slice":
            begin, size = (view.nodes[source] for source, _ in view.fanins[index][1:])
            assert {begin.device, size.device} == {node.device}


def test_constants_are_cut_here_and_lie_where_they_are_read() -> None:
    after = divide(two_products(), (None, FILTERS, None))
    view = GraphView(after)
    assert "w" not in view.index_of
    for number in (0, 1):
        source, _ = view.fanins[view.index_of[f"y/part_{number}/MatMul"]][1]
        value = tf.make_ndarray(view.nodes[source].attr["value"].tensor)
        assert value.shape == (8, 1)
        assert view.nodes[source].device == DEVICES[number]
    assert "w" in GraphView(divide(two_products(), (SAMPLES, None, None))).index_of


def test_control_dependencies_are_those_of_all_parts() -> None:
    view = GraphView(divide(two_products(), (SAMPLES, FILTERS, CHANNELS)))

    def waits(name: str) -> set[str]:
        return {view.names[each] for each in view.control_fanins[view.index_of[name]]}

    assert waits("s") == {"r/part_0/Relu", "r/part_1/Relu"}
    for part in ("t/part_0/Relu", "t/part_1/Relu"):
        assert waits(part) == {"y/part_0/MatMul", "y/part_1/MatMul"}


def test_nodes_are_placed_with_those_that_are_left() -> None:
    after = GraphView(divide(two_products(), (SAMPLES, None, None)))
    assert list(after.nodes[after.index_of["s"]].attr["_class"].list.s) == [b"loc:@x"]


def test_the_library_and_the_versions_stay() -> None:
    before = two_products()
    before.graph_def.library.function.add().signature.name = "f"
    after = divide(before, (SAMPLES, None, None))
    assert after.library == before.graph_def.library
    assert after.versions == before.graph_def.versions


def test_what_has_to_be_preserved_is_not_divided() -> None:
    layers = FakeLayers(two_products().graph_def, LAYERS, {**SHAPES, "t": (4, 8), "u": (4, 8)})
    parted = part_graph(layers, {0: SAMPLES}, [0] * len(layers.view), PRESERVE)
    with pytest.raises(GraphError, match="to be whole, got 'r' in parts"):
        rewrite_divided(parted, DEVICES, ("r",))
