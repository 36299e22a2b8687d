"""Compares every architecture of keras.applications with the plugin on and without it, on the CPU.

For each network, in a process of its own, with random weights in every variable (so that no bias is
zero and no scale is one or too small to show):

  * outputs of inference, and the gradients of a scalar by every variable, with normalization and
    dropout frozen, without the plugin and under the policy "always". The plugin may move a tensor
    by rounding: as far as two changes of stock TensorFlow do, whichever moves it further: every
    pixel changed in its last bit, and every weight;
  * what the plugin leaves alone, by reason, in inference and in a training step.

Example: python python/networks/compare_applications.py --network ResNet50 --network MobileNet
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

import collections
import concurrent.futures
import inspect
import json
import multiprocessing
import pathlib
import sys
import time
from collections.abc import Iterable
from typing import Any

import click
import numpy as np
import tensorflow as tf
from rich.console import Console
from tensorflow.core.framework import graph_pb2, node_def_pb2

# Also where this file is run by its path.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import tf_interop
from python.benchmarks.result_file import write_result
from python.networks.rounding import distance, share_of_tolerance

BATCH = 2
CLASSES = 10

SAYS = """
The architectures of keras.applications with the plugin on (policy `always`) and off: convolutions
in stages, in inference and in a training step, and how far the plugin moved outputs and gradients
at most, as a share of what rounding explains: eight times as far as a change of the last bits
moves them in stock TensorFlow, and four roundings more. Where some gradients are zero without the
plugin, outputs alone were compared. Left alone are also convolutions that are compiled by XLA, in
functions with `jit_compile=True`.
"""
_CONVOLUTIONS = ("Conv2D", "DepthwiseConv2dNative")

# Sizes below those that `include_top=True` goes with are refused by the networks themselves.
_SIZES = (32, 48, 64, 71, 75, 96, 128, 224, 299, 331)


def agrees(row: dict[str, Any]) -> bool:
    """Whether nothing of a network is moved further than rounding explains."""
    return row["outputs"] <= 1 and (row["gradients"] or 0) <= 1


def application_names() -> list[str]:
    """The names of all architectures of keras.applications."""
    return [name for name, _ in inspect.getmembers(tf.keras.applications, inspect.isfunction)]


def build_smallest(name: str) -> Any:
    """Builds a network for the smallest images that it takes."""
    refused: Exception | None = None
    for size in _SIZES:
        try:
            return getattr(tf.keras.applications, name)(
                weights=None,
                input_shape=(size, size, 3),
                classes=CLASSES,
                classifier_activation=None,
            )
        except ValueError as error:
            refused = error
    raise ValueError(f"Expected {name} to take one of the sizes {_SIZES}.") from refused


def set_random_weights(model: Any) -> None:
    """Gives biases, scales and statistics, which begin as zeros and ones, values of all kinds."""
    random = np.random.default_rng(0)
    values = []
    for value in model.get_weights():
        is_vector = value.ndim == 1 and np.issubdtype(value.dtype, np.floating)
        if is_vector and not np.any(value):
            value = 0.1 * random.standard_normal(value.shape)
        elif is_vector:
            value = random.uniform(0.5, 1.5, value.shape)
        values.append(value)
    model.set_weights(values)


def nudge(tensor: np.ndarray) -> np.ndarray:
    """The tensor with the last bit of every number changed; whole numbers as they are."""
    if not np.issubdtype(tensor.dtype, np.floating):
        return tensor
    return np.nextafter(tensor, tensor.dtype.type(np.inf))


def distances(first: list[np.ndarray], second: list[np.ndarray]) -> np.ndarray:
    """The distance of each tensor of `first` from that of `second`."""
    return np.array([distance(a, b) for a, b in zip(first, second, strict=True)])


def compare_network(name: str) -> dict[str, Any]:
    """Runs one network with the plugin on and off.

    Returns:
        A row of the result: the network's name and image size; how far the plugin moves `outputs`
        and `gradients`, over what is allowed (None where some gradients are zero without the
        plugin, so that they cannot be compared); and what it made of the graphs of `inference` and
        `training`: convolutions, how many are in stages, in functions that XLA compiles, which the
        plugin never sees, and, by op and `details` of the reason, left alone.
    """
    start = time.perf_counter()
    tf.keras.utils.set_random_seed(0)
    tf_interop.disable()
    model = build_smallest(name)
    set_random_weights(model)
    size = model.input_shape[1]
    pixels = np.random.default_rng(1).uniform(0, 255, (BATCH, size, size, 3)).astype(np.float32)
    images = tf.constant(pixels)
    infer, frozen_gradients, train = _functions(model)

    def numbers(of_images: tf.Tensor) -> list[np.ndarray]:
        return [each.numpy() for each in (infer(of_images), *frozen_gradients(of_images))]

    stock = numbers(images)
    zero_gradients = sum(not np.any(each) for each in stock[1:])
    is_trivial = not np.any(stock[0]) or 2 * zero_gradients > len(stock)
    if is_trivial or not all(np.all(np.isfinite(each)) for each in stock):
        raise ValueError(f"Expected {name} to give finite numbers, most of them not zero.")
    of_pixels = distances(numbers(tf.constant(nudge(pixels))), stock)
    weights = model.get_weights()
    model.set_weights([nudge(each) for each in weights])
    of_weights = distances(numbers(images), stock)
    model.set_weights(weights)

    tf_interop.enable("always")
    staged = distances(numbers(images), stock)
    if not np.isfinite(train(images).numpy()):
        raise ValueError(f"Expected a finite loss of {name}.")
    status = tf_interop.status()
    if status.failures:
        raise ValueError(f"Expected no failure of the pass, got {status.failures}.")
    # The last first; one report where the graphs of frozen gradients and of the step are alike.
    training, *_, inference = status.graphs
    shares = [
        share_of_tolerance(moved, of_rounding)
        for moved, of_rounding in zip(staged, np.maximum(of_pixels, of_weights), strict=True)
    ]
    return {
        "network": name,
        "image_size": size,
        "inference": _count(inference, infer.get_concrete_function(images)),
        "training": _count(training, train.get_concrete_function(images)),
        "outputs": shares[0],
        # Zero are gradients behind saturated gates. What comes through such a gate is a matter of
        # the last bit, in stock TensorFlow as well, and there is no scale to compare it by.
        "gradients": None if zero_gradients else max(shares[1:]),
        "seconds": round(time.perf_counter() - start, 1),
    }


def row_of(compared: dict[str, Any]) -> dict[str, Any]:
    """A row of the result, of what `compare_network` gives."""
    graphs = {"inference": compared["inference"], "training step": compared["training"]}
    left_alone = [
        f"{name}: {count} {detail}"
        for name, graph in graphs.items()
        for detail, count in ({"by XLA": graph["left_to_xla"]} | graph["details"]).items()
        if count
    ]
    return {
        "network": compared["network"],
        **{
            name: f"{graph['in_stages']} of {graph['convolutions']}"
            for name, graph in graphs.items()
        },
        "outputs": compared["outputs"],
        "gradients": compared["gradients"],
        "left alone": "; ".join(left_alone),
    }


def _functions(model: Any) -> tuple[Any, Any, Any]:
    """Inference; gradients with everything frozen; a training step, which gives its loss."""
    cotangent = tf.constant(
        np.random.default_rng(2).standard_normal((BATCH, CLASSES)).astype(np.float32)
    )

    @tf.function(jit_compile=False, autograph=False)
    def infer(images: tf.Tensor) -> tf.Tensor:
        return model(images, training=False)

    def gradients_of(images: tf.Tensor, training: bool) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(images, training=training) * cotangent)
        trainable = [getattr(each, "value", each) for each in model.trainable_variables]
        return loss, tape.gradient(loss, trainable)

    @tf.function(jit_compile=False, autograph=False)
    def frozen_gradients(images: tf.Tensor) -> list[tf.Tensor]:
        return gradients_of(images, training=False)[1]

    @tf.function(jit_compile=False, autograph=False)
    def train(images: tf.Tensor) -> tf.Tensor:
        loss, gradients = gradients_of(images, training=True)
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
            variable.assign(variable - 1e-6 * gradient)
        return loss

    return infer, frozen_gradients, train


def _count(report: Any, function: Any) -> dict[str, Any]:
    details = collections.Counter(f"{refusal.op}: {refusal.detail}" for refusal in report.refusals)
    left_to_xla = _count_left_to_xla(function.graph.as_graph_def())
    return {
        "convolutions": report.convolution_count + len(report.refusals) + left_to_xla,
        "in_stages": sum(len(stage.stage.steps) for stage in report.plan.stages),
        "stages": len(report.plan.stages),
        "left_to_xla": left_to_xla,
        "details": dict(sorted(details.items())),
    }


def _count_left_to_xla(graph_def: graph_pb2.GraphDef) -> int:
    """How many convolutions are in functions with `jit_compile=True` that the graph calls."""
    functions = {each.signature.name: each for each in graph_def.library.function}

    def count(nodes: Iterable[node_def_pb2.NodeDef], *, compiled: bool) -> int:
        total = 0
        for node in nodes:
            total += compiled and node.op.startswith(_CONVOLUTIONS)
            called = functions.get(node.attr["f"].func.name) if "f" in node.attr else None
            if called is not None:
                marked = "_XlaMustCompile" in called.attr and called.attr["_XlaMustCompile"].b
                total += count(called.node_def, compiled=compiled or marked)
        return total

    return count(graph_def.node, compiled=False)


@click.command(help=__doc__)
@click.option("--network", "names", multiple=True, help="One of them instead of all.")
@click.option("-o", "--output", type=click.Path(path_type=pathlib.Path), help="JSON file to write.")
@click.option("--resume", is_flag=True, help="Keep the networks that the JSON file has.")
def main(names: tuple[str, ...], output: pathlib.Path | None, resume: bool) -> None:
    """Runs the comparison."""
    if resume and output is None:
        raise click.UsageError("Expected --output with --resume, got none.")
    console = Console()
    networks: list[dict[str, Any]] = []
    if resume and output is not None and output.exists():
        networks = json.loads(output.read_text())["rows"]
    done = {each["network"] for each in networks}
    for name in names or application_names():
        if name in done:
            continue
        # In a process that ends with it, which frees its memory.
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
            compared = executor.submit(compare_network, name).result()
        gradients = compared["gradients"]
        console.print(
            f"{name}: {'same numbers' if agrees(compared) else 'OTHER NUMBERS'}; of what is "
            f"allowed outputs {compared['outputs']:.2f}, gradients "
            f"{'not compared' if gradients is None else f'{gradients:.2f}'}; in stages: "
            + ", ".join(
                f"{graph} {compared[graph]['in_stages']} of {compared[graph]['convolutions']}"
                for graph in ("inference", "training")
            )
            + f"; {compared['seconds']} s",
            highlight=False,
            soft_wrap=True,
        )
        networks = sorted([*networks, row_of(compared)], key=lambda each: str(each["network"]))
        # After every network: all of them together take long.
        write_result(output, "Same results: keras.applications", SAYS, networks)
    others = [each["network"] for each in networks if not agrees(each)]
    if others:
        console.print(f"With the plugin these give other numbers: {', '.join(others)}")
        sys.exit(1)


if __name__ == "__main__":
    main()
