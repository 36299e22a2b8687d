"""The command `tf-interop plan make`: plans a model by its profile."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import click
from rich.console import Console

from tf_interop.know.plans.plan import Plan
from tf_interop.know.plans.plan_file import save_plan
from tf_interop.know.profiles.profile_file import load_profile
from tf_interop.use.command_answer import Answer, answering
from tf_interop.use.command_arguments import (
    allow_foreign_profile_option,
    batches_option,
    image_size_option,
    model_argument,
    output_option,
    parse_bytes,
    parsed_by,
    profile_option,
    steps_options,
    target_option,
)
from tf_interop.use.command_ends import AS_IT_IS, exit_codes
from tf_interop.use.models.model_progress import work_on_model
from tf_interop.use.planning.plan_summary import summarize_graph
from tf_interop.use.planning.plan_tables import show_plan

# TensorFlow is imported only once it is known that there is a model to trace.

_EPILOG = f"""{AS_IT_IS}Examples:
  tf-interop plan InceptionV3 --profile profile.json --batch 1,8,32 -o plan.json
  tf-interop plan my_package.models:build --profile profile.json --training -o plan.json
  tf-interop plan ResNet50 --profile profile.json --memory 8GB -o plan.json

{AS_IT_IS}For a GPU that is not here, by a profile from there:
  tf-interop plan ResNet50 --profile profile.json --for 9.0 -o plan.json

{AS_IT_IS}A model that is named like a command:
  tf-interop plan make check --profile profile.json -o plan.json

{exit_codes()}"""


@click.command(epilog=_EPILOG, short_help="Plans a model by its profile.")
@model_argument
@profile_option("What tf-interop profile measured of MODEL with these batch sizes.", required=True)
@output_option(
    "PLAN.json", "The plan, for tf-interop run --plan and enable(plan=…).", required=True
)
@batches_option("Batch sizes; the plan holds an entry for each.")
@steps_options("Plan")
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
@answering
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
) -> Answer:
    """Plans MODEL: puts convolutions into stages, and says what to expect of them."""
    if not inference and not training:
        raise click.UsageError("Expected --inference or --training, got neither.")
    profile = load_profile(profile_path)
    with work_on_model(model) as status:
        from tf_interop.use.models.load_model import load_model
        from tf_interop.use.planning.make_plan_of_model import plan as plan_model

        loaded = load_model(model, image_size=image_size)
        steps = {"inference": inference, "training step": training}
        plans = {
            step: plan_model(
                loaded,
                profile,
                batch_sizes=batch,
                training=step == "training step",
                image_size=image_size,
                memory_budget_bytes=memory_budget_bytes,
                allow_tf32=allow_tf32,
                deterministic=deterministic,
                target=target,
                allow_foreign_profile=allow_foreign_profile,
                say=status.update,
            )
            for step, is_wanted in steps.items()
            if is_wanted
        }
    return _answer(plans, output_path)


def _answer(plans: Mapping[str, Plan], path: pathlib.Path) -> Answer:
    """Saves the plans of all steps as one."""
    labels = [step for step, each in plans.items() for _ in each.graphs]
    graphs = tuple(graph for each in plans.values() for graph in each.graphs)
    made = Plan(graphs, made_with=next(iter(plans.values())).made_with)
    save_plan(made, path)

    def show() -> None:
        show_plan(made, Console(), labels)
        click.echo(f"{path}: {sum(len(graph.stages) for graph in graphs)} stages")

    summary = [
        {"step": label, **summarize_graph(graph)}
        for label, graph in zip(labels, graphs, strict=True)
    ]
    return Answer({"plan": str(path), "graphs": summary}, show)
