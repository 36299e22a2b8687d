"""The command `tf-interop plan`: plans a model by its profile, and says why."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable

import click
from rich.console import Console

from tf_interop.decide.costs.stage_model import compare_model as compare_with_model
from tf_interop.decide.planning.planning_problem_of_profile import problem_of_profile
from tf_interop.errors import ProfileError
from tf_interop.know.plans.plan import Plan
from tf_interop.know.plans.plan_file import load_plan, plan_schema, save_plan
from tf_interop.know.profiles.profile import Profile
from tf_interop.know.profiles.profile_file import load_profile
from tf_interop.use.command_arguments import (
    DefaultGroup,
    errors_shown,
    image_size_option,
    parse_batches,
    parse_bytes,
    parse_target,
)
from tf_interop.use.planning.plan_tables import explain_stages, show_comparison, show_plan

# TensorFlow is imported only where a model has to be traced.

_AS_IT_IS = "\b\n"
_EXIT_CODES = f"""{_AS_IT_IS}Exit codes:
  0  success
  1  an error that tf_interop reports
  2  wrong usage"""
_GROUP_EPILOG = f"""{_AS_IT_IS}Examples:
  tf-interop plan ResNet50 --profile profile.json --batch 32 -o plan.json
  tf-interop plan make --help
  tf-interop plan explain plan.json
  tf-interop run --plan plan.json train.py

{_EXIT_CODES}"""
_MAKE_EPILOG = f"""{_AS_IT_IS}Examples:
  tf-interop plan InceptionV3 --profile profile.json --batch 1,8,32 -o plan.json
  tf-interop plan my_package.models:build --profile profile.json --training -o plan.json
  tf-interop plan ResNet50 --profile profile.json --memory 8GB -o plan.json

{_AS_IT_IS}For a GPU that is not here, by a profile from there:
  tf-interop plan ResNet50 --profile profile.json --for 9.0 -o plan.json

{_AS_IT_IS}A model that is named like a command:
  tf-interop plan make check --profile profile.json -o plan.json

