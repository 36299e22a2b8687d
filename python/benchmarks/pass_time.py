"""Times the graph pass on the training graphs of Keras applications, as Grappler hands them over.

The pass is parsing, finding, planning, rewriting, checking and serializing. It makes stages, as for
a GPU.

Example: python python/benchmarks/pass_time.py --network ResNet50 --network NASNetMobile
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

import pathlib
import statistics
import sys
import time

import click
import tensorflow as tf
from rich.console import Console
from tensorflow.core.framework import graph_pb2

# This program runs from a checkout, which is not on Python's path.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from python.benchmarks.result_file import write_result
from tf_interop.model.graphs import handed_graph_of, trace
from tf_interop.runtime.graph_pass import run_conv_stage_pass
from tf_interop.runtime.settings import Policy, Settings

DEFAULT_NETWORKS = ("ResNet50", "InceptionV3", "InceptionResNetV2", "NASNetMobile")
REPETITIONS = 7


def time_pass(serialized: bytes) -> dict[str, float]:
    """The sizes of a graph, and the first and the median time of the pass."""
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        graph_def = graph_pb2.GraphDef.FromString(serialized)
        result = run_conv_stage_pass(
            graph_def, Settings(Policy.ALWAYS, has_host_stages=True), "CPU"
        )
        assert result.graph_def is not None
        result.graph_def.SerializeToString(deterministic=True)
        times.append((time.perf_counter() - start) * 1e3)
    assert result.report is not None
    return {
        "nodes": result.report.node_count,
        "stages": len(result.report.plan.stages),
        "first_ms": times[0],
        "median_ms": statistics.median(times),
    }


@click.command(help=__doc__)
@click.option("--network", "names", multiple=True, default=DEFAULT_NETWORKS, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=pathlib.Path), help="JSON file to write.")
def main(names: tuple[str, ...], output: pathlib.Path | None) -> None:
    """Runs the benchmark."""
    console = Console(stderr=True)
    rows = []
    for name in names:
        with console.status(name):
            model = getattr(tf.keras.applications, name)(weights=None)
            traced = trace(model, batch_size=2, training=True, image_size=None)
            graph_def = handed_graph_of(traced)
            assert graph_def is not None
            timed = time_pass(graph_def.SerializeToString())
        rows.append({"network": name, **timed})
    write_result(
        output,
        "What the graph pass takes",
        "What the graph pass takes for training graphs as TensorFlow hands them over, policy "
        "`always`: median of several runs, and the first one, in milliseconds. It runs twice "
        "before the first call of a function.",
        rows,
    )


if __name__ == "__main__":
    main()
