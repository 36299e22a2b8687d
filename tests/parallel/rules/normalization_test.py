"""Batch normalizations, in parts by the rule and replaced by elementary ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from graph_builder import node_of
from parallel.parts_runner import check, operation_of, run_graph, stays_whole, values
from tensorflow.core.framework import graph_pb2

from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.parallel.rules import RULES
from tf_interop.parallel.rules.normalization import (
    expand_normalization,
    find_normalizations,
    is_with_its_pair,
)
from tf_interop.parallel.types import Degrees

SHAPE = (4, 5, 3, 7)
OF_CHANNELS = (Degrees(filter=2), Degrees(filter=3, channel=2), Degrees(channel=7))
# The width of a vectorized sum depends on the number of channels.
ROUNDING = 1e-6
TOLERANCES = {tf.float32: 1e-5, tf.float16: 2e-3}


def case(op: str, *, training: bool, dtype: Any = np.float32) -> tuple[Any, ...]:
    """An op, its inputs and attributes."""
    vectors = [np.abs(values(SHAPE[3], seed=seed)) + 0.5 for seed in range(4)]
    inputs = [values(*SHAPE, dtype=dtype), *vectors]
    if "Grad" in op:
        inputs[1:3] = [values(*SHAPE, seed=9, dtype=dtype), vectors[0]]
        if op.endswith("V3"):
            inputs.append(values(0))
    return op, inputs, {"U": tf.float32, "is_training": training}


@pytest.mark.parametrize("version", ["V2", "V3"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_divides_training_by_channels(version: str, dtype: Any) -> None:
    training = case(f"FusedBatchNorm{version}", training=True, dtype=dtype)
    # A result in half may be rounded to its other neighbour.
    tolerance = ROUNDING if dtype == np.float32 else 2.0**-10
    check(*training, OF_CHANNELS, outputs=5, tolerance=tolerance)
    assert stays_whole(operation_of(*training)[0], Degrees(sample=2))


@pytest.mark.parametrize("version", ["V2", "V3"])
def test_divides_inference_along_every_axis(version: str) -> None:
    degrees = (*OF_CHANNELS, Degrees(sample=2, height=3), Degrees(width=2, filter=2))
    inference = case(f"FusedBatchNorm{version}", training=False)
    # The kernel does not write the reserve spaces.
    check(*inference, degrees, outputs=3, tolerance=ROUNDING)


@pytest.mark.parametrize("version", ["V2", "V3"])
@pytest.mark.parametrize("training", [True, False])
def test_divides_gradients_by_channels(version: str, training: bool) -> None:
    gradient = case(f"FusedBatchNormGrad{version}", training=training)
    for parts in check(*gradient, OF_CHANNELS, outputs=3, tolerance=ROUNDING):
        assert all(set(part.reads[5:]) <= {None} for part in parts)
    assert stays_whole(operation_of(*gradient)[0], Degrees(height=2))


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
    """A normalization with its gradient; all outputs but the reserve spaces are read."""
    shape = shape if layout == "NHWC" else (shape[0], shape[3], *shape[1:3])
    graph = tf.Graph()
    with graph.as_default(), tf.device(device):
        image, gradient = (
            tf.compat.v1.placeholder(dtype, shape, name) for name in ("image", "gradient")
        )
        vectors = {
            name: tf.compat.v1.placeholder(tf.float32, SHAPE[3:], name)
            for name in ("scale", "offset", "mean", "variance")
        }
        others = {"epsilon": 1e-3, "data_format": layout, "is_training": training}
        forward = getattr(tf.raw_ops, f"FusedBatchNorm{version}")(
            x=image, **vectors, exponential_avg_factor=factor, name="bn", **others
        )
        spaces = forward[3:5] if training else [vectors["mean"], vectors["variance"]]
        reserved = [*spaces, *forward[5:]]
        backward = getattr(tf.raw_ops, f"FusedBatchNormGrad{version}")(
            y_backprop=gradient,
            x=image,
            scale=vectors["scale"],
            name="bn_gradient",
            **{f"reserve_space_{place}": each for place, each in enumerate(reserved, 1)},
            **others,
        )
        for place, each in enumerate([*forward[:3], *backward[:3]]):
            tf.identity(each, f"result_{place}")
    return graph.as_graph_def(add_shapes=True)


def expanded(graph_def: graph_pb2.GraphDef) -> graph_pb2.GraphDef:
    """The graph without normalizations."""
    view = GraphView(graph_def)
    nodes = [view.index_of[name] for name in found(graph_def)]
    return expand_normalization(view, GraphProperties(view), nodes)


def found(graph_def: graph_pb2.GraphDef) -> list[str]:
    view = GraphView(graph_def)
    return [view.names[node] for node in sorted(find_normalizations(view, GraphProperties(view)))]


def check_equal(graph_def: graph_pb2.GraphDef, new: graph_pb2.GraphDef, tolerance: float) -> None:
    feeds = {name: 0.5 + values(SHAPE[3], seed=len(name)) for name in ("scale", "offset", "mean")}
    feeds["variance"] = np.abs(feeds["mean"]) + 0.1
    shape = tf.TensorShape(node_of(graph_def, "image").attr["shape"].shape).as_list()
    for seed, name in enumerate(("image", "gradient")):
        feeds[name] = 0.5 + values(*shape, seed=seed)
    names = [f"result_{place}" for place in range(6)]
    results = (run_graph(each, feeds, names) for each in (graph_def, new))
    for before, after in zip(*results, strict=True):
        largest = np.abs(before).max().astype(np.float64)
        np.testing.assert_allclose(after, before, rtol=0, atol=tolerance * largest)


def op_types(graph_def: graph_pb2.GraphDef) -> set[str]:
    return {node.op for node in graph_def.node}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("factor", [1.0, 0.25])
@pytest.mark.parametrize(
    ("version", "layout", "dtype"),
    [
        *((version, "NHWC", dtype) for version in ("V2", "V3") for dtype in TOLERANCES),
        # CPUs have no such kernel for gradients of inference in float16.
        ("V3", "NCHW", tf.float32),
    ],
)
def test_expands_to_the_results_of_the_stock_kernels(
    training: bool, factor: float, version: str, layout: str, dtype: tf.DType
) -> None:
    graph_def = step(training=training, dtype=dtype, factor=factor, version=version, layout=layout)
    assert found(graph_def) == ["bn", "bn_gradient"]
    new = expanded(graph_def)
    # Every op of an expansion has a rule, and none is a fused normalization.
    assert op_types(new) - RULES.keys() == {"Placeholder", "Const"}
    assert not any("FusedBatchNorm" in op for op in op_types(new))
    check_equal(graph_def, new, TOLERANCES[dtype])


def test_keeps_names_devices_and_control_dependencies() -> None:
    graph_def = step(device="/device:CPU:0")
    node_of(graph_def, "bn").input.append("^gradient")
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


def test_the_statistics_of_one_normalization_may_pass_through_another() -> None:
    graph_def = step()
    second = graph_def.node.add()
    second.CopyFrom(node_of(graph_def, "bn"))
    second.name = "second"
    second.input[:] = ["bn", "scale", "offset", "bn:1", "bn:2"]
    second.attr["is_training"].b = False
    node_of(graph_def, "result_1").input[:] = ["second:1"]
    node_of(graph_def, "result_0").input[:] = ["second"]
    assert found(graph_def) == ["bn", "bn_gradient", "second"]
    check_equal(graph_def, expanded(graph_def), 1e-5)


def test_makes_no_statistics_that_nobody_reads() -> None:
    graph_def = step()
    for name in ("result_1", "result_2"):
        graph_def.node.remove(node_of(graph_def, name))
    new = expanded(graph_def)
    read = {text.partition(":")[0] for node in new.node for text in node.input}
    unread = {node.name for node in new.node} - read
    assert unread == {"result_0", "result_3", "result_4", "result_5", "mean", "variance"}


def test_keeps_a_node_if_another_one_reads_its_reserve_space() -> None:
    graph_def = step()
    view = GraphView(graph_def)
    pair = [view.index_of[name] for name in ("bn", "bn_gradient")]
    assert all(is_with_its_pair(view, pair, node) for node in pair)
    assert not any(is_with_its_pair(view, [node], node) for node in pair)
    for port, left in (
        *(("bn:5", ["bn_gradient"]), ("bn:4", ["bn_gradient"]), ("bn:2", ["bn", "bn_gradient"])),
        ("bn_gradient:3", ["bn"]),
    ):
        read = graph_pb2.GraphDef()
        read.CopyFrom(graph_def)
        read.node.add(name="reader", op="Neg", input=[port])
        assert found(read) == left
    # In inference a gradient does not use statistics of a batch.
    node_of(graph_def, "bn_gradient").attr["is_training"].b = False
    assert found(graph_def) == ["bn_gradient"]


def test_keeps_a_gradient_if_another_one_needs_the_fused_node() -> None:
    graph_def = step()
    other = graph_def.node.add()
    other.CopyFrom(node_of(graph_def, "bn_gradient"))
    other.name = "other"
    view = GraphView(graph_def)
    nodes = [view.index_of[name] for name in ("bn", "bn_gradient", "other")]
    assert all(is_with_its_pair(view, nodes, node) for node in nodes)
    assert not any(is_with_its_pair(view, nodes[:2], node) for node in nodes[:2])
