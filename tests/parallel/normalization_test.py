from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from parallel.parts_runner import run_graph, values
from tensorflow.core.framework import graph_pb2

from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.parallel.rules import RULES
from tf_interop.parallel.rules.normalization import (
    expand_normalization,
    find_normalizations,
    is_with_its_pair,
)

SHAPE = (4, 5, 3, 7)
TOLERANCES = {tf.float32: 1e-5, tf.float16: 2e-3}


def step(
    *,
    training: bool = True,
    layout: str = "NHWC",
    dtype: tf.DType = tf.float32,
    factor: float = 1.0,
    shape: tuple[int | None, ...] = SHAPE,
    version: str = "V3",
    device: str = "",
) -> graph_pb2.GraphDef:
    """A normalization with its gradient, all outputs read."""
    shape = shape if layout == "NHWC" else (shape[0], shape[3], *shape[1:3])
    graph = tf.Graph()
    with graph.as_default(), tf.device(device):
        image = tf.compat.v1.placeholder(dtype, shape, "image")
        gradient = tf.compat.v1.placeholder(dtype, shape, "gradient")
        vectors = {
            name: tf.compat.v1.placeholder(tf.float32, SHAPE[3:], name)
            for name in ("scale", "offset", "mean", "variance")
        }
        others = {"epsilon": 1e-3, "data_format": layout, "is_training": training}
        forward = getattr(tf.raw_ops, f"FusedBatchNorm{version}")(
            x=image, **vectors, exponential_avg_factor=factor, name="bn", **others
        )
        reserved = [forward[3], forward[4]] if training else [vectors["mean"], vectors["variance"]]
        reserved += [forward[5]] if version == "V3" else []
        backward = getattr(tf.raw_ops, f"FusedBatchNormGrad{version}")(
            y_backprop=gradient,
            x=image,
            scale=vectors["scale"],
            name="bn_gradient",
            **{f"reserve_space_{place}": each for place, each in enumerate(reserved, 1)},
            **others,
        )
        # In inference nobody knows what is in the reserve spaces.
        spaces = forward[3:5] if training else [vectors["mean"], vectors["variance"]]
        for place, each in enumerate([*forward[:3], *spaces, *backward[:3]]):
            tf.identity(each, f"result_{place}")
    return graph.as_graph_def(add_shapes=True)


def expanded(graph_def: graph_pb2.GraphDef, *names: str) -> graph_pb2.GraphDef:
    """The graph without these normalizations, or all that are found."""
    view = GraphView(graph_def)
    properties = GraphProperties(view)
    nodes = [view.index_of[name] for name in names or found(graph_def)]
    return expand_normalization(view, properties, nodes)


def found(graph_def: graph_pb2.GraphDef) -> list[str]:
    view = GraphView(graph_def)
    return [view.names[node] for node in sorted(find_normalizations(view, GraphProperties(view)))]


def results(graph_def: graph_pb2.GraphDef, layout: str = "NHWC") -> list[np.ndarray]:
    """The values of all results, images in NHWC."""
    feeds = {name: 0.5 + values(SHAPE[3], seed=len(name)) for name in ("scale", "offset", "mean")}
    feeds["variance"] = np.abs(feeds["mean"]) + 0.1
    for seed, name in enumerate(("image", "gradient")):
        image = 0.5 + values(*SHAPE, seed=seed)
        feeds[name] = image if layout == "NHWC" else image.transpose(0, 3, 1, 2)
    found = run_graph(graph_def, feeds, [f"result_{place}" for place in range(8)])
    is_turned = [layout != "NHWC" and each.ndim == 4 for each in found]
    return [
        each.transpose(0, 2, 3, 1) if turned else each
        for each, turned in zip(found, is_turned, strict=True)
    ]


def check_equal(graph_def: graph_pb2.GraphDef, new: graph_pb2.GraphDef, tolerance: float) -> None:
    for before, after in zip(results(graph_def), results(new), strict=True):
        largest = np.abs(before).max().astype(np.float64)
        np.testing.assert_allclose(after, before, rtol=0, atol=tolerance * largest)


def op_types(graph_def: graph_pb2.GraphDef) -> set[str]:
    return {node.op for node in graph_def.node}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16])
