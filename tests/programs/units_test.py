"""Programs whose units all run on one core each: they compute what they did."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from random_graphs import CHANNELS, SIZE, RandomGraph
from unnoticed import (
    FILTERS,
    IMAGE,
    assert_session_unnoticed,
    assert_unnoticed,
    conv,
    digits,
    run_python,
)

import tf_interop
from tf_interop.planning.types import Plan
from tf_interop.runtime.plugin import get_plugin

v1 = tf.compat.v1


@pytest.fixture(autouse=True)
def units_on_cpus(plugin_as_after_import: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_INTEROP_HOST_STAGES", raising=False)


def narrow_ops() -> int:
    """The nodes that narrow units took the place of, in all graphs that were seen."""
    return sum(report.unit_op_count for report in tf_interop.status().graphs)


def pooled_branches(image: tf.Tensor) -> tf.Tensor:
    """Two branches and a shortcut, as in Inception and in ResNet."""
    left = tf.nn.relu(tf.nn.bias_add(conv(image, 0), [1.0, 2.0, 0.0, -1.0]))
    right = tf.nn.max_pool2d(conv(tf.nn.relu(conv(image, 1)), 2), 3, 1, "SAME")
    return tf.concat([left, right], 3)[..., :4] + image


@pytest.mark.parametrize("seed", range(24))
def test_random_graphs(seed: int) -> None:
    """All values are small whole numbers, so that every sum is exact."""
    graph = RandomGraph(seed)
    image = graph.digits(2, SIZE, SIZE, CHANNELS).numpy()
    compute = graph.function()  # tracing it again would draw another graph
    assert_unnoticed(lambda: compute, image)


def train(model: keras.Model, images: tf.Tensor) -> list[np.ndarray]:
    """Predictions; loss and gradients of a step of training; and what that did to the state."""
    labels = tf.zeros([images.shape[0]], tf.int32)

    @tf.function(autograph=False)
    def predict(images: tf.Tensor) -> tf.Tensor:
        return model(images, training=False)

    @tf.function(autograph=False)
    def step(images: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            predicted = model(images, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, predicted)
            loss = tf.reduce_mean(losses)
        return [loss, *tape.gradient(loss, model.trainable_variables)]

    results = [predict(images), *step(images), *model.non_trainable_variables]
    return [np.asarray(each, np.float32) for each in results]


# Those without dropout, which draws other numbers in each function.
@pytest.mark.parametrize(
    ("name", "size", "least_ops"), [("ResNet50", 32, 800), ("InceptionV3", 75, 1000)]
)
def test_keras_application(name: str, size: int, least_ops: int) -> None:
    keras.utils.set_random_seed(1)
    model = getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=10)
    images = tf.random.stateless_normal([2, size, size, 3], [1, 2])
    weights = model.get_weights()
    tf_interop.disable()
    expected = train(model, images)
    model.set_weights(weights)
    tf_interop.enable("always")
    results = train(model, images)
    assert tf_interop.status().failures == ()
    assert [report.unit_op_count >= least_ops for report in tf_interop.status().graphs] == [
        True,
        True,
    ]
    gradients_end = 2 + len(model.trainable_variables)
    for number, (ours, stock) in enumerate(zip(results, expected, strict=True)):
        # Gradients of filters are sums over all pixels, which TensorFlow adds up in as many parts
        # as it has threads.
        tolerance = 1e-5 * np.abs(stock).max() if 2 <= number < gradients_end else 0
        np.testing.assert_allclose(ours, stock, rtol=0, atol=tolerance, err_msg=str(number))


def test_mixed_precision() -> None:
    def make() -> Callable[[tf.Tensor], Any]:
        def compute(image: tf.Tensor) -> list[tf.Tensor]:
            half = tf.cast(image, tf.bfloat16)
            filters = [tf.cast(each, tf.bfloat16) for each in FILTERS]
            with tf.GradientTape() as tape:
                tape.watch(half)
                x = tf.nn.relu(tf.nn.conv2d(half, filters[0], 1, "SAME"))
                x = tf.nn.conv2d(tf.clip_by_value(x, -1, 1), filters[1], 1, "SAME") + half
                loss = tf.reduce_sum(tf.cast(tf.clip_by_value(x, -2, 2), tf.float32))
            return [tf.cast(each, tf.float32) for each in (x, loss, tape.gradient(loss, half))]

        return tf.function(compute, autograph=False)

    assert_unnoticed(make)
    assert narrow_ops() > 5


def test_a_session_feeds_what_is_inside_of_a_chain() -> None:
    def build_and_run(session: Any) -> list[Any]:
        image = v1.placeholder(tf.float32, IMAGE.shape)
        other = v1.placeholder(tf.float32, IMAGE.shape)
        first = tf.nn.relu(conv(image, 0))
        second = tf.nn.relu(conv(first, 1))
        result = tf.nn.relu(conv(second, 2)) + conv(other, 3)
        feeds = {other: IMAGE}
        return [
            session.run(result, feeds | {image: IMAGE}),
            session.run(result, feeds | {first: IMAGE}),
            session.run([result, first], feeds | {image: IMAGE, second: -IMAGE}),
            session.run([result, second], feeds | {image: IMAGE}),
        ]

    assert_session_unnoticed(build_and_run)
    assert narrow_ops() > 5


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


def test_mirrored_training_gives_the_same_weights() -> None:
    run_python(
        """
    import numpy as np
    import tensorflow as tf
    import tf_interop
    from tf_interop.runtime.plugin import get_plugin
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    IMAGES = np.random.default_rng(0).random((12, 8, 8, 3), np.float32)
    devices = set()
    def look(graph_def, _):
        devices.update(node.device for node in graph_def.node if node.op == "TfInterop>Unit")

    def train():
        layers = tf.keras.layers
        tf.keras.utils.set_random_seed(1)
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            image = tf.keras.Input((8, 8, 3))
            x = layers.Concatenate()([layers.Conv2D(4, size, padding="same", activation="relu")(
                image) for size in (1, 3)])
            x = layers.GlobalAveragePooling2D()(layers.BatchNormalization()(x))
            model = tf.keras.Model(image, layers.Dense(2)(x))
            model.compile(tf.keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        model.fit(IMAGES, IMAGES[:, 0, 0, :2], batch_size=6, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    tf_interop.disable()
    expected = train()
    tf_interop.enable("always")
    with get_plugin().observe(look):
        weights = train()
    assert tf_interop.status().failures == (), tf_interop.status().failures
    assert {device[-5:] for device in devices} == {"CPU:0", "CPU:1"}
    for ours, stock in zip(weights, expected):
        # The gradients by filters are added up in another order.
        np.testing.assert_allclose(ours, stock, rtol=1e-5, atol=1e-6)
    """,
        TF_INTEROP_HOST_STAGES="0",
    )


def test_the_callback_of_keras_says_how_many_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    model = keras.Sequential(
        [keras.Input((6, 6, 4)), keras.layers.Conv2D(4, 3), keras.layers.ReLU()]
    )
    model.predict(IMAGE, verbose=0, callbacks=[tf_interop.keras.ConvStages("always", verbose=1)])
    assert "narrow unit of" in capsys.readouterr().out


def planned(plan: Plan, **changes: Any) -> Plan:
    """The plan with changes in its only graph."""
    [graph] = plan.graphs
    return Plan((dataclasses.replace(graph, **changes),))


def test_a_plan_says_which_units_are_narrow() -> None:
    compute = tf.function(pooled_branches, autograph=False)
    tf_interop.enable("always")
    expected = compute(tf.constant(IMAGE))
    plan = tf_interop.status().plan
    [graph] = plan.graphs
    assert len(graph.narrow_units) > 1
    for narrow in ((), graph.narrow_units[:1], graph.narrow_units):
        get_plugin().forget_reports()
        tf_interop.enable(plan=planned(plan, narrow_units=narrow))
        np.testing.assert_array_equal(compute(tf.constant(IMAGE)), expected)
        [report] = tf_interop.status().graphs
        assert report.plan.narrow_units == narrow
        assert report.unit_count == len(graph.narrow_units)
        assert report.why_unchanged == ("" if narrow else "the plan leaves this graph as it is")


def test_a_plan_of_other_units_is_refused() -> None:
    compute = tf.function(pooled_branches, autograph=False)
    tf_interop.enable("always")
    expected = compute(tf.constant(IMAGE))
    plan = tf_interop.status().plan
    tf_interop.enable(plan=planned(plan, narrow_units=("somebody/else",)))
    np.testing.assert_array_equal(compute(tf.constant(IMAGE)), expected)
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
            dataclasses.replace(graph, batch_size=size, narrow_units=units)
            for size, units in ((2, (first, second)), (4, (first,)), (8, ()))
        )
    )
    seen: list[Any] = []
    with get_plugin().observe(lambda graph_def, _: seen.append(graph_def)):
        tf_interop.enable(plan=plan)
        for image, stock in zip(images, expected, strict=True):
            np.testing.assert_array_equal(compute(tf.constant(image)), stock)
    assert tf_interop.status().failures == ()
    units = [node for node in seen[-1].node if node.op == "TfInterop>Unit"]
    assert sorted(list(node.attr["batch_sizes"].list.i) for node in units) == [[2], [2, 4]]


def test_the_status_tells_of_narrow_units() -> None:
    tf_interop.enable("always")
    tf.function(pooled_branches, autograph=False)(tf.constant(IMAGE))
    status = tf_interop.status()
    [report] = status.graphs
    assert report.unit_count == status.unit_node_count == len(report.plan.narrow_units) > 1
    assert report.unit_op_count > report.unit_count
    assert f"{report.unit_count} of {report.unit_count} narrow" in str(status)
    # What was made narrow is not looked at again.
    assert report.plan.stages == ()
