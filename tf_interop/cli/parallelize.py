"""The command `tf-interop parallelize`: divides a model's layers over several devices."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import Any

import click
from rich.console import Console

from tf_interop.cli import options
from tf_interop.cli.main import Result, command
from tf_interop.cli.progress import model_loaded
from tf_interop.errors import PlanError
from tf_interop.parallel.show import show_layers, show_steps, summary
from tf_interop.parallel.types import LayerExplanation, save_parallel_plan
from tf_interop.planning.show import name_graph
from tf_interop.terminal import print_on


def _devices_of(text: str) -> int | tuple[str, ...]:
    if re.fullmatch(r"[1-9]\d*", text):
        return int(text)
    names = tuple(text.split(","))
    if not all(re.search(r"(?i)[cgt]pu:\d+$", name) for name in names):
        raise ValueError(
            f"'{text}' is neither a number nor a list such as /device:GPU:0,/device:GPU:1."
        )
    return names


@command(
    """
parallelize ResNet50 --devices 4 --batch 32 --training -o parallel.json
parallelize my_package.models:build --devices /device:GPU:0,/device:GPU:1 -o parallel.json

For devices elsewhere, with the reason for each layer:
parallelize VGG16 --device-graph devices.json --batch 64 --training --explain all
""",
)
@options.model
@click.option(
    "--devices",
    type=options.Text("N|NAME,…", _devices_of),
    help="How many devices, or which. [default: all]",
)
@options.count("--batch", "batch_size", default=1, least=1, help="The batch size of a step.")
@click.option("--training", is_flag=True, help="Divide a training step instead of inference.")
@options.image_size
@click.option(
    "--memory-limit",
    type=options.SIZE,
    help="The memory that each device may use, such as 8GB. [default: all of it]",
)
@click.option(
    "--device-graph",
    type=click.Path(path_type=pathlib.Path),
    metavar="DEVICES.json",
    help="The speed of devices, which may be elsewhere, and their links. [default: measured]",
)
@options.profile("A profile of convolutions on one of the devices. Other times are modelled.")
@click.option(
    "--explain",
    "explained",
    metavar="LAYER|all",
    help="Also explain one layer, or all: the times of other divisions, and the reason for the "
    "chosen one.",
)
@options.output("PARALLEL.json", "The plan, for tf_interop.enable(parallel=…).")
def parallelize(
    model: str,
    devices: int | tuple[str, ...] | None,
    profile_path: pathlib.Path | None,
    explained: str | None,
    output_path: pathlib.Path | None,
    **chosen: Any,
) -> Result:
    """Plans how the layers of MODEL are divided over several devices.

    Each layer is divided in its own way: by samples, height, width, output channels (filter) or
    input channels (channel), over all devices or some. The plan is the division that takes the
    least time in a cost model; if nothing is a tenth faster than one device, nothing is divided.
    Times are modelled, except for convolutions in --profile. Without --device-graph they are scaled
    to a measured step. 'tf-interop report' draws the plan.
    """
    training = chosen["training"]
    with model_loaded(model, chosen["image_size"], training=training) as (loaded, say):
        from tf_interop.model.parallelize import parallelize as plan_division

        plan = plan_division(loaded, devices, profile=profile_path, say=say, **chosen)
    (graph,) = plan.graphs
    assert graph.prediction is not None
    plan = dataclasses.replace(plan, made_with=plan.made_with | {"model": model})
    if output_path is not None:
        save_parallel_plan(plan, output_path)
    layers = _chosen_layers(model, graph.prediction.layers, explained)

    def show() -> None:
        console = Console()
        print_on(console, f"{model}, {name_graph(graph)}, on {len(plan.devices)} devices")
        show_steps(graph, console)
        show_layers(layers, console)
        click.echo(("" if output_path is None else f"{output_path}: ") + summary(graph))

    return Result({"plan": output_path, "graph": graph, "layers": layers}, show)


def _chosen_layers(
    model: str, layers: tuple[LayerExplanation, ...], explained: str | None
) -> tuple[LayerExplanation, ...]:
    if explained is None:
        return ()
    chosen = tuple(each for each in layers if explained in ("all", each.name))
    if not chosen:
        raise PlanError(
            f"{model} has no layer '{explained}'. Choose all, or one of "
            f"{', '.join(each.name for each in layers)}."
        )
    return chosen
