"""From a model to a plan and to divided steps, as a user has it: by a function, and under `fit`."""

from __future__ import annotations

from unnoticed import run_python

PROGRAM = """
    import keras
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from parallel.dividing import make_devices
    from tf_interop.parallel.costs.devices import uniform_device_graph

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
        [report] = tf_interop.status().divided_graphs
        [graph] = plan.graphs
        assert len(report.divided) == len(graph.layers) >= 4
        planned = {(names[each.source], names[each.destination]): each.sent_bytes
                   for each in graph.prediction.sent}
        sent = {(a[-13:], b[-13:]): count for (a, b), count in report.sent_bytes.items()}
        assert sent == planned, (sent, planned)
        for ours, stock in zip(results, expected, strict=True):
            np.testing.assert_allclose(ours, stock, 1e-4, 1e-4)
        tf_interop.enable()
        from tf_interop.runtime.plugin import get_plugin
        get_plugin().forget_reports()
"""


def test_divided_as_planned_a_model_gives_the_same() -> None:
    run_python(PROGRAM)
