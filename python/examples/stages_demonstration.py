"""Shows stages on GoogLeNet and Inception-v3: how many there are, and that numbers stay the same.

Runs inference and three training steps of each network in stock TensorFlow and with the plugin, and
compares outputs and weights. Two more runs say what a difference is worth: stock TensorFlow with
every pixel changed in its last bit shows how much the network itself makes of a rounding error, and
the same stages on a single lane must give the same bits as on several.

Example: python python/examples/stages_demonstration.py --network googlenet --batch 4
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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
LEARNING_RATE = 1e-3
# Height and width of a network's images, and what builds it for a size.
NETWORKS: dict[str, tuple[int, Callable[[int], tf.keras.Model]]] = {
    "googlenet": (224, lambda size: googlenet((size, size, 3))),
    "inception_v3": (
        299,
        lambda size: tf.keras.applications.InceptionV3(weights=None, input_shape=(size, size, 3)),
    ),
}


class Run(NamedTuple):
    """What a network gave.

    Attributes:
        outputs: class probabilities of inference, `[N, 1000]`.
        weights: after the training steps.
    """

    outputs: list[np.ndarray]
    weights: list[np.ndarray]


def run(model: tf.keras.Model, images: tf.Tensor, **settings: Any) -> Run:
    """Runs inference and training steps, and puts the model back as it was.

    Args:
        model: the network.
        images: what it is run on.
        settings: for `enable`; none for stock TensorFlow.
    """
    optimizer = tf.keras.optimizers.SGD(LEARNING_RATE)
    optimizer.build(model.trainable_variables)
    labels = tf.range(len(images)) % 1000

    @tf.function
    def infer() -> tf.Tensor:
        return model(images, training=False)

    @tf.function
    def train() -> None:
        with tf.GradientTape() as tape:
            outputs = model(images, training=True)
            loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(labels, outputs))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    if settings:
        tf_interop.enable(**settings)
    # All variables, not only weights: the state of dropout's random numbers is among them.
    before = [variable.numpy() for variable in model.variables]
    try:
        outputs = infer().numpy()
        for _ in range(TRAINING_STEPS):
            train()
        return Run([outputs], model.get_weights())
    finally:
        tf_interop.disable()
        for variable, value in zip(model.variables, before, strict=True):
            variable.assign(value)


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


def differences(first: Run, second: Run) -> Mapping[str, float]:
    """The largest difference of any two elements, of outputs and of weights."""
    return {
        what: max(float(np.max(np.abs(a - b))) for a, b in zip(one, other, strict=True) if a.size)
        for what, one, other in zip(Run._fields, first, second, strict=True)
    }


def compare(name: str, image_size: int | None, batch: int, console: Console) -> tf_interop.Plan:
    """Runs a network four times, prints what came of it, and gives the plan that was made."""
    own_size, build = NETWORKS[name]
    size = image_size or own_size
    tf.keras.utils.set_random_seed(0)
    model = build(size)
    images = tf.random.normal((batch, size, size, 3))
    with console.status(f"{name} …"):
        stock = run(model, images)
        nudged = run(model, tf.constant(np.nextafter(images.numpy(), np.float32(np.inf))))
        seen = len(tf_interop.status().graphs)
        staged = run(model, images, policy="always")
        status = tf_interop.status()
        reports = status.graphs[: len(status.graphs) - seen]
        if len(reports) != 2 or status.failures:
            raise click.ClickException(f"Expected stages in two graphs of {name}.\n{status}")
        both = sorted(reports, key=lambda report: report.node_count)
        plan = tf_interop.Plan(tuple(each.plan for each in both), made_with=status.plan.made_with)
        one_lane = run(model, images, plan=on_one_lane(plan))
    table = Table("", title=f"{name}, batch {batch}, {size}x{size}", title_justify="left")
    table.add_column("inference: outputs", justify="right")
    table.add_column("training: weights", justify="right")
    for what, value in (
        ("convolutions", lambda report: report.convolution_count),
        ("stages", lambda report: len(report.plan.stages)),
        ("most lanes", lambda report: max(len(s.stage.lanes) for s in report.plan.stages)),
    ):
        table.add_row(what, *(str(value(report)) for report in both))
    for what, other in (
        ("largest difference, with stages", staged),
        ("… in stock, by rounding alone", nudged),
    ):
        table.add_row(what, *(f"{each:.1e}" for each in differences(stock, other).values()))
    same = differences(staged, one_lane).values()
    table.add_row(
        "same bits on one lane as on several", *("NO" if each else "yes" for each in same)
    )
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
        "By rounding alone: stock TensorFlow with the last bit of every pixel changed, against "
        "itself. Some networks make much of it: batch normalization over few images does.\n"
        f"Weights are those after {TRAINING_STEPS} steps of SGD."
    )


if __name__ == "__main__":
    main()
