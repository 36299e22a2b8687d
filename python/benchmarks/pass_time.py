"""Times the graph pass on graphs as Grappler hands them over, and what it adds to a first call.

Three values, each a ratio or a time within one run on this machine:

  * the pass (parsing, finding, planning, rewriting, checking, serializing) on the training graphs
    of Keras applications, from ResNet50 to NASNetMobile;
  * leaving a helper graph, one without a convolution, in the compiled library;
  * what the first call of a traced training step takes longer than later ones (TensorFlow's
    optimizations, placement and kernels, and the pass), with the plugin over without it.

Example: python python/benchmarks/pass_time.py --network ResNet50 --network NASNetMobile
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

import datetime
import json
import pathlib
import platform
import shlex
import statistics
import sys
import time

import click
import tensorflow as tf
from rich.console import Console
from rich.table import Table
from tensorflow.core.framework import graph_pb2

import tf_interop
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


def time_pass(serialized: bytes) -> tuple[int, int, float, float]:
    """Nodes, stages, and the first and the median time of the pass in milliseconds."""
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        graph_def = graph_pb2.GraphDef.FromString(serialized)
        result = run_conv_stage_pass(graph_def, Settings(Policy.ALWAYS), "CPU")
        assert result.graph_def is not None
        result.graph_def.SerializeToString(deterministic=True)
        times.append((time.perf_counter() - start) * 1e3)
    assert result.report is not None
    return (
        result.report.node_count,
        len(result.report.plan.stages),
        times[0],
        statistics.median(times),
    )


def time_first_call(model: tf.keras.Model, images: tf.Tensor, repetitions: int = 5) -> list[float]:
    """Median seconds that a first call takes longer than later ones, without and with the plugin.

    Taken by turns. A later call is subtracted because stages on a CPU run at another speed than
    TensorFlow's own convolutions, which is not what this measures.
    """
    seconds: list[list[float]] = [[], []]
    step = make_step(model)
    step.get_concrete_function(images)  # tracing is Python's part and the same for both
    for repetition in range(repetitions):
        for is_on in (False, True):
            (tf_interop.enable("always") if is_on else tf_interop.disable())
            # Another value of any option makes TensorFlow optimize the function anew.
            tf.config.optimizer.set_experimental_options({"min_graph_nodes": -1 - repetition})
            times = []
            for _ in range(3):
                start = time.perf_counter()
                step(images).numpy()
                times.append(time.perf_counter() - start)
            seconds[is_on].append(times[0] - min(times[1:]))
    return [statistics.median(each) for each in seconds]


def time_helper_graph(calls: int = 200) -> float:
    """Microseconds for each time that a graph without a convolution is handed over.

    Grappler hands it over twice in the first call of its function.
    """

    def first_calls() -> float:
        functions = [tf.function(lambda x, k=k: x + k) for k in range(calls)]
        tensor = tf.constant(1.0)
        concrete = [function.get_concrete_function(tensor) for function in functions]
        start = time.perf_counter()
        for function in concrete:
            function(tensor)
        return (time.perf_counter() - start) / calls * 1e6

    tf_interop.enable("always")
    first_calls()
    differences = []
    for _ in range(REPETITIONS):
        tf_interop.disable()
        off = first_calls()
        tf_interop.enable("always")
        differences.append(first_calls() - off)
    return statistics.median(differences) / 2


def machine() -> str:
    """The CPU's name and the number of its cores that this process may use."""
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.split(':')[1].strip()}, {len(os.sched_getaffinity(0))} cores"
    return platform.processor()


@click.command(help=__doc__)
@click.option("--network", "names", multiple=True, default=DEFAULT_NETWORKS, show_default=True)
@click.option("--first-call/--no-first-call", default=True, help="Also time first calls.")
@click.option("-o", "--output", type=click.Path(path_type=pathlib.Path), help="JSON file to write.")
def main(names: tuple[str, ...], first_call: bool, output: pathlib.Path | None) -> None:
    """Runs the benchmark."""
    console = Console()
    table = Table(title="Training step, batch 2, images of each network's own size")
    for column in ("network", "nodes", "stages", "pass, first", "pass, median", "us per node"):
        table.add_column(column, justify="right")
    table.add_column("preparing without, with plugin", justify="right")
    rows = []
    for name in names:
        with console.status(name):
            model = getattr(tf.keras.applications, name)(weights=None)
            images = tf.random.normal((2, *model.input_shape[1:]))
            nodes, stages, first_ms, median_ms = time_pass(hand_over(make_step(model), images))
            calls = time_first_call(model, images) if first_call else None
        rows.append(
            {
                "network": name,
                "nodes": nodes,
                "stages": stages,
                "first_ms": first_ms,
                "median_ms": median_ms,
                "preparing_s": calls,
            }
        )
        table.add_row(
            name,
            str(nodes),
            str(stages),
            f"{first_ms:.0f} ms",
            f"{median_ms:.0f} ms",
            f"{median_ms / nodes * 1e3:.1f}",
            f"{calls[0]:.2f} s, {calls[1]:.2f} s ({calls[1] / calls[0] - 1:+.1%})" if calls else "",
        )
    console.print(table)
    helper_us = time_helper_graph()
    console.print(f"A helper graph is left after {helper_us:.1f} us.")
    if output is not None:
        result = {
            "format": "tf_interop.pass_time",
            "version": 1,
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "command": shlex.join(["python", *sys.argv]),
            "tensorflow": tf.version.VERSION,
            "networks": rows,
            "helper_graph_us": helper_us,
        }
        output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
