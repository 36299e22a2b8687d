"""The command `tf-interop plan`: plans a model by its profile."""

from __future__ import annotations

import pathlib
from typing import Any

import click
from rich.console import Console

from tf_interop.cli.command import Result, command
from tf_interop.cli.options import (
    SIZE,
    allow_foreign_profile_option,
    batches_option,
    command_line,
    image_size_option,
    inference_option,
    model_argument,
    output_option,
    profile_option,
    target_option,
    tf32_option,
    training_option,
)
from tf_interop.cli.progress import work_on_model
from tf_interop.convolution import ConvolutionKind, batch_size_of
from tf_interop.errors import ProfileError
from tf_interop.planning.file import save_plan
from tf_interop.planning.show import predicted, show_plan, summarize_graph
from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.profile.file import load_profile
from tf_interop.profile.types import Profile

# TensorFlow is imported only once it is known that there is a model to trace.


class _ProfileOption(click.Option):
    """`--profile`, which says how to make one."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Refuses that it is missing, with the command that measures what is asked for."""
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter as error:
            # What was given has been read before what is missing.
            how = f"Make one with: {_profile_command(ctx.params)}"
            raise click.MissingParameter(how, ctx, self) from error


def _profile_command(
    planned: dict[str, Any], path: pathlib.Path | str = "profile.json", backend: str = ""
) -> str:
    """The command that measures what is to be planned, by the options of the one that plans.

    `backend` is that of the profile that `path` holds already, and empty where there is none.
    """
    switches: list[str] = []
    if backend == "host":
        switches = ["--backend", "host"]
    elif not planned.get("allow_tf32", True):
        switches = ["--tf32", "off"]
    model = planned.get("model") or "MODEL"
    return command_line("profile", model, planned, *switches, "-o", str(path))


def describe_profile(profile: Profile) -> str:
    """What a profile was measured of, as far as that can be told from its convolutions."""
    configurations = {each.configuration for each in profile.algorithms}
    if not configurations:
        return "no convolution"
    sizes = sorted({size for each in configurations if (size := batch_size_of([each]))})
    is_backward = any(each.kind is not ConvolutionKind.FORWARD for each in configurations)
    parts = [
        f"{len(configurations)} convolutions",
        f"batch {', '.join(map(str, sizes))}",
        "some of training" if is_backward else "none of training's backward half",
    ]
    if profile.device.backend == "cudnn":
        switches = sorted({each.tf32 for each in profile.algorithms}, reverse=True)
        parts += ["with TF32" if switch else "without TF32" for switch in switches]
    if not profile.deterministic_part.algorithms:
        parts.append("no algorithm that gave the same bits twice")
    return ", ".join(parts)


@command(
    """
plan InceptionV3 --profile profile.json --batch 1,8,32 -o plan.json
plan my_package.models:build --profile profile.json --training -o plan.json
plan ResNet50 --profile profile.json --memory 8GB -o plan.json

For a GPU that is not here, by a profile from there:
plan ResNet50 --profile profile.json --for 9.0 -o plan.json
""",
)
@model_argument
@profile_option(
    "What tf-interop profile measured of MODEL with these batch sizes.",
    cls=_ProfileOption,
    required=True,
)
@output_option(
    "PLAN.json", "The plan, for tf-interop run --plan and enable(plan=…).", required=True
)
@batches_option
@inference_option
@training_option
@image_size_option
@click.option(
    "--memory",
    "memory_budget_bytes",
    type=SIZE,
    help="For outputs of convolutions and workspaces, such as 8GB or 512MiB. [default: what the "
    "GPU has free now; on a CPU no limit]",
)
@target_option("What to plan for", "what this process runs on")
@tf32_option
@click.option(
    "--deterministic",
    is_flag=True,
    help="Leave out algorithms that do not give the same bits every time, as TensorFlow's op "
    "determinism asks for.",
)
@allow_foreign_profile_option
@click.pass_context
def plan(
    context: click.Context,
    /,
    model: str,
    profile_path: pathlib.Path,
    output_path: pathlib.Path,
    inference: bool,
    training: bool,
    **options: Any,
) -> Result:
    """Plans which convolutions of MODEL run together.

    It says what to expect of the stages; tf-interop show says why they are as they are.
    """
    if not inference and not training:
        raise click.UsageError("Expected --inference or --training, got neither.")
    profile = load_profile(profile_path)
    modes = {False: inference, True: training}
    with work_on_model(model) as say:
        from tf_interop.model.load import check_trains, load_model
        from tf_interop.model.make_plan import plan as plan_model

        loaded = load_model(model, image_size=options["image_size"])
        if training:
            check_trains(loaded, model)
        plans = [
            plan_model(loaded, profile, training=is_training, say=say, **options)
            for is_training, is_wanted in modes.items()
            if is_wanted
        ]
    graphs = tuple(graph for each in plans for graph in each.graphs)
    made = Plan(graphs, made_with=plans[0].made_with | {"model": model})
    # Of another model, image size or dtype, or not measured to its end, is what cannot be told.
    has = f"The profile has {describe_profile(profile)}."
    lacking = [has if _unmeasured_count(graph) else "" for graph in graphs]
    is_elsewhere = options["target"] is not None or options["allow_foreign_profile"]
    where = f" on {profile.device.name}" if is_elsewhere else ""
    how = _profile_command(context.params, profile_path, profile.device.backend)
    how_to_measure = f"Measure{where}: {how}"
    if not any(map(predicted, graphs)):
        raise ProfileError(
            f"Expected a profile of '{model}', got '{profile_path}', which holds none of its "
            f"convolutions. {has}\n{how_to_measure}"
        )
    save_plan(made, output_path)

    def show() -> None:
        show_plan(made, Console(), lacking)
        if any(lacking):
            # Not wrapped as the rest is: it is there to be copied.
            click.echo(how_to_measure)
        click.echo(f"{output_path}: {sum(len(graph.stages) for graph in graphs)} stages")

    return Result({"plan": str(output_path), "graphs": [*map(summarize_graph, graphs)]}, show)


def _unmeasured_count(graph: GraphPlan) -> int:
    return graph.prediction.unmeasured_count if graph.prediction else 0
