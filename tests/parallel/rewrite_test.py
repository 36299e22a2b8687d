"""Rewritten graphs: their nodes and their results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from graph_builder import CPU, node_of, same_graph
from parallel.parts_runner import run_graph, values
from parallel.traced_layers import image, layer_names, layers_of, parameter, trace
from tensorflow.core.framework import graph_pb2

from tf_interop.graph.view import GraphView
from tf_interop.parallel.parted_graph import LayerDivision, part_graph
from tf_interop.parallel.rewrite import rewrite_divided, was_divided
from tf_interop.parallel.types import Degrees

DEVICES = [CPU.replace("CPU:0", f"CPU:{number}") for number in range(4)]
SAMPLES = LayerDivision(Degrees(sample=2), (0, 1))
FILTERS = LayerDivision(Degrees(filter=2), (0, 1))
MIXED = LayerDivision(Degrees(sample=2, channel=2), (0, 1, 2, 3))
STATIONARY_W = LayerDivision(Degrees(filter=2, channel=2), (3, 2, 1, 0))
PRESERVE = ("x", "v/r", "s", "u")
FEEDS = {"x": values(4, 6), "v/r": values(6, 8, seed=1)}


def two_products() -> graph_pb2.GraphDef:
    """Layers of h = x v, r and t = relu(relu(h)), and of y = r w with a constant w."""

    def build() -> None:
        with tf.device(CPU):
            h = tf.matmul(image(4, 6, name="x"), parameter(6, 8, name="v"), name="h")
            r = tf.nn.relu(h, name="r")
            w = tf.constant(values(8, 2, seed=2), name="w")
            y = tf.matmul(r, w, name="y")
            with tf.control_dependencies([r]):
                tf.negative(y, name="s")
            with tf.control_dependencies([y]):
                t = tf.nn.relu(r, name="t")
            tf.negative(t, name="u")

    graph_def = trace(build)
    node_of(graph_def, "s").attr["_class"].list.s.extend([b"loc:@r", b"loc:@x"])
    return graph_def


def divide(
    graph_def: graph_pb2.GraphDef,
    *divisions: LayerDivision | None,
    devices: Sequence[str] = tuple(DEVICES),
) -> graph_pb2.GraphDef:
    layers = layers_of(graph_def, PRESERVE)
    pairs = zip(layer_names(layers), divisions, strict=False)
    given = {name: each for name, each in pairs if each is not None}
    parted = part_graph(layers, given, [0] * len(layers.view))
    return rewrite_divided(parted, devices)


def test_the_same_arguments_give_the_same_graph_and_results() -> None:
    before = two_products()
    untouched = graph_pb2.GraphDef.FromString(before.SerializeToString())
    after = divide(before, MIXED, STATIONARY_W)
    assert was_divided(after) and not was_divided(before)
    assert same_graph(after, divide(two_products(), MIXED, STATIONARY_W))
    assert same_graph(before, untouched)
    # All parts are on one device, because this process can no longer make others.
    on_one = divide(before, MIXED, STATIONARY_W, devices=[CPU] * 4)
    results = (run_graph(each, FEEDS, ["s", "u"]) for each in (on_one, before))
    for ours, stock in zip(*results, strict=True):
        np.testing.assert_allclose(ours, stock, rtol=1e-5, atol=1e-5)  # sums in another order


def test_each_device_has_its_own_boxes_of_constants() -> None:
    after = divide(two_products(), None, FILTERS)
    view = GraphView(after)
    assert "w" not in view.index_of
    for number in (0, 1):
        source, _ = view.fanins[view.index_of[f"y/part_{number}/MatMul"]][1]
        value = tf.make_ndarray(view.nodes[source].attr["value"].tensor)
        assert value.shape == (8, 1)
        assert view.nodes[source].device == DEVICES[number]
    assert "w" in GraphView(divide(two_products(), SAMPLES)).index_of


def test_control_dependencies_are_on_all_parts() -> None:
    view = GraphView(divide(two_products(), SAMPLES, FILTERS))

    def waits(name: str) -> set[str]:
        return {view.names[each] for each in view.control_fanins[view.index_of[name]]}

    assert waits("s") == {"r/part_0/Relu", "r/part_1/Relu"}
    for part in ("t/part_0/Relu", "t/part_1/Relu"):
        assert waits(part) == {"y/part_0/MatMul", "y/part_1/MatMul"}


def test_keeps_colocation_with_nodes_that_stay_library_and_versions() -> None:
    before = two_products()
    before.library.function.add().signature.name = "f"
    after = divide(before, SAMPLES)
    assert list(node_of(after, "s").attr["_class"].list.s) == [b"loc:@x"]
    assert after.library == before.library
    assert after.versions == before.versions
