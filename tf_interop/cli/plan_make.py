"""The command `tf-interop plan make`: plans a model by its profile."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console

from tf_interop.cli.arguments import (
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
from tf_interop.cli.result import Result, command
from tf_interop.errors import ProfileError
from tf_interop.model.missing_measurements import (
    Asked,
    describe_profile,
    missing_of,
    profile_command,
)
from tf_interop.model.progress import work_on_model
from tf_interop.plan.file import save_plan
from tf_interop.plan.overview import GraphLabel, has_figures, show_plan
from tf_interop.plan.summary import summarize_graph
from tf_interop.plan.types import GraphPlan, Plan
from tf_interop.profile.file import load_profile
from tf_interop.profile.types import Profile

_INFERENCE = "inference"
_TRAINING = "training step"

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


@dataclasses.dataclass(frozen=True, slots=True)
class _StepPlan:
    """A graph's plan, and what is run of the model there."""

    step: str
    graph: GraphPlan


class _ProfileOption(click.Option):
    """`--profile`, which says how to make one."""

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Refuses that it is missing, with the command that measures what is asked for."""
        try:
            return super().process_value(ctx, value)
        except click.MissingParameter as error:
            # What was given has been read before what is missing.
            given = ctx.params
            asked = Asked(
                given.get("model") or "MODEL",
                given.get("batch") or (1,),
                training=bool(given.get("training")),
                image_size=given.get("image_size"),
            )
            how = f"Make one with: {profile_command(asked)}"
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
        steps = {_INFERENCE: inference, _TRAINING: training}
        plans = {
            step: plan_model(
                loaded,
                profile,
                batch_sizes=batch,
                training=step == _TRAINING,
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
    asked = Asked(model, batch, inference, training, image_size, allow_tf32, deterministic)
    planned = [_StepPlan(step, graph) for step, each in plans.items() for graph in each.graphs]
    is_elsewhere = target is not None or allow_foreign_profile
    measurable = _Measurable(asked, profile_path, profile, is_elsewhere=is_elsewhere)
    if not any(has_figures(each.graph) for each in planned):
        raise ProfileError(measurable.describe_nothing_known(planned))
    made_with = next(iter(plans.values())).made_with
    return _answer(planned, made_with, measurable, output_path)


def _answer(
    planned: Sequence[_StepPlan],
    made_with: dict[str, str],
    measurable: _Measurable,
    path: pathlib.Path,
) -> Result:
    """Saves the plans of all steps as one."""
    graphs = tuple(each.graph for each in planned)
    made = Plan(graphs, made_with=made_with)
    save_plan(made, path)

    def show() -> None:
        labels = [GraphLabel(each.step, measurable.say_missing(each)) for each in planned]
        show_plan(made, Console(), labels)
        if any(label.missing for label in labels):
            # Not wrapped as the rest is: it is there to be copied.
            click.echo(measurable.say_how_to_measure())
        click.echo(f"{path}: {sum(len(graph.stages) for graph in graphs)} stages")

    summary = [{"step": each.step, **summarize_graph(each.graph)} for each in planned]
    return Result({"plan": str(path), "graphs": summary}, show)


@dataclasses.dataclass(frozen=True, slots=True)
class _Measurable:
    """What there is to measure for a plan.

    Attributes:
        asked: what was to be planned.
        path: of the profile.
        profile: that it was planned by.
        is_elsewhere: whether the profile need not be of this machine.
    """

    asked: Asked
    path: pathlib.Path
    profile: Profile
    is_elsewhere: bool

    def describe_nothing_known(self, planned: Sequence[_StepPlan]) -> str:
        """The error where the profile holds no convolution of any graph."""
        lines = [
            f"Expected a profile of '{self.asked.model}', got '{self.path}', which holds none of "
            f"its convolutions. The profile has {describe_profile(self.profile)}."
        ]
        lines += [f"{_name(each)}: {self.say_missing(each)}" for each in planned]
        return "\n".join([*lines, self.say_how_to_measure()])

    def say_missing(self, each: _StepPlan) -> str:
        """What the profile lacks of a graph; empty where it lacks nothing."""
        prediction = each.graph.prediction
        if prediction is None or not prediction.unmeasured_count:
            return ""
        return missing_of(
            each.graph,
            training=each.step == _TRAINING,
            profile=self.profile,
            asked=self.asked,
        )

    def say_how_to_measure(self) -> str:
        """The command that measures what is missing."""
        where = f" on {self.profile.device.name}" if self.is_elsewhere else ""
        return f"Measure{where}: {profile_command(self.asked, self.path, self.profile)}"


def _name(each: _StepPlan) -> str:
    size = each.graph.batch_size
    return each.step if size is None else f"{each.step}, batch {size}"