{_EXIT_CODES}"""


@click.group(cls=DefaultGroup, default_command="make", epilog=_GROUP_EPILOG)
def plan() -> None:
    """Plans which convolutions of a model run together, and says why.

    `tf-interop plan MODEL … -o plan.json` is short for `tf-interop plan make MODEL …`.
    """


@plan.command(epilog=_MAKE_EPILOG)
@click.argument("model")
@click.option(
    "--profile",
    "profile_path",
    required=True,
    metavar="PROFILE.json",
    help="What tf-interop profile measured of MODEL with these batch sizes.",
)
@click.option(
    "-o",
    "--output",
    "output_path",
    required=True,
    type=click.Path(dir_okay=False),
    metavar="PLAN.json",
)
@click.option(
    "--batch",
    default="1",
    show_default=True,
    callback=parse_batches,
    metavar="N,…",
    help="Batch sizes; the plan holds an entry for each.",
)
@click.option(
    "--inference/--no-inference",
    default=True,
    show_default=True,
    help="Whether to plan inference.",
)
@click.option("--training", is_flag=True, help="Plan a training step, too.")
@image_size_option
@click.option(
    "--memory",
    "memory_budget_bytes",
    callback=parse_bytes,
    metavar="SIZE",
    help="For outputs of convolutions and workspaces, such as 8GB or 512MiB. [default: what the "
    "GPU has free now; on a CPU no limit]",
)
@click.option(
    "--for",
    "target",
    callback=parse_target,
    metavar="cpu|CC",
    help="What to plan for: cpu, or a GPU of a compute capability such as 9.0, which need not be "
    "here. [default: what this process runs on]",
)
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
@click.option(
    "--allow-foreign-profile",
    is_flag=True,
    help="Go by the profile even where it is of another device or cuDNN version.",
)
def make(
    model: str,
    profile_path: str,
    output_path: str,
    batch: tuple[int, ...],
    inference: bool,
    training: bool,
    image_size: tuple[int, int] | None,
    memory_budget_bytes: int | None,
    target: str | None,
    allow_tf32: bool,
    deterministic: bool,
    allow_foreign_profile: bool,
) -> None:
    """Plans MODEL, and says what to expect of the plan.

    MODEL is the name of a Keras application (ResNet50), a .keras or .h5 file, the folder of a
    SavedModel, a GraphDef in a .pb or .pbtxt file, or module:function, which is called without
    arguments and gives a Keras model, a function or a GraphDef.
    """
    if not inference and not training:
        raise click.UsageError("Expected --inference or --training, got neither.")
    if not pathlib.Path(output_path).resolve().parent.is_dir():
        raise click.UsageError(f"Expected a folder that exists, got '{output_path}'.")
    with errors_shown():
        profile = load_profile(profile_path)
        # Of TensorFlow's own messages only errors.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        with Console(stderr=True).status("Importing TensorFlow") as status:
            from tf_interop.use.models.load_model import ModelArgumentError, load_model
            from tf_interop.use.planning.make_plan_of_model import plan as plan_model

            try:
                status.update(f"Loading {model}")
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
                        say=lambda text: status.update(text),
                    )
                    for step, is_wanted in steps.items()
                    if is_wanted
                }
            except ModelArgumentError as error:
                raise click.BadParameter(str(error), param_hint="MODEL") from error
            except ValueError as error:
                raise click.UsageError(str(error)) from error
        labels = [step for step, each in plans.items() for _ in each.graphs]
        made = _joined(plans.values())
        save_plan(made, output_path)
    show_plan(made, Console(), labels)
    click.echo(f"{output_path}: {sum(len(graph.stages) for graph in made.graphs)} stages")


@plan.command(epilog=_EXIT_CODES)
@click.argument("file", metavar="PLAN")
def explain(file: str) -> None:
    """Says, stage by stage, why PLAN is as it is.

    For each stage: the algorithm of each lane, what it takes alone and together, whether that was
    measured or modelled, memory, what its kernels take of a streaming multiprocessor (SM), and
    other algorithms, with the reason why they were not taken.
    """
    with errors_shown():
        explain_stages(load_plan(file), Console())


@plan.command(epilog=_EXIT_CODES)
@click.argument("file", metavar="PLAN")
def check(file: str) -> None:
    """Checks that PLAN is a legal plan; says where it is not.

    Whether its stages suit a graph is checked whenever the plan is made or used.
    """
    with errors_shown():
        loaded = load_plan(file)
    show_plan(loaded, Console())
    click.echo(f"{file}: legal, for {len(loaded.graphs)} graphs")


@plan.command("compare-model", epilog=_EXIT_CODES, short_help="Compares model and measurements.")
@click.argument("file", metavar="PROFILE")
@click.option(
    "--tf32/--no-tf32",
    "allow_tf32",
    default=True,
    show_default=True,
    help="Which stages: measured with TF32 or without.",
)
def compare_model(file: str, allow_tf32: bool) -> None:
    """Models every measured stage of PROFILE, and prints how far off that is.

    The model sees the kernels of each algorithm, as measured alone, and not the stages.
    """
    with errors_shown():
        profile = load_profile(file)
        problem = problem_of_profile(profile, allow_tf32=allow_tf32)
        compared = compare_with_model(problem)
        if not compared:
            raise ProfileError(_why_not_comparable(file, profile, len(problem.stages)))
    show_comparison(problem, compared, Console())


@plan.command(epilog=_EXIT_CODES)
def schema() -> None:
    """Prints the JSON schema of plans."""
    click.echo(json.dumps(plan_schema(), indent=2))


def _joined(plans: Iterable[Plan]) -> Plan:
    each = list(plans)
    graphs = tuple(graph for part in each for graph in part.graphs)
    return Plan(graphs, made_with=each[0].made_with)


def _why_not_comparable(file: str, profile: Profile, stage_count: int) -> str:
    if profile.device.sm_limits is None:
        return (
            f"Expected a profile of a GPU in '{file}', got one of {profile.device.name}, which has "
            "no SMs to model. Measure on a GPU."
        )
    return (
        f"Expected measured stages of convolutions whose kernels are known in '{file}', got "
        f"{stage_count} stages, none of them so. Measure with --stages levels,pairs and "
        "--trace-kernels."
    )
