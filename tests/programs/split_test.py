"""Networks whose batch is split over the cores: they give what they gave."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from unnoticed import assert_same, in_threads

import tf_interop
from tf_interop.convolution import canonical_names, fingerprint_convolutions
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.split_units import find_split_units
from tf_interop.graph.units import planned_name
from tf_interop.graph.view import GraphView
from tf_interop.model.graphs import trace
from tf_interop.planning.types import GraphPlan, MeasuredStep, Plan
from tf_interop.runtime.plugin import get_plugin
from tf_interop.tuning.tune import step_to_tune

pytestmark = pytest.mark.usefixtures("units_on_cpus")

BATCH = 5


def split_plan(model: Any) -> Plan:
    """A plan that splits what can be split."""
    traced = trace(model, batch_size=BATCH, training=False, image_size=None)
    graph_def, fetches = step_to_tune(traced)
    view = GraphView(graph_def)
    properties = GraphProperties(view)
    convolutions, _ = find_convolutions(view, properties)
    units = find_split_units(view, properties, nodes_to_preserve=fetches)
    names = canonical_names(planned_name(view, unit) for unit in units)
    fingerprint, split = fingerprint_convolutions(convolutions), tuple(names.values())
    graph = GraphPlan(fingerprint, len(convolutions), (), BATCH, split_units=split)
    return Plan((graph,))


@pytest.mark.parametrize(
    ("name", "size", "least_share"),
    [
        ("MobileNetV2", 32, 0.95),
        ("EfficientNetB0", 32, 0.95),
        ("NASNetMobile", 32, 0.95),
        ("ConvNeXtTiny", 32, 0.05),
    ],
)
def test_keras_application(name: str, size: int, least_share: float) -> None:
    keras.utils.set_random_seed(1)
    model = getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=10)
    images = np.random.default_rng(0).standard_normal((2 * BATCH + 1, size, size, 3), np.float32)

    def results() -> list[np.ndarray]:
        of_five = tf.function(lambda some: model(some, training=False), autograph=False)
        # `predict` is left with a graph for batches of any size, of which there are 5, 5 and 1.
        return [of_five(images[:BATCH]).numpy(), model.predict(images, BATCH, verbose=0)]

    tf_interop.disable()
    expected = results()
    plan = split_plan(model)
    get_plugin().forget_reports()
    tf_interop.enable(plan=plan)
    found = results()
    status = tf_interop.status()
    assert status.failures == ()
    [report] = status.graphs  # of the graph that came last
    assert status.unit_node_count == len(report.plan.split_units) >= 1
    assert report.unit_op_count >= least_share * (report.node_count - _parameters(model))
    assert status.plan.graphs[0].split_units == report.plan.split_units
    # Sums may be added up in another order for another batch size.
    assert_same(found, expected, rtol=1e-5, atol=1e-6)


def _parameters(model: keras.Model) -> int:
    """Nodes of variables: where they are handed over, and where they are read."""
    return 2 * len(model.variables)


@pytest.mark.parametrize(("narrow_ratio", "split_ratio"), [(1.1, 1.5), (1.5, 1.1)])
def test_the_greater_gain_says_what_is_done_where_any_batch_may_come(
    narrow_ratio: float, split_ratio: float
) -> None:
    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, 6, 6, 4], tf.float32)])
    def compute(images: tf.Tensor) -> tf.Tensor:
        left = tf.nn.relu(tf.nn.conv2d(images, tf.ones([3, 3, 4, 4]), 1, "SAME"))
        return tf.concat([left, tf.nn.conv2d(images, tf.ones([1, 1, 4, 4]), 1, "SAME")], 3)

    tf_interop.enable("always")
    sizes = (1, 2, 5)
    expected = [compute(tf.ones([size, 6, 6, 4])) for size in sizes]
    [narrow] = tf_interop.status().plan.graphs
    [split] = split_plan(compute).graphs
    plan = Plan(
        (
            dataclasses.replace(narrow, batch_size=1, measured=measured(narrow_ratio)),
            dataclasses.replace(split, measured=measured(split_ratio)),
        )
    )
    seen: list[Any] = []
    with get_plugin().observe(lambda graph_def, _: seen.append(graph_def)):
        tf_interop.enable(plan=plan)
        for size, value in zip(sizes, expected, strict=True):
            np.testing.assert_array_equal(compute(tf.ones([size, 6, 6, 4])), value)
    assert tf_interop.status().failures == ()
    units = [node for node in seen[-1].node if node.op == "TfInterop>Unit"]
    is_split = split_ratio > narrow_ratio
    assert {len(node.attr["split_inputs"].list.i) > 0 for node in units} == {is_split}
    assert {tuple(node.attr["batch_sizes"].list.i) for node in units} == {
        (BATCH,) if is_split else (1,)
    }


def test_threads_that_share_a_split_unit() -> None:
    """Which takes parts of several batches at a time, and keeps filters between calls."""
    keras.utils.set_random_seed(1)
    model = keras.applications.MobileNetV2(weights=None, input_shape=(32, 32, 3), classes=10)
    batches = np.random.default_rng(0).standard_normal((4, BATCH, 32, 32, 3), np.float32)
    compute = tf.function(lambda some: model(some, training=False), autograph=False)
    tf_interop.disable()
    expected = [compute(batch) for batch in batches]
    tf_interop.enable(plan=split_plan(model))
    results = in_threads(lambda batch: [compute(batch) for _ in range(20)], batches)
    assert tf_interop.status().unit_node_count == 1
    for found, stock in zip(results, expected, strict=True):
        for each in found:
            np.testing.assert_allclose(each, stock, rtol=1e-5, atol=1e-6)


def measured(ratio: float) -> MeasuredStep:
    return MeasuredStep(ratio, 1.0, ratio, 0.0, 1.0, 1, 1, 2)
