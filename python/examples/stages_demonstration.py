"""Shows the plugin on GoogLeNet and Inception-v3: what it finds, what runs together, same numbers.

Runs inference and training steps of each network in stock TensorFlow, without the plugin and with
it, and compares every output and every weight after three steps of SGD. Two more runs say what the
difference is worth: stock TensorFlow with every pixel changed in its last bit shows how much the
network itself makes of a rounding error, and the same stages on a single lane must give the same
bits as on several.

Example: python python/examples/stages_demonstration.py --network googlenet --batch 4
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported
# Stages are for GPUs; this shows them without one, too.
os.environ.setdefault("TF_INTEROP_HOST_STAGES", "1")

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
# Name, height and width of its images, and what builds it for a size.
NETWORKS: dict[str, tuple[str, int, Callable[[int], tf.keras.Model]]] = {
    "googlenet": ("GoogLeNet", 224, lambda size: googlenet((size, size, 3))),
    "inception_v3": (
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
        training_ms: median time of a training step.
    """

    outputs: np.ndarray
    losses: list[float]
    weights: list[np.ndarray]
    inference_ms: float
    training_ms: float


def on_one_lane(plan: tf_interop.Plan) -> tf_interop.Plan:
    """The same stages with all their convolutions on a single lane, in order."""
    graphs = tuple(
        dataclasses.replace(
            graph,
            stages=tuple(
                dataclasses.replace(each, stage=each.stage.in_sequence(each.stage.steps))
                for each in graph.stages
            ),
        )
        for graph in plan.graphs
    )
    return dataclasses.replace(plan, graphs=graphs)


def run(model: tf.keras.Model, images: tf.Tensor, plan: tf_interop.Plan | str | None) -> Run:
    """Runs inference and training steps, and puts the model back as it was.

    Args:
        model: the network.
        images: what it is run on.
        plan: whose stages run; a policy in place of a plan; or None without the plugin.
    """
    optimizer = tf.keras.optimizers.SGD(LEARNING_RATE)
    optimizer.build(model.trainable_variables)
    labels = tf.range(len(images)) % 1000

    @tf.function
    def infer() -> tf.Tensor:
        return model(images, training=False)

    @tf.function
    def train() -> tf.Tensor:
        with tf.GradientTape() as tape:
            outputs = model(images, training=True)
            loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(labels, outputs))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def median_ms(call: Callable[[], tf.Tensor]) -> float:
        times = []
        for _ in range(TIMED_CALLS):
            start = time.perf_counter()
            call().numpy()
            times.append((time.perf_counter() - start) * 1e3)
        return float(np.median(times))

    if isinstance(plan, str):
        tf_interop.enable(policy=plan)
    elif plan is not None:
        tf_interop.enable(plan=plan)
    # All variables, not only weights: the state of dropout's random numbers is among them.
    before = [variable.numpy() for variable in model.variables]
    try:
        outputs = infer().numpy()
        losses = [float(train()) for _ in range(TRAINING_STEPS)]
        weights = model.get_weights()
        return Run(outputs, losses, weights, median_ms(infer), median_ms(train))
    finally:
        tf_interop.disable()
        for variable, value in zip(model.variables, before, strict=True):
            variable.assign(value)


