"""Compares three runs of a model-garden program, which `scripts/run_model_garden.sh` makes.

The plugin changes rounding. The third run shows how much the program amplifies rounding: there
TensorFlow computes without oneDNN, with other kernels that add in another order. The plugin may
move a tensor at most about 8 times as far.

In its first steps the program's learning rate is tiny, so the weights hardly move. The momenta in
its checkpoint are sums of gradients, and show whether gradients are right.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

import pathlib
import sys

import click
import numpy as np
import tensorflow as tf

from python.benchmarks.result_file import write_result
from python.benchmarks.rounding import distance, share_of_tolerance
from tf_interop.planning.types import load_plan

_MOMENTUM = ".OPTIMIZER_SLOT/optimizer/momentum/"
_MOVING = ("/moving_mean/", "/moving_variance/")


def tensors_of(run: pathlib.Path) -> dict[str, np.ndarray]:
    """The float tensors of the last checkpoint, and the losses of all steps from TensorBoard."""
    reader = tf.train.load_checkpoint(str(run))
    types = reader.get_variable_to_dtype_map()
    tensors = {name: reader.get_tensor(name) for name in sorted(types) if types[name] == tf.float32}
    losses = {
        event.step: float(tf.make_ndarray(value.tensor))
        for path in sorted(run.glob("events.out.tfevents.*"))
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == "train_loss"
    }
    return tensors | {"losses": np.array([losses[step] for step in sorted(losses)])}


def kind_of(name: str) -> str:
    """The kind of a tensor, as in the table of results."""
    if name == "losses":
        return name
    if _MOMENTUM in name:
        return "momenta"
    return "moving statistics" if any(part in name for part in _MOVING) else "weights"


def compare(
    stock: dict[str, np.ndarray],
    staged: dict[str, np.ndarray],
    without_onednn: dict[str, np.ndarray],
) -> dict[str, dict[str, float]]:
    """Compares the tensors of the runs.

    Returns:
        For each kind of tensor their count, `plugin` and `onednn` (the largest relative distances
        from `stock`, with the plugin and without oneDNN), and `share_of_tolerance`, which exceeds 1
        if the plugin moves a tensor too far.
    """
    differences: dict[str, dict[str, float]] = {}
    for name, tensor in stock.items():
        ours, other = (distance(run[name], tensor) for run in (staged, without_onednn))
        if kind_of(name) == "momenta" and not np.any(tensor):
            raise click.ClickException(f"Expected gradients in every momentum, got none in {name}.")
        kind = differences.setdefault(
            kind_of(name), {"tensors": 0, "plugin": 0.0, "onednn": 0.0, "share_of_tolerance": 0.0}
        )
        share = share_of_tolerance(ours, other)
        kind["tensors"] += 1
        for column, value in (("plugin", ours), ("onednn", other), ("share_of_tolerance", share)):
            kind[column] = max(kind[column], value)
    return differences


@click.command()
@click.argument("runs", type=click.Path(exists=True, file_okay=False, path_type=pathlib.Path))
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=pathlib.Path))
@click.option("--command", required=True, help="The command to write into the result.")
def main(runs: pathlib.Path, out: pathlib.Path, command: str) -> None:
    """Compares the runs in folders stock, staged and without_onednn of RUNS."""
    tensors = [tensors_of(runs / name) for name in ("stock", "staged", "without_onednn")]
    shapes = [{name: each.shape for name, each in of_run.items()} for of_run in tensors]
    if not shapes[0] == shapes[1] == shapes[2] or shapes[0]["losses"] == (0,):
        raise click.ClickException("Expected losses, and the same tensors in all runs.")
    differences = compare(*tensors)
    [graph] = load_plan(runs / "plan.json").graphs
    grouped = sum(len(stage.stage.steps) for stage in graph.stages)
    widest = max(len(stage.stage.lanes) for stage in graph.stages)
    stages = f"{grouped} convolutions in {len(graph.stages)} stages of up to {widest} lanes"
    write_result(
        out,
        "Same results: a program of the model garden",
        "`official.legacy.image_classification.resnet.resnet_ctl_imagenet_main`, unedited, with "
        f'the plugin on (policy `always` over the host backend: {stages}) and off. "Plugin" and '
        '"onednn" are the largest relative difference of any tensor when the plugin is on, and '
        "when oneDNN is off. The tolerance is eight times the difference without oneDNN, plus "
        "four roundings. The share is that of the worst tensor.",
        [{"tensors of": kind, **of_kind} for kind, of_kind in differences.items()],
        command=command,
        made_with=("tf-models-official", "tensorflow", "tf_keras"),
    )
    click.echo(stages)
    too_far = [kind for kind, each in differences.items() if not each["share_of_tolerance"] <= 1]
    if too_far:
        click.echo(f"The plugin moves too far: {', '.join(too_far)}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
