"""Programs compute the same results with narrow and split units as without."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from unnoticed import IMAGE, assert_same, conv, digits, in_threads, run_python

import tf_interop
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.landmarks import find_structure
from tf_interop.graph.program import UNIT_OP, UnitNode, decode_unit
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.split_units import find_split_units
from tf_interop.model.graphs import trace
from tf_interop.planning.types import GraphPlan, MeasuredStep, Plan, PlannedStage
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.settings import PassReport
from tf_interop.stage import Stage, Step
from tf_interop.tuning.tune import step_to_tune

pytestmark = pytest.mark.usefixtures("units_on_cpus")

BATCH = 5


def pooled_branches(image: tf.Tensor) -> tf.Tensor:
    """Two branches and a shortcut, as in Inception and ResNet."""
    left = tf.nn.relu(tf.nn.bias_add(conv(image, 0), [1.0, 2.0, 0.0, -1.0]))
    right = tf.nn.max_pool2d(conv(tf.nn.relu(conv(image, 1)), 2), 3, 1, "SAME")
    return tf.concat([left, right], 3)[..., :4] + image


compute_branches = tf.function(
    pooled_branches,
    autograph=False,
    input_signature=[tf.TensorSpec([None, 6, 6, 4], tf.float32)],
)


@contextlib.contextmanager
def units_made() -> Iterator[list[UnitNode]]:
    """Collects the units of the last graph in the block."""
    units: list[UnitNode] = []

    def look(graph_def: Any, _: str) -> None:
        units[:] = [decode_unit(node) for node in graph_def.node if node.op == UNIT_OP]

    with get_plugin().observe(look):
        yield units


def split_plan(model: Any) -> Plan:
    """A plan that splits everything that can be split."""
    traced = trace(model, batch_size=BATCH, training=False, image_size=None)
    step = step_to_tune(traced)
    view, properties = step.folded, GraphProperties(step.folded)
    convolutions, _ = find_convolutions(step.stock, GraphProperties(step.stock))
    units = find_split_units(view, properties, nodes_to_preserve=step.fetches)
    structure = find_structure(step.stock, convolutions)
    graph = GraphPlan(
        structure.fingerprint,
        structure.landmarks,
        batch_size=BATCH,
        unit_count=len(units),
        are_split=True,
    )
    return Plan((graph,))


def test_data_pipeline() -> None:
    """In its own process, because pipelines keep the option that TensorFlow started with."""
    run_python(
        """
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from unnoticed import IMAGE, conv
    tf_interop.enable("always")
    def chain(image):
        return tf.nn.relu(conv(image, 0)) + conv(image, 1)
    images = tf.data.Dataset.from_tensors(IMAGE).repeat(4)
    results = list(images.map(chain, num_parallel_calls=4))
    status = tf_interop.status()
    assert not status.failures and status.unit_node_count, str(status)
    for result in results:
        np.testing.assert_array_equal(result, chain(tf.constant(IMAGE)))
    """,
        TF_INTEROP_HOST_STAGES="0",
    )


def test_a_plan_makes_all_units_narrow_or_none() -> None:
    compute = tf.function(pooled_branches, autograph=False)
    tf_interop.enable("always")
    expected = compute(tf.constant(IMAGE))
    status = tf_interop.status()
    [graph], [report] = status.plan.graphs, status.graphs
    count = graph.unit_count
    assert report.unit_count == status.unit_node_count == count > 1
    assert report.unit_op_count > count
    assert f"{count} of {count} narrow" in str(status)
    assert graph.stages == ()

    def run_with(**changes: Any) -> PassReport:
        get_plugin().forget_reports()
        tf_interop.enable(plan=Plan((dataclasses.replace(graph, **changes),)))
        np.testing.assert_array_equal(compute(tf.constant(IMAGE)), expected)
        [report] = tf_interop.status().graphs
        return report

    measured = MeasuredStep(2.0, 1.0, 2.0, 0.0, 1, 1, 2)
    # With another loss, for example, a graph has other units than the planned one.
    for planned in (0, 1, count):
        report = run_with(unit_count=planned, measured=measured)
        made = count if planned else 0
        assert report.plan.unit_count == len(report.unit_names) == made
        assert report.unit_count == count
        assert report.why_unchanged == ("" if made else "the plan leaves this graph unchanged")
        # The measured gain is only that of these units.
        assert report.plan.measured == (measured if planned == count else None)
    a_stage = PlannedStage(Stage.in_sequence([Step(graph.structure.names[0])]))
    report = run_with(unit_count=0, stages=(a_stage,))
    assert "stages run on GPUs only" in report.why_unchanged


def test_units_are_narrow_at_the_batch_sizes_at_which_a_plan_makes_them_so() -> None:
    tf_interop.enable("always")
    images = [tf.constant(digits(size, size, 6, 6, 4)) for size in (2, 4, 8)]
    expected = [compute_branches(image).numpy() for image in images]
    [graph] = tf_interop.status().plan.graphs
    count = graph.unit_count
    plan = Plan(
        tuple(
            dataclasses.replace(graph, batch_size=size, unit_count=units, unit_cores=cores)
            for size, units, cores in ((2, count, 4), (4, count, 1), (8, 0, 1))
        )
    )
    tf_interop.enable(plan=plan)
    with units_made() as units:
        assert_same(map(compute_branches, images), expected)
    assert tf_interop.status().failures == ()
    assert [(each.batch_sizes, each.cores) for each in units] == [((2, 4), (4, 1))] * count
    [report] = tf_interop.status().graphs
    assert (report.plan.unit_count, report.plan.unit_cores) == (count, 4)


@pytest.mark.parametrize(("narrow_ratio", "split_ratio"), [(1.1, 1.5), (1.5, 1.1)])
def test_the_greater_gain_decides_for_a_graph_of_any_batch_size(
    narrow_ratio: float, split_ratio: float
) -> None:
    def measured(ratio: float) -> MeasuredStep:
        return MeasuredStep(ratio, 1.0, ratio, 0.0, 1, 1, 2)

    tf_interop.enable("always")
    images = [tf.constant(digits(size, size, 6, 6, 4)) for size in (1, 2, BATCH)]
    expected = [compute_branches(image).numpy() for image in images]
    [narrow] = tf_interop.status().plan.graphs
    [split] = split_plan(compute_branches).graphs
    plan = Plan(
        (
            dataclasses.replace(narrow, batch_size=1, measured=measured(narrow_ratio)),
            dataclasses.replace(split, measured=measured(split_ratio)),
        )
    )
    tf_interop.enable(plan=plan)
    with units_made() as units:
        assert_same(map(compute_branches, images), expected)
    assert tf_interop.status().failures == ()
    is_split = split_ratio > narrow_ratio
    assert {bool(each.split_inputs) for each in units} == {is_split}
    assert {each.batch_sizes for each in units} == {(BATCH,) if is_split else (1,)}


@pytest.mark.parametrize(
    ("name", "least_share"),
    [
        ("MobileNetV2", 0.95),
        ("EfficientNetB0", 0.95),
        ("NASNetMobile", 0.95),
        ("ConvNeXtTiny", 0.05),
    ],
)
def test_split_keras_application(name: str, least_share: float) -> None:
    keras.utils.set_random_seed(1)
    model = getattr(keras.applications, name)(weights=None, input_shape=(32, 32, 3), classes=10)
    images = np.random.default_rng(0).standard_normal((2 * BATCH + 1, 32, 32, 3), np.float32)

    def results() -> list[np.ndarray]:
        of_five = tf.function(lambda some: model(some, training=False), autograph=False)
        # The graph of `predict` is for batches of any size; here they have 5, 5 and 1 images.
        return [of_five(images[:BATCH]).numpy(), model.predict(images, BATCH, verbose=0)]

    tf_interop.disable()
    expected = results()
    plan = split_plan(model)
    get_plugin().forget_reports()
    tf_interop.enable(plan=plan)
    found = results()
    status = tf_interop.status()
    assert status.failures == ()
    [report] = status.graphs  # of the last graph
    assert status.unit_node_count == report.plan.unit_count == len(report.unit_names) >= 1
    assert report.plan.are_split
    parameter_count = 2 * len(model.variables)  # one node passes a variable, another reads it
    assert report.unit_op_count >= least_share * (report.node_count - parameter_count)
    assert status.plan.graphs[0] == report.plan
    # Sums may be added up in another order for another batch size.
    assert_same(found, expected, rtol=1e-5, atol=1e-6)


def test_threads_that_share_a_split_unit() -> None:
    """The unit takes parts of several batches at a time, and keeps filters between calls."""
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
        assert_same(found, [stock] * len(found), rtol=1e-5, atol=1e-6)
