"""Layers divided over logical devices, together with stages and units."""

from __future__ import annotations

from unnoticed import run_python

STAGES = """
    import os
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from python.benchmarks.divided_training import handed_layers, make_devices, plan_of, strategies
    from tf_interop.runtime.plugin import get_plugin

    devices = make_devices(2)
    random = np.random.default_rng(0)
    images = tf.constant(random.integers(-1, 2, (4, 6, 6, 3)).astype(np.float32))
    filters = [random.integers(-1, 2, (size, size, 3, 4)).astype(np.float32) for size in (1, 3)]

    def make(count=2):
        return tf.function(lambda image: tf.concat(
            [tf.nn.relu(tf.nn.conv2d(image, each, 1, "SAME")) for each in filters[:count]], -1))

    def check(has_stages):
        os.environ["TF_INTEROP_HOST_STAGES"] = str(int(has_stages))
        get_plugin().forget_reports()
        tf_interop.disable()
        expected = make()(images)
        layers = handed_layers(lambda: make()(images))
        plan = plan_of(layers, dict(strategies(layers, 2))["data"], devices)
        made = {}
        def look(graph_def, _):
            for node in graph_def.node:
                if node.op in ("TfInterop>ConvStage", "TfInterop>Unit"):
                    made[node.name] = node.device

        tf_interop.enable("always", parallel=plan)
        with get_plugin().observe(look):
            np.testing.assert_array_equal(make()(images), expected)
        status = tf_interop.status()
        assert not status.failures, status.failures
        assert len(status.divided_graphs) == 1 and status.graphs
        assert {each[-len("CPU:0"):] for each in made.values()} == {"CPU:0", "CPU:1"}, made
        if has_stages:
            assert [len(each.stage.lanes) for each in status.graphs[0].plan.stages] == [2, 2]

        # A plan for the whole graph leaves the layers divided.
        get_plugin().forget_reports()
        other = tf_interop.Plan(())
        tf_interop.enable(plan=other, parallel=plan)
        np.testing.assert_array_equal(make()(images), expected)
        status = tf_interop.status()
        [report] = status.divided_graphs
        assert not report.why_unchanged
        if has_stages:
            [failure] = status.failures
            assert "whose layers the parallel plan divides" in failure.cause
        else:
            assert not status.failures and status.op_count and status.graphs[0].why_no_plan

        # A parallel plan for another graph leaves this one whole, and stages are still made.
        get_plugin().forget_reports()
        expected = make(1)(images)
        get_plugin().forget_reports()
        tf_interop.enable("always", parallel=plan)
        np.testing.assert_array_equal(make(1)(images), expected)
        status = tf_interop.status()
        assert not status.divided_graphs and len(status.graphs) == 1, str(status)
        [failure] = status.failures
        assert "it has 2 layers, and this graph has 1" in failure.cause

        # Without the plan, functions that have run are whole again.
        function = make(1)
        tf_interop.enable(parallel=plan)
        tf_interop.enable()
        get_plugin().forget_reports()
        function(images)
        assert tf_interop.status().divided_graphs == ()

    check(has_stages=True)
    check(has_stages=False)
"""


def test_stages_and_units_are_made_on_each_device() -> None:
    run_python(STAGES)
