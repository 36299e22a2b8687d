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


def losses_of(run: pathlib.Path) -> list[float]:
    """The training loss of each step, which the program wrote for TensorBoard."""
    losses = {}
    for path in sorted(run.glob("events.out.tfevents.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.tag == "train_loss":
                    losses[event.step] = float(tf.make_ndarray(value.tensor))
    return [losses[step] for step in sorted(losses)]


def tensors_of(run: pathlib.Path) -> dict[str, np.ndarray]:
    """The float tensors of the last checkpoint."""
    reader = tf.train.load_checkpoint(str(run))
    names = [
        name for name, dtype in reader.get_variable_to_dtype_map().items() if dtype == tf.float32
    ]
    return {name: reader.get_tensor(name) for name in sorted(names)}


def kind_of(name: str) -> str:
    """The kind of a tensor of the checkpoint."""
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
        kind["tensors"] += 1
        kind["plugin"] = max(kind["plugin"], ours)
        kind["onednn"] = max(kind["onednn"], other)
        kind["share_of_tolerance"] = max(
            kind["share_of_tolerance"], share_of_tolerance(ours, other)
        )
    return differences


@click.command()
@click.argument("runs", type=click.Path(exists=True, file_okay=False, path_type=pathlib.Path))
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=pathlib.Path))
@click.option("--command", required=True, help="The command to write into the result.")
def main(runs: pathlib.Path, out: pathlib.Path, command: str) -> None:
    """Compares the runs in folders stock, staged and without_onednn of RUNS."""
    names = ("stock", "staged", "without_onednn")
    losses = {name: losses_of(runs / name) for name in names}
    if not losses["stock"] or len({len(of_run) for of_run in losses.values()}) != 1:
        raise click.ClickException(f"Expected the same number of losses in all runs, got {losses}.")
    tensors = {name: tensors_of(runs / name) for name in names}
    if not tensors["stock"].keys() == tensors["staged"].keys() == tensors["without_onednn"].keys():
        raise click.ClickException("Expected the same tensors in every checkpoint.")
    as_tensors = [{"losses": np.array(losses[name])} for name in names]
    differences = compare(*(tensors[name] for name in names))
    differences["losses"] = compare(*as_tensors)["weights"]

    [graph] = load_plan(runs / "plan.json").graphs
    grouped = sum(len(stage.stage.steps) for stage in graph.stages)
    widest = max(len(stage.stage.lanes) for stage in graph.stages)
    stages = f"{grouped} convolutions in {len(graph.stages)} stages of up to {widest} lanes"
    write_result(
        out,
        "Same results: a program of the model garden",
        "`official.legacy.image_classification.resnet.resnet_ctl_imagenet_main`, unedited, with "
        f"the plugin on (policy `always`: {stages}) and off. The columns show the largest "
        "relative difference of any tensor that the plugin causes, and that leaving out oneDNN "
        "causes. The tolerance is eight times the difference without oneDNN, plus four roundings; "
        "its share is that of the tensor with the largest share.",
        [{"tensors of": kind, **of_kind} for kind, of_kind in differences.items()],
        command=command,
        made_with=("tf-models-official", "tensorflow", "tf_keras"),
    )
    click.echo(stages)
    for step, of_step in enumerate(zip(*losses.values(), strict=True), start=1):
        click.echo(f"step {step}: loss " + ", ".join(map("{} {:.9g}".format, names, of_step)))
    too_far = [kind for kind, each in differences.items() if not each["share_of_tolerance"] <= 1]
    if too_far:
        click.echo(f"The plugin moves too far: {', '.join(too_far)}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
