"""Shows the plugin on GoogLeNet and Inception-v3: what it finds, what runs together, same numbers.

Runs inference and training steps of each network in stock TensorFlow, without the plugin and with
it, and compares every output and every weight after three steps of SGD. Two more runs say what the
difference is worth: stock TensorFlow with every pixel changed in its last bit shows how much the
network itself makes of a rounding error, and the same stages on a single lane must give the same
bits as on several.

Example: python python/examples/demonstration.py --network googlenet --batch 4
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

import click
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

import tf_interop

# This program runs from a checkout, which is not on Python's path.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from python.models.googlenet import googlenet

TRAINING_STEPS = 3
TIMED_CALLS = 5
LEARNING_RATE = 1e-3
STAGES_SHOWN = 6


@dataclasses.dataclass(frozen=True)
class Network:
    """A network of the demonstration.

    Attributes:
        name: as people write it.
        image_size: height and width of its images.
        build: makes the model for an image size.
    """

    name: str
    image_size: int
    build: Callable[[int], tf.keras.Model]


NETWORKS = {
    "googlenet": Network("GoogLeNet", 224, lambda size: googlenet((size, size, 3))),
    "inception_v3": Network(
        "Inception-v3",
        299,
        lambda size: tf.keras.applications.InceptionV3(weights=None, input_shape=(size, size, 3)),
    ),
}


@dataclasses.dataclass
class Run:
    """What a network gave, with the plugin or without.

    Attributes:
        outputs: class probabilities of inference, `[N, 1000]`.
        losses: of the training steps.
        weights: after the training steps.
        inference_ms: median time of a call.
        step_ms: median time of a training step.
    """

    outputs: np.ndarray
    losses: list[float]
    weights: list[np.ndarray]
    inference_ms: float
    step_ms: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A network without the plugin, with it, and the two runs that say what differences are worth.

    Attributes:
        inference: what the pass did to the inference graph.
        training: what it did to the graph of the training step.
        stock: without the plugin.
        staged: with the plugin.
        nudged: without the plugin, every pixel changed in its last bit.
        one_lane: with the plugin, the lanes of each stage run one after another.
    """

    inference: tf_interop.PassReport
    training: tf_interop.PassReport
    stock: Run
    staged: Run
    nudged: Run
    one_lane: Run


@contextlib.contextmanager
def plugin_on(policy: str, plan: tf_interop.Plan | None = None) -> Iterator[None]:
    """Turns the plugin on inside the `with` block."""
    tf_interop.enable(policy=policy, plan=plan)
    try:
        yield
    finally:
        tf_interop.disable()


def on_one_lane(plan: tf_interop.Plan) -> tf_interop.Plan:
    """The same stages with all their convolutions on a single lane, in order."""
    graphs = tuple(
        dataclasses.replace(
            graph,
            stages=tuple(
                dataclasses.replace(stage, lanes=(stage.convolutions,)) for stage in graph.stages
            ),
        )
        for graph in plan.graphs
    )
    return dataclasses.replace(plan, graphs=graphs)


def make_functions(
    model: tf.keras.Model, labels: tf.Tensor
) -> tuple[tf.types.experimental.GenericFunction, tf.types.experimental.GenericFunction]:
    """Inference and one training step of a model, each as one function."""
    optimizer = tf.keras.optimizers.SGD(LEARNING_RATE)
    optimizer.build(model.trainable_variables)

    @tf.function
    def infer(images: tf.Tensor) -> tf.Tensor:
        return model(images, training=False)

    @tf.function
    def train(images: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            outputs = model(images, training=True)
            loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(labels, outputs))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return infer, train


def median_ms(call: Callable[[], tf.Tensor]) -> float:
    """Median time of a call that has been warmed up, in milliseconds."""
    times = []
    for _ in range(TIMED_CALLS):
        start = time.perf_counter()
        call().numpy()
        times.append((time.perf_counter() - start) * 1e3)
    return float(np.median(times))


