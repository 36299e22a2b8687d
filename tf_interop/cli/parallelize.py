"""The command `tf-interop parallelize`: divides a model's layers over several devices."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from tf_interop.cli import options
from tf_interop.cli.main import Result, command
from tf_interop.cli.progress import model_loaded
from tf_interop.errors import PlanError
from tf_interop.parallel.types import GraphDivision, save_parallel_plan
from tf_interop.terminal import new_table, print_on

if TYPE_CHECKING:
    from tf_interop.model.parallelize import Parallelization
    from tf_interop.parallel.explain import LayerExplanation


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
    least time in a cost model; if nothing is faster than one device, nothing is divided. Times are
    modelled, except for convolutions in --profile.
    """
    training = chosen["training"]
    with model_loaded(model, chosen["image_size"], training=training) as (loaded, say):
        from tf_interop.model.parallelize import parallelize as plan_division

        explanations: list[Parallelization] = []
        plan_division(
            loaded,
            devices,
            profile=profile_path,
            say=say,
            explain=explanations.append,
            **chosen,
        )
        [made] = explanations
    layers = _chosen_layers(made, explained)
    plan = dataclasses.replace(made.plan, made_with=made.plan.made_with | {"model": model})
    if output_path is not None:
        save_parallel_plan(plan, output_path)
    (graph,) = plan.graphs
    document = {
        "plan": output_path,
        "graph": graph,
        "step_us": made.planned.step_us,
        "search": made.planned.search,
        "layers": layers,
    }

    def show() -> None:
        _show_steps(made, Console())
        _show_layers(layers, Console())
        click.echo(_summary(graph, made, output_path))

    return Result(document, show)


def _chosen_layers(made: Parallelization, explained: str | None) -> tuple[LayerExplanation, ...]:
    layers = made.planned.layers
    if explained is None:
        return ()
    chosen = tuple(each for each in layers if explained in ("all", each.name))
    if not chosen:
        raise PlanError(
            f"{made.name} has no layer '{explained}'. Choose all, or one of "
            f"{', '.join(each.name for each in layers)}."
        )
    return chosen


def _show_steps(made: Parallelization, console: Console) -> None:
    (graph,) = made.plan.graphs
    assert graph.prediction is not None
    print_on(console, f"{made.name}, on {len(made.plan.devices)} devices")
    table = new_table("A step, as predicted", "", "ms", "times one device")
    for name, step_us in made.planned.step_us.items():
        ratio = graph.prediction.whole_us / step_us if step_us else 1.0
        table.add_row(name, f"{step_us / 1e3:.3f}", f"{ratio:.2f}")
    print_on(console, table)
    source = graph.prediction.source.value
    print_on(console, f"Times are {source}. The search was {made.planned.search}.")


def _show_layers(layers: tuple[LayerExplanation, ...], console: Console) -> None:
    if not layers:
        return
    title = "Layers: ms in the plan, and if that layer alone were divided otherwise"
    table = new_table(title, "layer", "plan", *layers[0].others)
    table.add_column("divided by", overflow="fold")
    table.add_column("why", overflow="fold", ratio=1)
    for layer in layers:
        times = (layer.chosen, *layer.others.values())
        ms = (f"{each.total_us / 1e3:.3f}" for each in times)
        table.add_row(layer.name, *ms, str(layer.chosen.degrees), layer.why)
    print_on(console, table)


def _summary(graph: GraphDivision, made: Parallelization, output_path: pathlib.Path | None) -> str:
    prediction = graph.prediction
    assert prediction is not None
    sent = sum(each.sent_bytes for each in prediction.sent)
    said = f"{len(graph.layers)} of {len(made.planned.layers)} layers are divided"
    if graph.why_whole:
        said += f": {graph.why_whole}"
    else:
        memory = ", ".join(f"{each / 1e6:.3g}" for each in prediction.memory_bytes)
        said += f"; {sent / 1e6:.3g} MB are sent in a step; the devices need {memory} MB"
    return said if output_path is None else f"{output_path}: {said}"
