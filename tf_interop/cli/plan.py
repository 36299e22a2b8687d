"""The command `tf-interop plan`: plans a model by its profile, and says why."""

from __future__ import annotations

import dataclasses

import click
from rich.console import Console

from tf_interop.cli.plan_make import make
from tf_interop.cli.result import Result, add_schema_command, command, command_group
from tf_interop.errors import ProfileError
from tf_interop.planning.cost.calibration import calibrate_model
from tf_interop.planning.cost.calibration import compare_model as compare_with_model
from tf_interop.planning.file import load_plan, plan_schema
from tf_interop.planning.overview import show_plan, summarize_graph
from tf_interop.planning.problem_of_profile import problem_of_profile
from tf_interop.planning.tables import explain_stages, show_comparison
from tf_interop.profile.file import load_profile

_GROUP_EXAMPLES = """
plan ResNet50 --profile profile.json --batch 32 -o plan.json
plan make --help
plan explain plan.json
run --plan plan.json train.py
"""


@command_group(
    _GROUP_EXAMPLES,
    default_command="make",
    short_help="Plans which convolutions of a model run together, and says why.",
)
def plan() -> None:
    """Plans which convolutions of a model run together, and says why.

    `tf-interop plan MODEL … -o plan.json` is short for `tf-interop plan make MODEL …`.
    """


plan.add_command(make)


@command(
    "plan explain plan.json",
    group=plan,
    short_help="Says, stage by stage, why a plan is as it is.",
    reads_files=True,
)
@click.argument("file", metavar="PLAN")
def explain(file: str) -> Result:
    """Says, stage by stage, why PLAN is as it is.

    For each stage: the algorithm of each lane, what it takes alone and together, whether that was
    measured or modelled, memory, what its kernels take of a streaming multiprocessor (SM), and
    other algorithms, with the reason why they were not taken.

    With --json the whole plan, which holds all of this.
    """
    loaded = load_plan(file)
    return Result(loaded, lambda: explain_stages(loaded, Console()))


@command(
    "plan check plan.json",
    group=plan,
    short_help="Checks that a file is a legal plan.",
    reads_files=True,
)
@click.argument("file", metavar="PLAN")
def check(file: str) -> Result:
    """Checks that PLAN is a legal plan; says where it is not.

    Whether its stages suit a graph is checked whenever the plan is made or used.
    """
    loaded = load_plan(file)

    def show() -> None:
        show_plan(loaded, Console())
        click.echo(f"{file}: legal, for {len(loaded.graphs)} graphs")

    return Result({"plan": file, "graphs": [*map(summarize_graph, loaded.graphs)]}, show)


@command(
    "plan compare-model profile.json",
    group=plan,
    name="compare-model",
    short_help="Compares modelled and measured stages.",
    reads_files=True,
)
@click.argument("file", metavar="PROFILE")
@click.option(
    "--tf32/--no-tf32",
    "allow_tf32",
    default=True,
    show_default=True,
    help="Which stages: measured with TF32 or without.",
)
def compare_model(file: str, allow_tf32: bool) -> Result:
    """Models every measured stage of PROFILE, and prints how far off that is.

    The model sees the kernels of each algorithm, as measured alone, and not the stages.
    """
    profile = load_profile(file)
    problem = problem_of_profile(profile, allow_tf32=allow_tf32)
    compared = compare_with_model(problem)
    if not compared:
        if profile.device.sm_limits is None:
            raise ProfileError(
                f"Expected a profile of a GPU in '{file}', got one of {profile.device.name}, which "
                "has no SMs to model. Measure on a GPU."
            )
        raise ProfileError(
            f"Expected measured stages of convolutions whose kernels are known in '{file}', got "
            f"{len(problem.stages)} stages, none of them so. Measure with --stages levels,pairs "
            "and --trace-kernels."
        )
    document = {
        "measured_stages": len(problem.stages),
        "compared": [
            {
                "stage": each.measured.stage,
                "measured_us": each.measured.latency_us,
                "modelled_us": each.modelled_us,
            }
            for each in compared
        ],
        "calibration": dataclasses.asdict(calibrate_model(problem)),
    }
    return Result(document, lambda: show_comparison(problem, compared, Console()))


add_schema_command(plan, plan_schema, "plans")
