"""Times the plugin's pass in the first calls of Keras applications, with `enable()` alone.

For each function TensorFlow calls the plugin several times. The pass parses, folds, fuses, keeps,
makes units, checks and serializes.
"""

from __future__ import annotations

import statistics
import time

import tensorflow as tf

import tf_interop
from python.benchmarks.result_file import Case
from tf_interop.model.keras_functions import trace_keras
from tf_interop.runtime.kernel_library import HandedGraph
from tf_interop.runtime.plugin import Plugin, get_plugin

REPETITIONS = 5


def measure(name: str) -> dict[str, float]:
    """The size of the graphs of inference and training, and the time of the pass in each."""
    model = getattr(tf.keras.applications, name)(weights=None)
    row: dict[str, float] = {}
    for kind in ("inference", "training"):
        times, first_calls = [], []
        for _ in range(REPETITIONS):
            traced = trace_keras(model, 2, None, training=kind == "training")
            inputs = tf.nest.map_structure(
                lambda spec: tf.zeros(spec.shape, spec.dtype), traced.inputs
            )
            passes = _PassTimer(get_plugin())
            tf_interop.enable()
            start = time.perf_counter()
            traced.function(inputs)
            first_calls.append((time.perf_counter() - start) * 1e3)
            tf_interop.disable()
            times.append(passes.stop())
        if failures := get_plugin().failures:
            raise ValueError(f"Expected no failure of the pass, got {failures}.")
        row |= {
            f"{kind}, nodes": len(traced.function.graph.get_operations()),
            f"{kind}, pass, ms": statistics.median(times),
            f"{kind}, first call, ms": statistics.median(first_calls),
        }
    return row


class _PassTimer:
    """Adds up the time that TensorFlow spends in the plugin's pass."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin, self._run, self._seconds = plugin, plugin._run, 0.0
        plugin._run = self._timed  # type: ignore[method-assign]

    def _timed(self, handed: HandedGraph) -> bool:
        start = time.perf_counter()
        try:
            return self._run(handed)
        finally:
            self._seconds += time.perf_counter() - start

    def stop(self) -> float:
        """The milliseconds."""
        self._plugin._run = self._run  # type: ignore[method-assign]
        return self._seconds * 1e3


CASE = Case(
    title="Time of the graph pass",
    says="""
Time of the pass in the first call of a function, with `enable()` alone, on graphs of inference and
of a training step: folding, fusing, keeping, units that time themselves, and all checks. TensorFlow
calls the plugin several times for a function; the time is the sum. The first call includes it, and
TensorFlow's own optimization. Medians of five functions.
""",
    networks=("ResNet50", "DenseNet121", "InceptionV3", "InceptionResNetV2", "NASNetMobile"),
    measure=measure,
)
