"""Times the graph pass on training graphs of Keras applications as Grappler hands them over.

The pass parses, finds, plans, rewrites, checks and serializes. It makes stages, as for a GPU.
"""

from __future__ import annotations

import statistics
import time

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from python.benchmarks.result_file import Case
from tf_interop.graph.time_limit import collection_pause
from tf_interop.model.graphs import handed_graph_of, trace
from tf_interop.runtime.graph_pass import run_conv_stage_pass
from tf_interop.runtime.settings import Policy, Settings

REPETITIONS = 7


def measure(name: str) -> dict[str, float]:
    """The size of a graph, and the first and the median time of the pass."""
    model = getattr(tf.keras.applications, name)(weights=None)
    handed = handed_graph_of(trace(model, batch_size=2, training=True))
    assert handed is not None
    serialized = handed.SerializeToString()
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        graph_def = graph_pb2.GraphDef.FromString(serialized)
        with collection_pause():  # as the plugin does
            rewritten, report = run_conv_stage_pass(
                graph_def, Settings(Policy.ALWAYS, has_host_stages=True), "CPU"
            )
        assert rewritten is not None
        rewritten.SerializeToString(deterministic=True)
        times.append((time.perf_counter() - start) * 1e3)
    assert report is not None
    return {
        "nodes": report.node_count,
        "stages": len(report.plan.stages),
        "first_ms": times[0],
        "median_ms": statistics.median(times),
    }


CASE = Case(
    title="Time of the graph pass",
    says="Time of the graph pass for training graphs, with the policy `always`. TensorFlow calls "
    "the pass twice before the first call of a function.",
    networks=("ResNet50", "InceptionV3", "InceptionResNetV2", "NASNetMobile"),
    measure=measure,
)
