"""Several devices in one process, which have to be there before TensorFlow starts."""

from __future__ import annotations

from unnoticed import ROOT, run_python

DEVICES = '''
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from tf_interop.graph.program import decode_stage
    from tf_interop.runtime.plugin import get_plugin
    from unnoticed import IMAGE, conv, stages_run

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 3
    )
    NAMES = ["CPU:0", "CPU:1", "CPU:2"]

    def stages_by_device(call):
        """What a call returns, and how many convolutions each stage has that it makes, by device.
        """
        device_of, counts = {}, {}
        def look(graph_def, _):
            for node in graph_def.node:
                if node.op != "TfInterop>ConvStage":
                    device_of[node.name] = node.device
                    continue
                steps = [each.name for each in decode_stage(node).operations]
                assert {device_of[name] for name in steps} == {node.device}
                counts.setdefault(node.device[-len("CPU:0"):], {})[node.name] = len(steps)
        with get_plugin().observe(look):
            result = call()
        # What fails in an observer fails in the pass.
        assert tf_interop.status().failures == (), tf_interop.status().failures
        return result, {name: sorted(each.values()) for name, each in sorted(counts.items())}
'''


def run_with_devices(program: str) -> None:
    run_python(DEVICES + program, PYTHONPATH=f"{ROOT}/tests:{ROOT}")


def test_a_stage_is_on_one_device() -> None:
    run_with_devices(
        """
    def branches(image):
        outputs = []
        for name in NAMES:
            with tf.device(name):
                outputs += [conv(image, 0), conv(image, 1)]
        return tf.add_n(outputs)

    tf_interop.enable("always")
    result, counts = stages_by_device(lambda: tf.function(branches)(tf.constant(IMAGE)))
    assert counts == {name: [2] for name in NAMES}, counts
    np.testing.assert_array_equal(result, branches(tf.constant(IMAGE)))

    plan = tf_interop.status().plan
    tf_interop.disable()
    tf_interop.enable(plan=plan)
    result, counts = stages_by_device(lambda: tf.function(branches)(tf.constant(IMAGE)))
    assert counts == {name: [2] for name in NAMES}, counts
    np.testing.assert_array_equal(result, branches(tf.constant(IMAGE)))
    """
    )


def test_mirrored_training_gives_the_same_weights() -> None:
    run_with_devices(
        """
    RANDOM = np.random.default_rng(0)
    IMAGES = RANDOM.random((12, 8, 8, 3), np.float32)
    LABELS = RANDOM.random((12, 2), np.float32)

    def train():
        layers = tf.keras.layers
        tf.keras.utils.set_random_seed(1)
        with tf.distribute.MirroredStrategy(NAMES).scope():
            image = tf.keras.Input((8, 8, 3))
            outputs = [layers.Conv2D(4, size, padding="same", name=f"{size}x{size}")(image)
                       for size in (1, 3)]
            x = layers.GlobalAveragePooling2D()(layers.Concatenate()(outputs))
            model = tf.keras.Model(image, layers.Dense(2)(x), name="branches")
            model.compile(tf.keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        model.fit(IMAGES, LABELS, batch_size=6, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    tf_interop.disable()
    expected, counts = stages_by_device(train)
    assert counts == {}
    tf_interop.enable("always")
    before = stages_run()
    weights, counts = stages_by_device(train)
    # Forward, and the gradients by filter, in each replica and each of four steps.
    assert counts == {name: [2, 2] for name in NAMES}, counts
    assert stages_run() - before == 2 * 3 * 4
    for ours, theirs in zip(weights, expected):
        # TensorFlow's convolutions of random numbers round in another order.
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)

    plan = tf_interop.status().plan
    tf_interop.disable()
    tf_interop.enable(plan=plan)
    planned, counts = stages_by_device(train)
    assert counts == {name: [2, 2] for name in NAMES}, counts
    for ours, theirs in zip(planned, weights):
        np.testing.assert_array_equal(ours, theirs)
    """
    )