def run(model: tf.keras.Model, images: tf.Tensor, labels: tf.Tensor) -> Run:
    """Runs inference and training steps, and puts the model back as it was."""
    # All variables, not only weights: the state of dropout's random numbers is among them.
    before = [variable.numpy() for variable in model.variables]
    infer, train = make_functions(model, labels)
    outputs = infer(images).numpy()
    losses = [float(train(images)) for _ in range(TRAINING_STEPS)]
    result = Run(
        outputs,
        losses,
        model.get_weights(),
        median_ms(lambda: infer(images)),
        median_ms(lambda: train(images)),
    )
    for variable, value in zip(model.variables, before, strict=True):
        variable.assign(value)
    return result


def largest_difference(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    """Largest difference of any two elements."""
    return max(float(np.max(np.abs(a - b))) for a, b in zip(first, second, strict=True) if a.size)


def same_bits(first: Run, second: Run) -> bool:
    """Whether two runs gave the same outputs, losses and weights to the bit."""
    return (
        np.array_equal(first.outputs, second.outputs)
        and first.losses == second.losses
        and all(map(np.array_equal, first.weights, second.weights))
    )


def reports_of(model_name: str, seen: int) -> tuple[tf_interop.PassReport, tf_interop.PassReport]:
    """What the pass did to inference and training graph since `seen` graphs were known."""
    status = tf_interop.status()
    reports = status.graphs[: len(status.graphs) - seen]
    if len(reports) != 2 or status.failures:
        raise click.ClickException(f"Expected stages in two graphs of {model_name}.\n{status}")
    inference, training = sorted(reports, key=lambda report: report.node_count)
    return inference, training


def compare(network: Network, image_size: int, batch: int, console: Console) -> Comparison:
    """Runs one network four times."""
    tf.keras.utils.set_random_seed(0)
    model = network.build(image_size)
    images = tf.random.normal((batch, image_size, image_size, 3))
    labels = tf.range(batch) % 1000

    def status(what: str) -> contextlib.AbstractContextManager[object]:
        return console.status(f"{network.name}, {what} …")

    with status("stock TensorFlow"):
        stock = run(model, images, labels)
    with status("stock TensorFlow, pixels changed in the last bit"):
        nudged_images = tf.constant(np.nextafter(images.numpy(), np.float32(np.inf)))
        nudged = run(model, nudged_images, labels)
    seen = len(tf_interop.status().graphs)
    with status("with the plugin"), plugin_on("always"):
        staged = run(model, images, labels)
    inference, training = reports_of(network.name, seen)
    plan = tf_interop.Plan((inference.plan, training.plan))
    with status("with the plugin, on one lane"), plugin_on("profiled", on_one_lane(plan)):
        one_lane = run(model, images, labels)
    return Comparison(inference, training, stock, staged, nudged, one_lane)


def show_stages(console: Console, name: str, report: tf_interop.PassReport) -> None:
    """Prints which convolutions of a graph run together."""
    table = Table(title=f"{name}, inference: what runs at the same time", title_justify="left")
    table.add_column("stage", justify="right")
    table.add_column("its lanes")
    wide = [(i, stage) for i, stage in enumerate(report.plan.stages) if len(stage.lanes) > 1]
    for number, stage in wide[:STAGES_SHOWN]:
        names = [pinned.node.split("/", 1)[-1] for pinned in stage.convolutions]
        table.add_row(str(number), " | ".join(names))
    if len(wide) > STAGES_SHOWN:
        table.add_row("…", f"{len(wide) - STAGES_SHOWN} more, in the plan file")
    console.print(table)


def count_stages(report: tf_interop.PassReport) -> str:
    """How many stages a graph has, and how many of them run convolutions at the same time."""
    wide = [stage for stage in report.plan.stages if len(stage.lanes) > 1]
    widest = max(len(stage.lanes) for stage in report.plan.stages)
    return f"{len(report.plan.stages)}; {len(wide)} of 2 to {widest} lanes"


def show_comparison(console: Console, name: str, runs: Comparison) -> None:
    """Prints the table of one network."""
    table = Table(title=name, title_justify="left")
    table.add_column("")
    table.add_column("inference", justify="right")
    table.add_column("training step", justify="right")
    both = (runs.inference, runs.training)
    table.add_row("nodes", *(str(report.node_count) for report in both))
    table.add_row("convolutions found", *(str(report.convolution_count) for report in both))
    table.add_row("left alone", *(str(len(report.refusals)) for report in both))
    table.add_row("stages", *map(count_stages, both), end_section=True)
    for label, other in (
        ("largest difference, with the plugin", runs.staged),
        ("… in stock, by rounding alone", runs.nudged),
    ):
        table.add_row(
            label,
            f"outputs {largest_difference([runs.stock.outputs], [other.outputs]):.1e}",
            f"weights {largest_difference(runs.stock.weights, other.weights):.1e}",
        )
    same = "yes" if same_bits(runs.staged, runs.one_lane) else "NO"
    table.add_row("same bits on one lane as on several", same, same, end_section=True)
    for label, timed in (
        ("time without the plugin", runs.stock),
        ("time with the plugin", runs.staged),
        ("time with the plugin, on one lane", runs.one_lane),
    ):
        table.add_row(label, f"{timed.inference_ms:.0f} ms", f"{timed.step_ms:.0f} ms")
    console.print(table)


@click.command(help=__doc__)
@click.option(
    "--network",
    "names",
    type=click.Choice(list(NETWORKS)),
    multiple=True,
    help="May be given several times; all without it.",
)
@click.option("--batch", type=click.IntRange(min=1), default=2, show_default=True)
@click.option(
    "--image-size",
    type=click.IntRange(min=75),
    help="Height and width of the images; each network's own without it.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "mixed_float16"]),
    default="float32",
    show_default=True,
    help="Keras' policy for the layers.",
)
@click.option(
    "--plan-dir",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    default=pathlib.Path("plans"),
    show_default=True,
    help="Folder for the plans that were made.",
)
def main(
    names: tuple[str, ...],
    batch: int,
    image_size: int | None,
    dtype: str,
    plan_dir: pathlib.Path,
) -> None:
    """Runs the demonstration."""
    console = Console()
    tf.keras.mixed_precision.set_global_policy(dtype)
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    console.print(f"TensorFlow {tf.version.VERSION} on {'a GPU' if has_gpu else 'the CPU'}")
    plan_dir.mkdir(parents=True, exist_ok=True)
    for name in names or NETWORKS:
        network = NETWORKS[name]
        size = image_size or network.image_size
        runs = compare(network, size, batch, console)
        show_stages(console, network.name, runs.inference)
        show_comparison(console, f"{network.name}, batch {batch}, {size}x{size}", runs)
        plan_path = plan_dir / f"{name}.json"
        made_with = tf_interop.status().plan.made_with
        plan = tf_interop.Plan((runs.inference.plan, runs.training.plan), made_with=made_with)
        tf_interop.save_plan(plan, plan_path)
        console.print(f"The plan is in {plan_path}.\n", soft_wrap=True)
    console.print(
        "Stages are numbered as in the plan; those that are not shown run one convolution, with "
        "nothing beside it.\n"
        "By rounding alone: stock TensorFlow with the last bit of every pixel changed, against "
        "itself. Some networks make much of it: batch normalization over few images does.\n"
        f"Weights are those after {TRAINING_STEPS} steps of SGD; times are medians of "
        f"{TIMED_CALLS} calls.",
        soft_wrap=True,
    )
    if not has_gpu:
        console.print(
            "On a CPU this shows that the numbers are right, not that it is faster: TensorFlow "
            "runs independent convolutions of a CPU on several threads by itself.",
            soft_wrap=True,
        )


if __name__ == "__main__":
    main()
