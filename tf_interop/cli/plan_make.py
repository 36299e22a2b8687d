"""The command `tf-interop plan make`: plans a model by its profile."""

from __future__ import annotations

import pathlib
from typing import Any

import click
from rich.console import Console

from tf_interop.cli.arguments import (
    allow_foreign_profile_option,
    batches_option,
    image_size_option,
    mode_options,
    model_argument,
    output_option,
    parse_bytes,
    parsed_by,
    profile_option,
    target_option,
)
from tf_interop.cli.result import Result, command
from tf_interop.errors import ProfileError
from tf_interop.model.missing_measurements import (
    PlanRequest,
    describe_lacking,
    describe_profile,
    profile_command,
)
from tf_interop.model.progress import work_on_model
from tf_interop.planning.file import save_plan
from tf_interop.planning.overview import name_graph, predicted, show_plan, summarize_graph
from tf_interop.planning.types import Plan
from tf_interop.profile.file import load_profile

# TensorFlow is imported only once it is known that there is a model to trace.

_EXAMPLES = """
plan InceptionV3 --profile profile.json --batch 1,8,32 -o plan.json
plan my_package.models:build --profile profile.json --training -o plan.json
plan ResNet50 --profile profile.json --memory 8GB -o plan.json

For a GPU that is not here, by a profile from there:
plan ResNet50 --profile profile.json --for 9.0 -o plan.json

A model that is named like a command:
plan make check --profile profile.json -o plan.json
"""


class _ProfileOption(click.Option):
    """`--profile`, which says how to make one."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Refuses that it is missing, with the command that measures what is asked for."""
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter as error:
            # What was given has been read before what is missing.
            given = ctx.params
            request = PlanRequest(
                given.get("model") or "MODEL",
                given.get("batch") or (1,),
                training=bool(given.get("training")),
                image_size=given.get("image_size"),
            )
            how = f"Make one with: {profile_command(request)}"
            raise click.MissingParameter(how, ctx, self) from error


@command(_EXAMPLES, short_help="Plans a model by its profile.")
@model_argument
@profile_option(
    "What tf-interop profile measured of MODEL with these batch sizes.",
    cls=_ProfileOption,
    required=True,
)
@output_option(
    "PLAN.json", "The plan, for tf-interop run --plan and enable(plan=…).", required=True
)
@batches_option("Batch sizes; the plan holds an entry for each.")
@mode_options("Plan")
@image_size_option()
@click.option(
    "--memory",
    "memory_budget_bytes",
    callback=parsed_by(parse_bytes),
    metavar="SIZE",
    help="For outputs of convolutions and workspaces, such as 8GB or 512MiB. [default: what the "
    "GPU has free now; on a CPU no limit]",
)
@target_option("What to plan for", "what this process runs on")
@click.option(
    "--tf32/--no-tf32",
    "allow_tf32",
    default=True,
    show_default=True,
    help="TensorFlow's switch for TF32, as it will be when the plan is used.",
)
@click.option(
    "--deterministic",
    is_flag=True,
    help="Leave out algorithms that do not give the same bits every time, as TensorFlow's op "
    "determinism asks for.",
)
@allow_foreign_profile_option
def make(
    model: str,
    profile_path: pathlib.Path,
    output_path: pathlib.Path,
    batch: tuple[int, ...],
    inference: bool,
    training: bool,
    image_size: tuple[int, int] | None,
    memory_budget_bytes: int | None,
    target: str | None,
    allow_tf32: bool,
    deterministic: bool,
    allow_foreign_profile: bool,
) -> Result:
    """Plans MODEL: puts convolutions into stages, and says what to expect of them."""
    if not inference and not training:
        raise click.UsageError("Expected --inference or --training, got neither.")
    profile = load_profile(profile_path)
    with work_on_model(model) as status:
        from tf_interop.model.load import check_trains, load_model
        from tf_interop.model.make_plan import plan as plan_model

        loaded = load_model(model, image_size=image_size)
        if training:
            check_trains(loaded, model)
        plans = [
            plan_model(
                loaded,
                profile,
                batch_sizes=batch,
                training=is_training,
                image_size=image_size,
                memory_budget_bytes=memory_budget_bytes,
                allow_tf32=allow_tf32,
                deterministic=deterministic,
                target=target,
                allow_foreign_profile=allow_foreign_profile,
                say=status.update,
            )
            for is_training, is_wanted in ((False, inference), (True, training))
            if is_wanted
        ]
    made = Plan(
        tuple(graph for each in plans for graph in each.graphs), made_with=plans[0].made_with
    )
    request = PlanRequest(model, batch, inference, training, image_size, allow_tf32, deterministic)
    lacking = [describe_lacking(graph, profile, request) for graph in made.graphs]
    is_elsewhere = target is not None or allow_foreign_profile
    where = f" on {profile.device.name}" if is_elsewhere else ""
    how_to_measure = f"Measure{where}: {profile_command(request, profile_path, profile)}"
    if not any(map(predicted, made.graphs)):
        lines = [
            f"Expected a profile of '{model}', got '{profile_path}', which holds none of its "
            f"convolutions. The profile has {describe_profile(profile)}.",
            *(
                f"{name_graph(graph)}: {what}"
                for graph, what in zip(made.graphs, lacking, strict=True)
            ),
            how_to_measure,
        ]
        raise ProfileError("\n".join(lines))
    save_plan(made, output_path)

    def show() -> None:
        show_plan(made, Console(), lacking)
        if any(lacking):
            # Not wrapped as the rest is: it is there to be copied.
            click.echo(how_to_measure)
        click.echo(f"{output_path}: {sum(len(graph.stages) for graph in made.graphs)} stages")

    summary = [summarize_graph(graph) for graph in made.graphs]
    return Result({"plan": str(output_path), "graphs": summary}, show)