@pytest.mark.parametrize("factor", [1.0, 0.25])
@pytest.mark.parametrize("version", ["V2", "V3"])
def test_expands_to_what_the_stock_kernels_give(
    training: bool, dtype: tf.DType, factor: float, version: str
) -> None:
    graph_def = step(training=training, dtype=dtype, factor=factor, version=version)
    assert found(graph_def) == ["bn", "bn_gradient"]
    new = expanded(graph_def)
    assert not any("FusedBatchNorm" in op for op in op_types(new))
    check_equal(graph_def, new, TOLERANCES[dtype])


@pytest.mark.parametrize("training", [True, False])
def test_nchw_gives_the_same(training: bool) -> None:
    nhwc = results(expanded(step(training=training)))
    nchw = results(expanded(step(training=training, layout="NCHW")), "NCHW")
    for ours, expected in zip(nchw, nhwc, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_every_op_of_an_expansion_has_a_rule() -> None:
    for training in (True, False):
        for dtype in (tf.float32, tf.float16):
            new = expanded(step(training=training, dtype=dtype))
            assert op_types(new) - RULES.keys() == {"Placeholder", "Const"}


def test_states_the_shapes_of_new_nodes() -> None:
    new = expanded(step())
    view = GraphView(new)
    properties = GraphProperties(view)
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(new, name="")
    for node, name in enumerate(view.names):
        [shape, *_] = (each.shape for each in graph.get_operation_by_name(name).outputs)
        assert properties.output_shape(node, 0) == tuple(shape.as_list())


def test_keeps_names_devices_and_control_dependencies() -> None:
    graph_def = step(device="/device:CPU:0")
    [node] = [node for node in graph_def.node if node.name == "bn"]
    node.input.append("^gradient")
    graph_def.node.add(name="after", op="NoOp", input=["^bn"])
    new = expanded(graph_def)
    nodes = {node.name: node for node in new.node}
    assert nodes["bn"].op == "AddV2"
    assert nodes["result_0"].input[:] == ["bn"]
    assert nodes["after"].input[:] == ["^bn"]
    made = [node for node in new.node if node.name == "bn" or node.name.startswith("bn/")]
    assert all(node.device == "/device:CPU:0" for node in made)
    assert all(node.input[-1] == "^gradient" for node in made)
    assert not found(new)


def test_makes_nothing_that_nobody_reads() -> None:
    graph_def = step()
    for name in ("result_1", "result_2", "result_3", "result_4"):
        [node] = [node for node in graph_def.node if node.name == name]
        graph_def.node.remove(node)
    new = expanded(graph_def)
    read = {text.partition(":")[0] for node in new.node for text in node.input}
    unread = {node.name for node in new.node} - read
    assert unread == {"result_0", "result_5", "result_6", "result_7", "mean", "variance"}


def test_a_gradient_reads_the_statistics_of_a_fused_node_as_its_kernel_does() -> None:
    graph_def = step()
    new = expanded(graph_def, "bn_gradient")
    assert "FusedBatchNormV3" in op_types(new)
    check_equal(graph_def, new, TOLERANCES[tf.float32])


def test_on_gpus_the_second_reserve_space_is_inverse_and_a_root() -> None:
    for device, kept in (("/device:GPU:0", "Rsqrt"), ("/device:CPU:0", "Mean")):
        new = expanded(step(device=device))
        nodes = {node.name: node for node in new.node}
        reshape = nodes[nodes["result_4"].input[0]]
        assert nodes[reshape.input[0]].op == kept
        of_fused = expanded(step(device=device), "bn_gradient")
        inverted = "Rsqrt" in op_types(of_fused)
        assert inverted == (kept == "Mean")


def test_keeps_a_node_whose_reserve_space_somebody_else_reads() -> None:
    graph_def = step()
    view = GraphView(graph_def)
    pair = [view.index_of[name] for name in ("bn", "bn_gradient")]
    assert all(is_with_its_pair(view, pair, node) for node in pair)
    assert not any(is_with_its_pair(view, [node], node) for node in pair)
    for port, left in ((5, ["bn_gradient"]), (4, ["bn", "bn_gradient"])):
        read = graph_pb2.GraphDef()
        read.CopyFrom(graph_def)
        read.node.add(name="reader", op="Neg", input=[f"bn:{port}"])
        assert found(read) == left
    graph_def.node.add(name="reader", op="Neg", input=["bn_gradient:3"])
    assert found(graph_def) == ["bn"]


def test_keeps_a_node_of_an_unknown_shape() -> None:
    assert not found(step(shape=(None, 5, 3, 7)))
