"""Programs whose units all run on one core each: they compute what they did."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from unnoticed import IMAGE, conv, digits, run_python

import tf_interop
from tf_interop.graph.program import decode_unit
from tf_interop.planning.types import Plan
from tf_interop.runtime.plugin import get_plugin

pytestmark = pytest.mark.usefixtures("units_on_cpus")


def pooled_branches(image: tf.Tensor) -> tf.Tensor:
    """Two branches and a shortcut, as in Inception and in ResNet."""
    left = tf.nn.relu(tf.nn.bias_add(conv(image, 0), [1.0, 2.0, 0.0, -1.0]))
    right = tf.nn.max_pool2d(conv(tf.nn.relu(conv(image, 1)), 2), 3, 1, "SAME")
    return tf.concat([left, right], 3)[..., :4] + image


def test_data_pipeline() -> None:
    """In a process of its own: pipelines keep the option that TensorFlow was started with."""
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


def test_a_plan_says_which_units_are_narrow() -> None:
    compute = tf.function(pooled_branches, autograph=False)
    tf_interop.enable("always")
    expected = compute(tf.constant(IMAGE))
    status = tf_interop.status()
    [graph], [report] = status.plan.graphs, status.graphs
    count = len(graph.narrow_units)
    assert report.unit_count == status.unit_node_count == count > 1
    assert report.unit_op_count > count
    assert f"{count} of {count} narrow" in str(status)
    # What was made narrow is not looked at again.
    assert graph.stages == ()

    def run_with(*narrow: str) -> None:
        get_plugin().forget_reports()
        tf_interop.enable(plan=Plan((dataclasses.replace(graph, narrow_units=narrow),)))
        np.testing.assert_array_equal(compute(tf.constant(IMAGE)), expected)

    for narrow in ((), graph.narrow_units[:1], graph.narrow_units):
        run_with(*narrow)
        [report] = tf_interop.status().graphs
        assert report.plan.narrow_units == narrow
        assert report.unit_count == count
        assert report.why_unchanged == ("" if narrow else "the plan leaves this graph unchanged")
    run_with("somebody/else")
    [failure] = tf_interop.status().failures
    assert "somebody/else" in failure.cause


def test_a_unit_is_narrow_at_the_batch_sizes_that_plans_name_it_for() -> None:
    spec = tf.TensorSpec([None, 6, 6, 4], tf.float32)
    compute = tf.function(pooled_branches, autograph=False, input_signature=[spec])
    tf_interop.enable("always")
    images = [digits(size, size, 6, 6, 4) for size in (2, 4, 8)]
    expected = [compute(tf.constant(image)).numpy() for image in images]
    [graph] = tf_interop.status().plan.graphs
    first, second, *_ = graph.narrow_units
    plan = Plan(
        tuple(
            dataclasses.replace(graph, batch_size=size, narrow_units=units, unit_cores=cores)
            for size, units, cores in ((2, (first, second), (4, 1)), (4, (first,), ()), (8, (), ()))
        )
    )
    seen: list[Any] = []
    with get_plugin().observe(lambda graph_def, _: seen.append(graph_def)):
        tf_interop.enable(plan=plan)
        for image, stock in zip(images, expected, strict=True):
            np.testing.assert_array_equal(compute(tf.constant(image)), stock)
    assert tf_interop.status().failures == ()
    units = [decode_unit(node) for node in seen[-1].node if node.op == "TfInterop>Unit"]
    assert {each.batch_sizes: each.cores for each in units} == {(2,): (), (2, 4): (4, 1)}
    [report] = tf_interop.status().graphs
    assert report.plan.cores_of == {first: 4, second: 1}
