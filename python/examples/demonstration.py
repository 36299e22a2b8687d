"""Tunes NASNetMobile and InceptionV3 on this machine, and says in a sentence what came of it.

Each network has random weights. It is measured in stock TensorFlow and with some of its operations
on one core each, by turns in one run; what is fastest is turned on, and its outputs are compared
with those of stock TensorFlow.

Example: python python/examples/demonstration.py --network NASNetMobile --batch 4
"""

from __future__ import annotations

import os
import pathlib
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

import click
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

import tf_interop

NETWORKS = {"NASNetMobile": 224, "InceptionV3": 299}
"""Names of Keras applications, and height and width of their images."""


def infer(model: tf.keras.Model, images: tf.Tensor) -> np.ndarray:
    """The model's outputs, from a new function, which TensorFlow optimizes anew."""
    outputs: np.ndarray = tf.function(lambda: model(images, training=False))().numpy()
    return outputs


def show_variants(console: Console, graph: Any) -> None:
    """Prints what was measured."""
    table = Table("", title=f"{graph.name}: milliseconds a step", title_justify="left")
    for heading in ("best", "median", "times stock"):
        table.add_column(heading, justify="right")
    for each in graph.variants:
        table.add_row(
            each.name,
            f"{each.times.best_ms:.1f}",
            f"{each.times.median_ms:.1f}",
            f"{each.times.ratio:.2f} ± {each.times.error:.2f}",
        )
    console.print(table)


def explain(label: str, graph: Any) -> str:
    """What came of a network, for someone who has not read anything yet."""
    measured = graph.plan.measured
    if measured is None:
        return str(graph)  # a GPU, where no whole step was measured
    if not graph.plan.narrow_units:
        return f"{label}: stock TensorFlow is fastest here, so nothing is turned on."
    return (
        f"{label}: a step takes {measured.step_ms:.1f} ms in place of {measured.stock_ms:.1f} ms, "
        f"{measured.ratio:.2f} times as fast as stock TensorFlow, measured in the same run on "
        f"{measured.cores} cores. {len(graph.plan.narrow_units)} chains of operations, "
        f"{measured.narrow_op_count} operations in all, run on one core each and side by side, "
        "where stock spreads every single one over all cores."
    )


def demonstrate(
    name: str, image_size: int | None, batch: int, budget: str, console: Console
) -> tuple[str, tf_interop.Plan]:
    """Tunes a network and compares its outputs. Returns what to say at the end, and the plan."""
    size = image_size or NETWORKS[name]
    tf.keras.utils.set_random_seed(0)
    model = getattr(tf.keras.applications, name)(weights=None, input_shape=(size, size, 3))
    images = tf.random.normal((batch, size, size, 3))
    stock = infer(model, images)
    with console.status(f"{name} …") as status:
        tuning = tf_interop.tune(
            model, batch_sizes=[batch], budget=budget, use_cache=False, say=status.update
        )
    (graph,) = tuning.graphs
    show_variants(console, graph)
    difference = float(np.max(np.abs(infer(model, images) - stock)))
    console.print(
        f"Largest difference of an output from stock TensorFlow's: {difference:.1e}, where the "
        f"largest output is {stock.max():.1e}."
    )
    tf_interop.disable()
    return explain(f"{name}, batch {batch}, {size}x{size}", graph), tuning.plan


@click.command(help=__doc__)
@click.option("--network", "names", type=click.Choice(list(NETWORKS)), multiple=True)
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--image-size", type=click.IntRange(min=75), help="In place of each network's own.")
@click.option("--budget", default="30s", show_default=True, help="How long to measure each.")
@click.option(
    "--plan-dir",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    default=pathlib.Path("plans"),
    help="Folder for the plans that were made.",
)
def main(
    names: tuple[str, ...], batch: int, image_size: int | None, budget: str, plan_dir: pathlib.Path
) -> None:
    """Runs the demonstration."""
    console = Console(soft_wrap=True)
    console.print(f"TensorFlow {tf.version.VERSION}. Random weights; random images.\n")
    plan_dir.mkdir(parents=True, exist_ok=True)
    sentences = []
    for name in names or NETWORKS:
        sentence, plan = demonstrate(name, image_size, batch, budget, console)
        tf_interop.save_plan(plan, plan_dir / f"{name}.json")
        console.print(f"The plan is in {plan_dir / name}.json.\n")
        sentences.append(sentence)
    console.print("\n\n".join(sentences), highlight=False)
    console.print("\nFor a model of yours: tf-interop tune MODEL", highlight=False)


if __name__ == "__main__":
    main()
