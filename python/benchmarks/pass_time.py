"""Times the graph pass on the training graphs of Keras applications, as Grappler hands them over.

The pass is parsing, finding, planning, rewriting, checking and serializing.

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
from rich.table import Table
from tensorflow.core.framework import graph_pb2

# This program runs from a checkout, which is not on Python's path.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from python.benchmarks.result_file import write_result
from tf_interop.runtime.graph_pass import run_conv_stage_pass
from tf_interop.runtime.plugin import get_plugin
from tf_interop.runtime.settings import Policy, Settings

DEFAULT_NETWORKS = ("ResNet50", "InceptionV3", "InceptionResNetV2", "NASNetMobile")
REPETITIONS = 7


def make_step(model: tf.keras.Model) -> tf.types.experimental.GenericFunction:
    """One training step with SGD in one function."""
    optimizer = tf.keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    labels = tf.constant([1, 2])

    @tf.function
    def step(images: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.keras.losses.sparse_categorical_crossentropy(
                    labels, model(images, training=True)
                )
            )
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def hand_over(step: tf.types.experimental.GenericFunction, images: tf.Tensor) -> bytes:
    """The step's graph as Grappler hands it over first, serialized."""
    graphs: list[graph_pb2.GraphDef] = []
    get_plugin().settings = Settings()
    tf.config.optimizer.set_experimental_options({"use_plugin_optimizers": True})
    with get_plugin().observe(lambda graph_def, _: graphs.append(graph_def)):
        step(images)
    return max(graphs, key=lambda graph: len(graph.node)).SerializeToString()


def time_pass(serialized: bytes) -> dict[str, float]:
    """The sizes of a graph, and the first and the median time of the pass."""
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        graph_def = graph_pb2.GraphDef.FromString(serialized)
        result = run_conv_stage_pass(graph_def, Settings(Policy.ALWAYS), "CPU")
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
    console = Console()
    table = Table(title="Training step, batch 2, images of each network's own size")
    for column in ("network", "nodes", "stages", "pass, first", "pass, median", "us per node"):
        table.add_column(column, justify="right")
    rows = []
    for name in names:
        with console.status(name):
            model = getattr(tf.keras.applications, name)(weights=None)
            images = tf.random.normal((2, *model.input_shape[1:]))
            timed = time_pass(hand_over(make_step(model), images))
        rows.append({"network": name, **timed})
        table.add_row(
            name,
            str(timed["nodes"]),
            str(timed["stages"]),
            f"{timed['first_ms']:.0f} ms",
            f"{timed['median_ms']:.0f} ms",
            f"{timed['median_ms'] / timed['nodes'] * 1e3:.1f}",
        )
    console.print(table)
    write_result(output, "pass_time", networks=rows)


if __name__ == "__main__":
    main()
