"""Parallel plans for models: choices, reasons and refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_interop
from tf_interop.errors import PlanError
from tf_interop.model import parallelize
from tf_interop.parallel import make_division
from tf_interop.parallel.costs.devices import DeviceGraph, uniform_device_graph
from tf_interop.parallel.explain import DATA, MODEL, ONE_WEIRD_TRICK, WHOLE
from tf_interop.parallel.types import Degrees, DivisionPrediction, GraphDivision
from tf_interop.planning.types import ValueSource


def _devices(
    count: int = 4, *, bytes_per_s: float = 5e9, memory_bytes: int | None = None
) -> DeviceGraph:
    return uniform_device_graph(
        [f"/device:GPU:{place}" for place in range(count)],
        multiply_adds_per_s=2e10,
        memory_bytes_per_s=1e10,
        bytes_per_s=bytes_per_s,
        latency_s=1e-5,
        memory_bytes=memory_bytes,
    )


@pytest.fixture(name="model", scope="module")
def fixture_model() -> Any:
    """Convolutions of large images with few parameters, and a product with many."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(16, 3, padding="same"),
            keras.layers.ReLU(),
            keras.layers.Conv2D(16, 3, padding="same"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(512),
            keras.layers.ReLU(),
            keras.layers.Dense(10),
        ]
    )


def _planned(model: Any, **options: Any) -> tuple[GraphDivision, DivisionPrediction]:
    (graph,) = tf_interop.parallelize(model, **options).graphs
    assert graph.prediction is not None
    return graph, graph.prediction


def test_beats_the_strategies_for_all_layers(model: Any) -> None:
    # Nothing can be computed while parameters travel.
    devices = _devices()
    devices = dataclasses.replace(devices, busy_s_of_byte=1 / devices.bytes_per_s[0][1])
    graph, prediction = _planned(model, device_graph=devices, batch_size=32, training=True)
    times = prediction.steps_us
    assert set(times) == {"plan", WHOLE, DATA, MODEL, ONE_WEIRD_TRICK}
    assert prediction.step_us == min(times.values())
    assert prediction.step_us < 0.6 * times[WHOLE] == 0.6 * prediction.whole_us
    assert prediction.source is ValueSource.MODELLED
    assert (graph.batch_size, graph.mode, graph.why_whole) == (32, "training", "")
    # Large images with few parameters are divided by samples, many parameters by channels.
    *convolutions, product, _ = (layer.degrees for layer in graph.layers)
    assert convolutions == [Degrees(sample=4)] * 3
    assert product.filter * product.channel == 4
    for layer in prediction.layers:
        assert [each.strategy for each in layer.others] == [WHOLE, DATA, MODEL]
        assert layer.why
        for other in layer.others:
            # The choice is the best one, so no single change is better.
            assert layer.chosen.total_us <= other.total_us * (1 + 1e-6)


def test_devices_of_this_process_time_a_step(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    of_no_time = uniform_device_graph(
        ["/device:CPU:0"],
        multiply_adds_per_s=1e18,
        memory_bytes_per_s=1e18,
        bytes_per_s=1e18,
        latency_s=0.0,
    )
    _, there = _planned(model, device_graph=of_no_time, batch_size=32)
    monkeypatch.setattr(parallelize, "measure_devices", lambda names: of_no_time)
    weights = model.get_weights()
    _, here = _planned(model, batch_size=32, training=True)
    assert there.whole_us < 1 < 10 < here.whole_us
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_leaves_a_model_whole_where_sending_costs_more(model: Any) -> None:
    slow = _devices(bytes_per_s=1e5)
    plan = tf_interop.parallelize(model, device_graph=slow, batch_size=2)
    (graph,) = plan.graphs
    assert graph.layers == ()
    assert "nothing is faster in the model by 10% than one device" in graph.why_whole
    assert graph.prediction is not None
    assert graph.prediction.step_us == graph.prediction.whole_us
    assert graph.prediction.sent == ()


def test_leaves_a_model_whole_where_the_gain_is_small(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"device_graph": _devices(), "batch_size": 32, "training": True}
    _, prediction = _planned(model, **options)
    gain = 1 - prediction.step_us / prediction.whole_us
    for least, is_divided in ((gain - 0.01, True), (gain + 0.01, False)):
        monkeypatch.setattr(make_division, "_LEAST_GAIN", least)
        graph, _ = _planned(model, **options)
        assert bool(graph.layers) == is_divided


def test_divides_what_does_not_fit_on_one_device(model: Any) -> None:
    slow = _devices(bytes_per_s=1e7)
    whole, free = _planned(model, device_graph=slow, batch_size=32, training=True)
    assert whole.layers == ()
    limit = int(0.4 * free.memory_bytes[0])
    limited = _devices(bytes_per_s=1e7, memory_bytes=limit)
    graph, prediction = _planned(model, device_graph=limited, batch_size=32, training=True)
    assert graph.layers
    assert max(prediction.memory_bytes) <= limit
    assert prediction.step_us > prediction.whole_us  # which does not fit


def test_takes_a_function_of_matrix_products() -> None:
    weights = tf.Variable(tf.ones([2048, 2048]))

    @tf.function(input_signature=[tf.TensorSpec([256, 2048])])
    def product(image: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(image @ weights)

    (graph,) = tf_interop.parallelize(product, device_graph=_devices()).graphs
    # Each device gets a quarter of the weights.
    [layer] = graph.layers
    assert layer.degrees.filter * layer.degrees.channel == 4
    assert graph.mode is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"devices": 0}, "0 devices were requested, but these exist: /device:GPU:0, "),
        ({"devices": []}, "Expected devices to be a number or a list of names such as "),
        ({"devices": "/device:GPU:1"}, "got '/device:GPU:1'."),
        ({"devices": ["/device:GPU:9"]}, "not /job:localhost/replica:0/task:0/device:GPU:9."),
        ({"memory_limit": 0}, "memory_limit must be 1 byte or more, not 0."),
        (
            {"device_graph": None, "devices": 3},
            "3 devices were requested, but these exist: /device:CPU:0. Request 1 to 1, ",
        ),
        (
            {"device_graph": None, "devices": ["/device:CPU:0", "/device:CPU:7"]},
            "are missing: /job:localhost/replica:0/task:0/device:CPU:7. This process has "
            "/job:localhost/replica:0/task:0/device:CPU:0.",
        ),
    ],
)
def test_refuses(model: Any, arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises((PlanError, ValueError)) as raised:
        tf_interop.parallelize(model, **{"device_graph": _devices(), **arguments})
    assert expected in str(raised.value)


def test_refuses_a_model_without_layers() -> None:
    function = tf.function(lambda: tf.constant(1.0) + 1).get_concrete_function()
    with pytest.raises(ValueError, match="convolutions or matrix products"):
        tf_interop.parallelize(function, device_graph=_devices())
