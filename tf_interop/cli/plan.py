"""The command `tf-interop plan`: plans a model from its profile."""

from __future__ import annotations

import pathlib
import shlex
import sys
from typing import Any

import click
from rich.console import Console

from tf_interop.cli import options
from tf_interop.cli.main import Result, command
from tf_interop.cli.progress import model_loaded
from tf_interop.errors import ProfileError
from tf_interop.planning.lookup import STAGES_NEED_GPUS
from tf_interop.planning.show import predicted, show_plan, summarize_graph
from tf_interop.planning.types import Plan, save_plan
from tf_interop.profile.file import load_profile


@command(
    """
plan InceptionV3 --profile profile.json --batch 1,8,32 -o plan.json
plan my_package.models:build --profile profile.json --training -o plan.json
plan ResNet50 --profile profile.json --memory 8GB -o plan.json

For a GPU elsewhere, from a profile measured there:
plan ResNet50 --profile profile.json --for 9.0 -o plan.json
""",
)
@options.model
@options.profile(
    "The profile of MODEL with these batch sizes, from tf-interop profile.",
    required=True,
)
@options.output(
    "PLAN.json", "The plan, for tf-interop run --plan and enable(plan=…).", required=True
)
@options.steps
@options.jit_compile
@click.option(
    "--memory",
    "memory_budget_bytes",
    type=options.SIZE,
    help="The memory for outputs of convolutions and workspaces, such as 8GB or 512MiB. "
    "[default: the GPU's free memory; on a CPU no limit]",
)
@options.target("The device to plan for", "this process's device")
@click.option(
    "--tf32/--no-tf32",
    "allow_tf32",
    default=True,
    help="TensorFlow's switch for TF32 when the plan is used.",
)
@click.option(
    "--deterministic",
    is_flag=True,
    help="Leave out algorithms whose results vary from run to run, as TensorFlow's op "
    "determinism requires.",
)
@click.option(
    "--allow-foreign-profile",
    is_flag=True,
    help="Use the profile even if it is for another device or cuDNN version.",
)
def plan(
    model: str,
    profile_path: pathlib.Path,
    output_path: pathlib.Path,
    inference: bool,
    training: bool,
    **chosen: Any,
) -> Result:
    """Plans which convolutions of MODEL run together.

    It prints the expected times of the stages; tf-interop show explains the stages.
    """
    modes = options.modes_of(inference, training)
    profile = load_profile(profile_path)
    if profile.device.backend == "host":
        click.echo(f"'{profile_path}' is of a CPU, but {STAGES_NEED_GPUS}.", err=True)
    with model_loaded(model, chosen["image_size"], training=training) as (loaded, say):
        from tf_interop.model.make_plan import plan as plan_model

        plans = [
            plan_model(loaded, profile, training=is_training, say=say, **chosen)
            for is_training in modes
        ]
    graphs = tuple(graph for each in plans for graph in each.graphs)
    named = {"model": model, "command": shlex.join(["tf-interop", *sys.argv[1:]])}
    made = Plan(graphs, made_with=plans[0].made_with | named)
    if not any(map(predicted, graphs)):
        raise ProfileError(
            f"The profile '{profile_path}' has no convolution of '{model}'. Run tf-interop "
            "profile with the same options first."
        )
    save_plan(made, output_path)

    def show() -> None:
        show_plan(made, Console())
        click.echo(f"{output_path}: {sum(len(graph.stages) for graph in graphs)} stages")

    return Result({"plan": output_path, "graphs": [*map(summarize_graph, graphs)]}, show)
