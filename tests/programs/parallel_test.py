"""Layers divided over logical devices, from a model and together with stages."""

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


FROM_MODEL = """
    import keras
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from python.benchmarks.divided_training import make_devices
    from tf_interop.parallel.costs.devices import uniform_device_graph
    from tf_interop.runtime.plugin import get_plugin
    from unnoticed import assert_same

    names = make_devices(4)
    devices = uniform_device_graph(
        names, multiply_adds_per_s=2e10, memory_bytes_per_s=1e10, bytes_per_s=5e9, latency_s=1e-5
    )
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input((12, 12, 3)),
        keras.layers.Conv2D(32, 5, padding="same", activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(32, 5, padding="same", activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(512, activation="relu"),
        keras.layers.Dense(10),
    ])
    start = model.get_weights()
    images = np.random.default_rng(0).normal(size=(64, 12, 12, 3)).astype(np.float32)

    def infer():
        return [tf.function(model)(images)]

    def fit():
        model.set_weights(start)
        model.compile(
            keras.optimizers.SGD(0.01),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=False,
        )
        pairs = tf.data.Dataset.from_tensor_slices((images, np.arange(64) % 10))
        history = model.fit(pairs.batch(32, drop_remainder=True), epochs=2, verbose=0)
        return [history.history["loss"], *model.get_weights()]

    for run, batch_size, training in ((infer, 64, False), (fit, 32, True)):
        tf_interop.disable()
        expected = run()
        plan = tf_interop.parallelize(
            model, device_graph=devices, batch_size=batch_size, training=training
        )
        tf_interop.enable(parallel=plan)
        results = run()
        assert "4 devices" in str(tf_interop.status())
        [report] = tf_interop.status().divided_graphs
        [graph] = plan.graphs
        assert len(report.divided) == len(graph.layers) >= 4
        planned = {(names[each.source], names[each.destination]): each.sent_bytes
                   for each in graph.prediction.sent}
        sent = {(a[-13:], b[-13:]): count for (a, b), count in report.sent_bytes.items()}
        assert sent == planned, (sent, planned)
        assert_same(results, expected, rtol=1e-4, atol=1e-4)
        tf_interop.enable()
        get_plugin().forget_reports()
"""


def test_a_divided_model_predicts_and_trains_as_before() -> None:
    run_python(FROM_MODEL)
