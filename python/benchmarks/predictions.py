"""Compares what `tune` and simulated runs say about a network with what new programs measure."""

from __future__ import annotations

import importlib
import statistics
import time
from typing import Any

import numpy as np

from python.benchmarks.result_file import Case, in_new_process

ROUNDS = 3
SECONDS = 2.0
_MOST_STEPS = 2000


def measure(name: str) -> dict[str, Any]:
    """What is said of a network with one image, and what was measured."""
    claim, error = in_new_process(_tuned, name)
    pairs = [
        (in_new_process(_measured, name, False), in_new_process(_measured, name, True))
        for _ in range(ROUNDS)
    ]
    ratios = [stock["ms"] / ours["ms"] for stock, ours in pairs]
    programs = [ours for _, ours in pairs]
    ours_ms = statistics.median(each["ms"] for each in programs)
    simulated_ms = statistics.median(each["simulated_ms"] for each in programs)
    ratio = statistics.median(ratios)
    return {
        "tune": claim,
        "error": error,
        "new programs": ratio,
        "least": min(ratios),
        "most": max(ratios),
        "within": sum(abs(claim - each) <= error for each in ratios),
        "way": programs[0]["way"],
        "step ms": ours_ms,
        "simulated ms": simulated_ms or None,
        "measured of simulated": ours_ms / simulated_ms if simulated_ms else None,
    }


def _model(name: str) -> Any:
    import tensorflow as tf

    from python.benchmarks.applications import set_random_weights

    tf.keras.utils.set_random_seed(0)
    if "." in name:
        module, function = name.rsplit(".", 1)
        model = getattr(importlib.import_module(f"python.models.{module}"), function)()
    else:
        # MobileNetV3 leaves it open.
        shape = (224, 224, 3) if name.startswith("MobileNetV3") else None
        model = getattr(tf.keras.applications, name)(weights=None, input_shape=shape)
    set_random_weights(model)
    return model


def _tuned(name: str) -> tuple[float, float]:
    """How many times as fast as stock TensorFlow `tune` says a network is, and the error."""
    import tf_interop

    tuning = tf_interop.tune(_model(name), compare_xla=False, use_cache=False, enable=False)
    [graph] = tuning.graphs
    assert graph.plan.measured is not None
    ours = graph.plan.measured.ours
    return ours.ratio, ours.error or 0.0


def _measured(name: str, is_enabled: bool) -> dict[str, Any]:
    """A step in a program of its own, which has found its way to run."""
    import tensorflow as tf

    import tf_interop

    model = _model(name)
    if is_enabled:
        tf_interop.enable()
    function = tf.function(lambda images: model(images, training=False), autograph=False)
    numbers = np.random.default_rng(0)
    images = tf.constant(numbers.uniform(0, 255, [1, *model.input_shape[1:]]).astype(np.float32))

    def step_ms() -> float:
        start = time.perf_counter()
        function(images).numpy()
        return (time.perf_counter() - start) * 1e3

    for _ in range(_MOST_STEPS):
        step_ms()
        if not any(each.is_trying for each in tf_interop.status().self_timings):
            break
    times = [step_ms() for _ in range(20)]
    while sum(times) < SECONDS * 1e3:
        times.append(step_ms())
    simulated_ms, way = 0.0, ""
    for timing in tf_interop.status().self_timings:
        way = timing.way
        simulated_ms += sum(each.simulated_ms for each in timing.tried if each.way == way)
    return {"ms": statistics.median(times), "way": way, "simulated_ms": simulated_ms}


CASE = Case(
    title="What was predicted, and what new programs measure",
    says=f"""
Networks with one image. "Tune" is how many times as fast as stock TensorFlow `tf_interop.tune` says
`enable()` is, with its usual budget, and "error" is the error that it states. "New programs" is the
median of {ROUNDS} pairs of programs, one with `enable()` and one without, in turns; "within" counts
the pairs within the error. A network with branches may run them side by side, by a plan that
the operation makes of the times of its steps. "Simulated" is the time of that plan in a simulation,
and "measured of simulated" how many times as long the median step of the programs is.
""",
    networks=(
        "NASNetMobile",
        "InceptionV3",
        "EfficientNetB0",
        "DenseNet121",
        "MobileNetV3Small",
        "googlenet.googlenet",
        "squeezenet.squeezenet",
        "randwire.randwire",
        "ResNet50",
        "MobileNetV2",
    ),
    measure=measure,
)
