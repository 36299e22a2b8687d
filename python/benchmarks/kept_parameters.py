"""Times calls of Keras applications whose parameters are kept, before and after updates.

All calls are of one process, in turns, and the least time of each counts. TensorFlow keeps a graph
for each value of its option, so stock TensorFlow takes turns with the plugin.
"""

from __future__ import annotations

import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import tf_interop
from python.benchmarks.applications import set_random_weights
from python.benchmarks.result_file import Case
from tf_interop.runtime import packed_calls

TURNS = 40


def measure(name: str) -> dict[str, float]:
    """The times of one network at batch 1."""
    model = getattr(tf.keras.applications, name)(weights=None)
    set_random_weights(model)
    function = tf.function(lambda images: model(images, training=False), autograph=False)
    numbers = np.random.default_rng(0)
    images = tf.constant(numbers.uniform(0, 255, [1, *model.input_shape[1:]]).astype(np.float32))
    variables = [each.value for each in model.variables]
    first = model.trainable_variables[0].value

    def call() -> float:
        start = time.perf_counter()
        function(images)[0].numpy()
        return (time.perf_counter() - start) * 1e3

    def first_after(update: Callable[[], Any]) -> float:
        update()
        return call()

    def update_all() -> None:
        for variable in variables:
            variable.assign_add(tf.zeros_like(variable))

    def update_one() -> None:
        first.assign_add(tf.zeros_like(first))

    tf_interop.enable()
    times: dict[str, list[float]] = {"stock": [], "separate": [], "kept": [], "one": [], "all": []}
    for _ in range(TURNS):
        tf.config.optimizer.set_experimental_options({"use_plugin_optimizers": False})
        call()
        times["stock"].append(call())
        tf.config.optimizer.set_experimental_options({"use_plugin_optimizers": True})
        packed_calls.turn_off()
        call()
        times["separate"].append(call())
        packed_calls.turn_on()
        times["one"].append(first_after(update_one))
        times["kept"].append(call())
        times["all"].append(first_after(update_all))
        call()  # otherwise keeping would pause
    stock, separate, kept, one, every = (min(each) for each in times.values())
    report = tf_interop.status().folded_graphs[0]
    kept_us = _least_us("TfInterop>Kept", call)
    return {
        "parameters": len(variables),
        "kept tensors": report.kept_count,
        "stock_ms": stock,
        "variables_passed_one_by_one_ms": separate,
        "unchanged_ms": kept,
        "one_updated_ms": one,
        "all_updated_ms": every,
        "all updated, times stock": every / stock,
        "look_us": kept_us,
        "look_us_per_parameter": kept_us / len(variables),
    }


def _least_us(op: str, call: Callable[[], object]) -> float:
    """The least time of an op in calls, from TensorFlow's profiler."""
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        for _ in range(TURNS):
            call()
        tf.profiler.experimental.stop()
        (file,) = pathlib.Path(folder).glob("plugins/profile/*/*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(file.read_bytes())
    return min(
        event.duration_ps / 1e6
        for plane in space.planes
        for line in plane.lines
        for event in line.events
        if plane.event_metadata[event.metadata_id].name.endswith(op)
    )


CASE = Case(
    title="Calls after an update of parameters",
    says="""
Calls of networks at batch 1 with `enable()`: nothing changed since the last call, one variable
was updated, and all were. "Variables passed one by one" is a call in which nothing changed, too,
but as TensorFlow calls functions. Each time is the least of many turns in one process, in which
stock TensorFlow takes turns. Graphs are still timing themselves, so calls take longer than later.
"Look" is the time of the op that looks whether any parameter has changed, if none has, as
TensorFlow's profiler reports it.
""",
    networks=("ResNet50", "MobileNetV2", "EfficientNetB0", "NASNetMobile"),
    measure=measure,
)
