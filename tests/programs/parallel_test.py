"""Layers divided over logical devices in programs: Keras, pipelines, unknown batches, Sessions."""

from __future__ import annotations

from unnoticed import run_python

KERAS = """
    import keras
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from parallel.dividing import handed_graphs, layers_of, make_devices, plan_of
    from tf_interop.parallel.degrees import Degrees
    from tf_interop.runtime.plugin import get_plugin

    devices = make_devices(2)
    random = np.random.default_rng(0)
    images = random.normal(size=(20, 8, 8, 3)).astype(np.float32)
    labels = random.integers(0, 5, 20)
    pairs = tf.data.Dataset.from_tensor_slices((images, labels))
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input((8, 8, 3)),
        keras.layers.Conv2D(8, 3, padding="same", activation="relu"),
        keras.layers.BatchNormalization(momentum=0.5),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(8, 3, padding="same", activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(5),
    ])
    start = model.get_weights()

    def fit(drop_remainder=True):
        model.set_weights(start)
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.5),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=False,
        )
        data = pairs.batch(8, drop_remainder=drop_remainder).prefetch(1)
        history = model.fit(data, epochs=2, shuffle=False, verbose=0)
        return [history.history["loss"], *model.get_weights()]

    tf_interop.disable()
    expected = fit()
    graph = max(handed_graphs(fit), key=lambda graph: len(graph.node))
    layers = layers_of(graph)
    for axis in ("sample", "height", "filter", "channel"):
        def choose(layer, place):
            return Degrees(**{axis: 2}) if layer.extents[Axis(axis)] > 1 else None
        from tf_interop.parallel.degrees import Axis
        get_plugin().forget_reports()
        tf_interop.enable(parallel=plan_of([layers], choose, devices))
        results = fit()
        status = tf_interop.status()
        assert not status.failures, status.failures
        [report] = status.divided_graphs
        assert len(report.divided) >= 2 and not report.why_unchanged, report
        assert report.sent_bytes and "2 devices" in str(status), str(status)
        for ours, stock in zip(results, expected, strict=True):
            np.testing.assert_allclose(ours, stock, 1e-4, 1e-5, err_msg=axis)

    # The last batch is smaller, so none of a batch is known.
    get_plugin().forget_reports()
    fit(drop_remainder=False)
    [report] = tf_interop.status().divided_graphs
    assert not report.divided and "shapes are not known" in report.why_unchanged, report
    assert "shapes are not known" in str(tf_interop.status())
"""


def test_keras_fits_to_the_same_weights_and_leaves_unknown_batches_alone() -> None:
    run_python(KERAS)


STAGES = """
    import os
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from parallel.dividing import handed_graphs, layers_of, make_devices, plan_of
    from tf_interop.parallel.degrees import Degrees
    from tf_interop.runtime.plugin import get_plugin

    devices = make_devices(2)
    random = np.random.default_rng(0)
    images = tf.constant(random.integers(-1, 2, (4, 6, 6, 3)).astype(np.float32))
    filters = [random.integers(-1, 2, (size, size, 3, 4)).astype(np.float32) for size in (1, 3)]

    def make():
        return tf.function(lambda image: tf.concat(
            [tf.nn.relu(tf.nn.conv2d(image, each, 1, "SAME")) for each in filters], -1))

    tf_interop.disable()
    expected = make()(images)
    [graph] = handed_graphs(lambda: make()(images))
    layers = layers_of(graph)
    plan = plan_of([layers], lambda layer, place: Degrees(sample=2), devices)
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
    if os.environ["TF_INTEROP_HOST_STAGES"] == "1":
        assert [len(each.stage.lanes) for each in status.graphs[0].plan.stages] == [2, 2]

    # A plan of stages that is for another graph leaves the layers divided.
    get_plugin().forget_reports()
    other = tf_interop.Plan(())
    tf_interop.enable(plan=other, parallel=plan)
    np.testing.assert_array_equal(make()(images), expected)
    [report] = tf_interop.status().divided_graphs
    assert not report.why_unchanged

    # A parallel plan that is for another graph leaves it whole, and stages are made all the same.
    get_plugin().forget_reports()
    filters = filters[:1]
    expected = make()(images)
    get_plugin().forget_reports()
    tf_interop.enable("always", parallel=plan)
    np.testing.assert_array_equal(make()(images), expected)
    status = tf_interop.status()
    assert not status.divided_graphs and len(status.graphs) == 1, str(status)
    [failure] = status.failures
    assert "Expected a parallel plan for this graph" in failure.cause

    # Without it, functions that have run are whole again.
    function = make()
    tf_interop.enable(parallel=plan)
    tf_interop.enable()
    get_plugin().forget_reports()
    function(images)
    assert tf_interop.status().divided_graphs == ()
"""


def test_stages_are_made_of_what_each_device_has() -> None:
    run_python(STAGES, TF_INTEROP_HOST_STAGES="1")


def test_units_are_made_of_what_each_device_has() -> None:
    run_python(STAGES, TF_INTEROP_HOST_STAGES="0")
