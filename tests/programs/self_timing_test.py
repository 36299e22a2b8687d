"""Inference that times itself: right numbers on any number of cores; the choice is shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config
from unnoticed import IMAGE, conv, in_threads, run_python

import tf_interop
from tf_interop.graph.program import UNIT_OP, UnitNode, decode_node
from tf_interop.planning.types import Plan
from tf_interop.runtime.kernel_library import SelfTiming
from tf_interop.runtime.plugin import get_plugin

pytestmark = pytest.mark.usefixtures("enabled")

ENOUGH = 160
"""Calls after which the first trial is over."""


def modules(image: tf.Tensor) -> tf.Tensor:
    """Modules of four short branches each, with shortcuts read twice, of a scaled image."""
    value = image * 0.5 - 0.1
    for number in range(3):
        left = tf.nn.relu(conv(value, number))
        right = conv(tf.nn.relu(conv(value, number + 1)), number)
        pooled = tf.nn.max_pool2d(value, 3, 1, "SAME") * tf.sigmoid(value)
        value = value + tf.concat([left, right, pooled, value], 3)[:, :, :, 4:8] * 0.1
    return value


def function_of_any_batch() -> Any:
    return tf.function(modules, [tf.TensorSpec([None, 6, 6, 4])], autograph=False)


def images(batch: int) -> np.ndarray:
    return np.random.default_rng(batch).normal(size=[batch, *IMAGE.shape[1:]]).astype(np.float32)


def units_of(function: Any, *arguments: Any) -> list[UnitNode]:
    units: list[UnitNode] = []

    def look(graph_def: Any, _: str) -> None:
        units[:] = [decode_node(node) for node in graph_def.node if node.op == UNIT_OP]

    with get_plugin().observe(look):
        function(*arguments)
    return units


def timings_of(units: list[UnitNode]) -> dict[str, SelfTiming]:
    """What the graph of these units found out, by the sizes of its input."""
    found = tf_interop.status().self_timings
    return {each.sizes: each for each in found if each.name == units[0].timed_graph}


def test_each_batch_size_is_timed_and_every_call_is_right() -> None:
    run = function_of_any_batch()
    [unit] = units_of(run, images(3))
    # A function that is traced again goes on with its times.
    assert units_of(function_of_any_batch(), images(3)) == [unit]
    assert unit.timed_units == 1 and unit.split_inputs
    expected = {batch: modules(images(batch)).numpy() for batch in (1, 3)}

    def call(_: int) -> None:
        for batch in (1, 3):
            for _ in range(ENOUGH):
                np.testing.assert_allclose(
                    run(images(batch)), expected[batch], rtol=1e-5, atol=1e-5
                )

    call(0)
    timings = timings_of([unit])
    ways = {sizes: {each.way for each in timings[sizes].tried} for sizes in timings}
    assert ways["3x6x6x4"] - ways["1x6x6x4"] == {"with the batch divided", "in parts of 1 image"}
    for sizes, timing in timings.items():
        assert timing.way in ways[sizes]
        # The first runs of a plan for lanes do not count.
        assert sum(each.runs for each in timing.tried) >= ENOUGH - 20
        assert_was_timed(timing)
        assert 0 <= timing.share_lost < 1
    report = tf_interop.status().current_graphs[0]
    assert (report.timed_graph, len(report.op_names)) == (unit.timed_graph, 1)
    # Another trial may have begun.
    assert "input 3x6x6x4: " in str(tf_interop.status())
    in_threads(call, range(4))


def assert_was_timed(timing: SelfTiming) -> None:
    """One trial is over. The next may have begun, because a loaded machine changes the times."""
    assert all(each.runs and each.median_ms > 0 for each in timing.tried)


def test_a_trace_of_one_image_does_not_keep_another_from_dividing() -> None:
    run = tf.function(modules, autograph=False)
    for batch in (1, 3):
        for _ in range(ENOUGH):
            run(images(batch))
    ways = {
        each.sizes: {way.way for way in each.tried} for each in tf_interop.status().self_timings
    }
    assert "with the batch divided" in ways["3x6x6x4"] - ways["1x6x6x4"]


@pytest.mark.parametrize(
    "name",
    [
        "MobileNetV2",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("EfficientNetB0", "ResNet50", "NASNetMobile")
        ),
    ],
)
def test_a_keras_application_is_one_unit_whose_batch_may_be_divided(name: str) -> None:
    tf.keras.utils.set_random_seed(1)
    model = getattr(tf.keras.applications, name)(weights=None, input_shape=(32, 32, 3), classes=10)
    batch = np.random.default_rng(0).standard_normal((5, 32, 32, 3), np.float32)
    tf_interop.disable()
    run = tf.function(lambda images: model(images, training=False), autograph=False)
    expected = run(batch).numpy()
    tf_interop.enable()
    [unit] = units_of(run, batch)
    report = tf_interop.status().current_graphs[0]
    parameter_count = 2 * len(model.variables)  # one node passes a variable, another reads it
    assert report.operation_count >= 0.95 * (report.node_count - parameter_count)
    [timing] = timings_of([unit]).values()
    while timing.is_trying:
        # Sums may be added up in another order for another batch size.
        np.testing.assert_allclose(run(batch), expected, rtol=1e-5, atol=1e-6)
        [timing] = timings_of([unit]).values()
    assert "with the batch divided" in {each.way for each in timing.tried if each.runs}


def test_a_loop_times_its_body() -> None:
    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def loop(image: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(
            lambda count, _: count < 5,
            lambda count, value: (count + 1, modules(value) * 0.1),
            (0, image),
        )[1]

    expected = images(2)
    for _ in range(5):
        expected = modules(expected).numpy() * 0.1
    units = units_of(loop, images(2))
    for _ in range(ENOUGH):
        np.testing.assert_allclose(loop(images(2)), expected, rtol=1e-4, atol=1e-6)
    # Each iteration is a step of its own.
    [timing] = timings_of(units).values()
    assert sum(each.runs for each in timing.tried) > ENOUGH


def test_training_times_itself() -> None:
    filters = np.random.default_rng(0).normal(size=[3, 3, 4, 4]).astype(np.float32)

    def trained(step_count: int) -> tuple[np.ndarray, list[UnitNode]]:
        variable = tf.Variable(filters)

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def train(image: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.nn.relu(tf.nn.conv2d(image, variable, 1, "SAME")) ** 2)
            variable.assign_sub(0.1 * tape.gradient(loss, variable))

        units = units_of(train, images(4))
        for _ in range(step_count - 1):
            train(images(4))
        return variable.numpy(), units

    ours, units = trained(ENOUGH)
    assert {unit.timed_units for unit in units} == {len(units)}
    [timing] = timings_of(units).values()
    assert_was_timed(timing)
    tf_interop.disable()
    stocks, none = trained(ENOUGH)
    assert none == []
    np.testing.assert_allclose(ours, stocks, rtol=1e-4, atol=1e-6)


def test_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    tf_interop.enable(self_timing=False)
    assert units_of(function_of_any_batch(), images(1)) == []
    monkeypatch.setenv("TF_INTEROP_SELF_TIMING", "0")
    tf_interop.enable()
    assert units_of(function_of_any_batch(), images(1)) == []
    tf_interop.enable(plan=Plan(()))
    assert units_of(function_of_any_batch(), images(1)) == []
    assert tf_interop.status().graphs[0].why_unchanged == "self-timing is off"
    tf_interop.enable(self_timing=True)
    assert units_of(function_of_any_batch(), images(1)) != []


def test_nothing_is_tried_where_every_call_must_be_the_same() -> None:
    tf.config.experimental.enable_op_determinism()
    try:
        run = tf.function(lambda image: tf.nn.relu(conv(image, 0)), autograph=False)
        [unit] = units_of(run, IMAGE)
        first = run(IMAGE).numpy().tobytes()
        assert all(run(IMAGE).numpy().tobytes() == first for _ in range(50))
    finally:
        config.disable_op_determinism()
    assert timings_of([unit]) == {}


OVERLAPPING = """
    import os
    os.environ.pop("TF_INTEROP_HOST_STAGES", None)
    import sys
    import threading
    import time
    import tensorflow as tf
    import tf_interop

    dtype = os.environ["DTYPE"]
    filters = [tf.Variable(tf.cast(tf.random.normal([3, 3, 64, 64], stddev=0.06), dtype))
               for _ in range(24)]

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 64], dtype)])
    def network(images):
        for each in filters:
            images = tf.nn.relu(tf.nn.conv2d(images, each, 1, "SAME"))
        return tf.reduce_sum(images, [1, 2])

    tf_interop.enable()
    images = tf.zeros([8, 14, 14, 64], dtype)
    for _ in range(150):
        network(images)
    end = time.monotonic() + 8
    calls = [0] * 4

    def call(number):
        while time.monotonic() < end:
            calls[number] += 1
            # Steps of other sizes that overlap run as in stock TensorFlow.
            width = 8 + calls[number] % 3
            network(images if number > 1 else tf.zeros([1, 8, width, 64], dtype))

    threads = [threading.Thread(target=call, args=(each,), daemon=True) for each in range(4)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end:
        time.sleep(0.1)
        for each in filters:
            each.assign(each * 1)
    for thread in threads:
        thread.join(30)
    print("hangs" if any(each.is_alive() for each in threads) else "ended", flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_overlapping_calls_end_while_filters_change(dtype: str) -> None:
    assert "ended" in run_python(OVERLAPPING, DTYPE=dtype)
