"""Tunes NASNetMobile and InceptionV3 on this machine, and prints the result in a sentence.

Each network has random weights. The fastest variant is turned on, and its outputs are compared with
those of stock TensorFlow. On a CPU whole steps are measured: stock TensorFlow and variants with
some operations on one core each, in turns in one run. On a GPU convolutions and stages are
measured, and a plan is made from them. The reports have the details.

Example: python python/examples/demonstration.py --network NASNetMobile --batch 4
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

import click
import numpy as np
import tensorflow as tf
from rich.console import Console

import tf_interop

NETWORKS = {"NASNetMobile": 224, "InceptionV3": 299}
"""Names of Keras applications, and height and width of their images."""


def infer(model: tf.keras.Model, images: tf.Tensor) -> np.ndarray:
    """The model's outputs, from a new function, which TensorFlow optimizes again."""
    outputs: np.ndarray = tf.function(lambda: model(images, training=False))().numpy()
    return outputs


def tune(
    name: str, size: int, batch: int, budget: str, console: Console
) -> tuple[tf_interop.Tuning, float]:
    """Tunes a network. Returns the result, and how far its outputs are from stock's."""
    tf.keras.utils.clear_session()  # so that its layers are named as without other models
    tf.keras.utils.set_random_seed(0)
    model = getattr(tf.keras.applications, name)(weights=None, input_shape=(size, size, 3))
    images = tf.random.normal((batch, size, size, 3))
    stock = infer(model, images)
    with console.status(f"{name} …") as status:
        tuning = tf_interop.tune(
            model, batch_sizes=[batch], budget=budget, use_cache=False, say=status.update
        )
    difference = float(np.max(np.abs(infer(model, images) - stock)) / np.max(np.abs(stock)))
    tf_interop.disable()
    return tuning, difference


@click.command(help=__doc__)
@click.option("--network", "names", type=click.Choice(list(NETWORKS)), multiple=True)
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--image-size", type=click.IntRange(min=75), help="In place of each network's own.")
@click.option("--dtype", type=click.Choice(["float32", "mixed_float16"]), default="float32")
@click.option("--budget", default="30s", show_default=True, help="How long to measure each.")
@click.option(
    "--plan-dir",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    default=pathlib.Path("plans"),
    help="Folder for plans and reports.",
)
def main(
    names: tuple[str, ...],
    batch: int,
    image_size: int | None,
    dtype: str,
    budget: str,
    plan_dir: pathlib.Path,
) -> None:
    """Runs the demonstration."""
    tf.keras.mixed_precision.set_global_policy(dtype)
    console = Console(soft_wrap=True, highlight=False)
    plan_dir.mkdir(parents=True, exist_ok=True)
    sentences = []
    for name in names or NETWORKS:
        size = image_size or NETWORKS[name]
        tuning, difference = tune(name, size, batch, budget, console)
        console.print(
            f"{name}: tuned. Its outputs differ from stock TensorFlow's by {difference:.0e} of "
            "the largest output or less."
        )
        plan = plan_dir / f"{name}.json"
        tf_interop.save_plan(tuning.plan, plan)
        words = f"report {plan} --model {name} --image-size {size} -o {plan.with_suffix('.html')}"
        with console.status(f"{name}: writing the report"):
            result = subprocess.run(
                [sys.executable, "-m", "tf_interop", *words.split()],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
        sentences.append(result.stdout)
    console.print("", *sentences, sep="\n")
    console.print(
        "A unit is a chain of operations. On a CPU stock TensorFlow spreads every operation over "
        "all cores, one after another.\nFor a model of yours: tf-interop tune MODEL"
    )


if __name__ == "__main__":
    main()