def largest_difference(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    """Largest difference of any two elements."""
    return max(float(np.max(np.abs(a - b))) for a, b in zip(first, second, strict=True) if a.size)


def show_stages(console: Console, name: str, report: tf_interop.PassReport) -> None:
    """Prints which convolutions of a graph run together."""
    table = Table("stage", "its lanes", title=f"{name}, inference: what runs at the same time")
    wide = [
        (i, each.stage) for i, each in enumerate(report.plan.stages) if len(each.stage.lanes) > 1
    ]
    for number, stage in wide[:STAGES_SHOWN]:
        names = (node.split("/", 1)[-1] for node in stage.operations)
        table.add_row(str(number), " | ".join(names))
    if len(wide) > STAGES_SHOWN:
        table.add_row("…", f"{len(wide) - STAGES_SHOWN} more, in the plan file")
    console.print(table)


def count_stages(report: tf_interop.PassReport) -> str:
    """How many stages a graph has, and how many of them run convolutions at the same time."""
    widths = [len(each.stage.lanes) for each in report.plan.stages]
    return f"{len(widths)}; {sum(width > 1 for width in widths)} of 2 to {max(widths)} lanes"


def compare(name: str, image_size: int | None, batch: int, console: Console) -> tf_interop.Plan:
    """Runs a network four times, prints what came of it, and gives the plan that was made."""
    label, own_size, build = NETWORKS[name]
    size = image_size or own_size
    tf.keras.utils.set_random_seed(0)
    model = build(size)
    images = tf.random.normal((batch, size, size, 3))
    with console.status(f"{label}, stock TensorFlow …"):
        stock = run(model, images, None)
        nudged = run(model, tf.constant(np.nextafter(images.numpy(), np.float32(np.inf))), None)
    seen = len(tf_interop.status().graphs)
    with console.status(f"{label}, with the plugin …"):
        staged = run(model, images, "always")
        status = tf_interop.status()
        reports = status.graphs[: len(status.graphs) - seen]
        if len(reports) != 2 or status.failures:
            raise click.ClickException(f"Expected stages in two graphs of {label}.\n{status}")
        both = sorted(reports, key=lambda report: report.node_count)
        plan = tf_interop.Plan(tuple(each.plan for each in both), made_with=status.plan.made_with)
        one_lane = run(model, images, on_one_lane(plan))
    show_stages(console, label, both[0])
    table = Table("", title=f"{label}, batch {batch}, {size}x{size}", title_justify="left")
    table.add_column("inference", justify="right")
    table.add_column("training step", justify="right")
    table.add_row("nodes", *(str(report.node_count) for report in both))
    table.add_row("convolutions found", *(str(report.convolution_count) for report in both))
    table.add_row("left alone", *(str(len(report.refusals)) for report in both))
    table.add_row("stages", *map(count_stages, both), end_section=True)
    for what, other in (
        ("largest difference, with the plugin", staged),
        ("… in stock, by rounding alone", nudged),
    ):
        table.add_row(
            what,
            f"outputs {largest_difference([stock.outputs], [other.outputs]):.1e}",
            f"weights {largest_difference(stock.weights, other.weights):.1e}",
        )
    same_outputs = np.array_equal(staged.outputs, one_lane.outputs)
    same_weights = staged.losses == one_lane.losses and all(
        map(np.array_equal, staged.weights, one_lane.weights)
    )
    same = ("yes" if each else "NO" for each in (same_outputs, same_weights))
    table.add_row("same bits on one lane as on several", *same, end_section=True)
    for what, timed in (
        ("time without the plugin", stock),
        ("time with the plugin", staged),
        ("time with the plugin, on one lane", one_lane),
    ):
        table.add_row(what, f"{timed.inference_ms:.0f} ms", f"{timed.training_ms:.0f} ms")
    console.print(table)
    return plan


@click.command(help=__doc__)
@click.option("--network", "names", type=click.Choice(list(NETWORKS)), multiple=True)
@click.option("--batch", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--image-size", type=click.IntRange(min=75), help="In place of each network's own.")
@click.option("--dtype", type=click.Choice(["float32", "mixed_float16"]), default="float32")
@click.option(
    "--plan-dir",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    default=pathlib.Path("plans"),
    help="Folder for the plans that were made.",
)
def main(
    names: tuple[str, ...], batch: int, image_size: int | None, dtype: str, plan_dir: pathlib.Path
) -> None:
    """Runs the program."""
    console = Console(soft_wrap=True)
    tf.keras.mixed_precision.set_global_policy(dtype)
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    console.print(f"TensorFlow {tf.version.VERSION} on {'a GPU' if has_gpu else 'the CPU'}")
    plan_dir.mkdir(parents=True, exist_ok=True)
    for name in names or NETWORKS:
        plan = compare(name, image_size, batch, console)
        tf_interop.save_plan(plan, plan_dir / f"{name}.json")
        console.print(f"The plan is in {plan_dir / name}.json.\n")
    console.print(
        "Stages are numbered as in the plan; those that are not shown run one convolution, with "
        "nothing beside it.\n"
        "By rounding alone: stock TensorFlow with the last bit of every pixel changed, against "
        "itself. Some networks make much of it: batch normalization over few images does.\n"
        f"Weights are those after {TRAINING_STEPS} steps of SGD; times are medians of "
        f"{TIMED_CALLS} calls."
    )
    if not has_gpu:
        console.print(
            "On a CPU this shows that the numbers are right, not that it is faster: TensorFlow "
            "runs independent convolutions of a CPU on several threads by itself."
        )


if __name__ == "__main__":
    main()
