"""The command `tf-interop profile measure`: measures what a model computes."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import click

from tf_interop.cli.arguments import models_argument, output_option, written_option
from tf_interop.cli.profile_options import (
    COLLECTING,
    StageChoice,
    collecting_options,
    measuring_options,
)
from tf_interop.cli.profile_progress import shown_progress
from tf_interop.cli.result import Result, command
from tf_interop.measure.backend import AlgorithmScope, Backend, MeasureOptions
from tf_interop.measure.core_library import load_core_library
from tf_interop.measure.device import identify_device
from tf_interop.measure.jobs import RunOptions
from tf_interop.measure.nvidia import visible_gpus
from tf_interop.measure.run import End, Outcome, ProfileRun
from tf_interop.model.progress import work_on_model
from tf_interop.planning.file import load_plan
from tf_interop.profile.file import open_profile
from tf_interop.profile.summary import next_commands, show_summary
from tf_interop.profile.tables import show_profile
from tf_interop.profile.types import Profile
from tf_interop.profile.worklist import ConfigurationList, merge_lists
from tf_interop.profile.worklist_file import (
    load_configurations,
    save_configurations,
)

# TensorFlow is imported only where a model has to be traced: a saved list is measured without it.

EXIT_CODES = {
    0: "success; also where the budget was over before everything was measured",
    3: "the device failed: the same command goes on after what it failed at",
    130: "stopped by Ctrl-C, 143 by SIGTERM: what was measured is in the profile",
}
_EXAMPLES = """
profile InceptionV3 --batch 1,8,32 --training --budget 10m -o profile.json
profile my_package.models:build --dtype mixed_float16 -o profile.json
profile ResNet50 --stages plan.json -o profile.json

On two machines, the second without TensorFlow:
profile ResNet50 --for 9.0 --export-configurations list.json
profile list.json --budget 10m -o profile.json

A model that is named like a command:
profile measure show -o profile.json
"""


@command(_EXAMPLES, short_help="Measures convolutions alone and in stages.")
@models_argument
@output_option(
    "PROFILE.json", "The profile. One that is there is gone on with.", is_gone_on_with=True
)
@written_option(
    "--export-configurations",
    "list_path",
    "LIST.json",
    "Write the list of what would be measured. Without -o nothing is measured.",
)
@collecting_options
@measuring_options
@click.pass_context
def measure(
    context: click.Context,
    /,
    models: tuple[str, ...],
    output_path: pathlib.Path | None,
    list_path: pathlib.Path | None,
    backend_name: str | None,
    budget: float | None,
    algorithms: AlgorithmScope | tuple[str, ...],
    pair_algorithms: int,
    tf32: str,
    repetitions: int,
    warmup_runs: int,
    workspace_mebibytes: int,
    trace_kernels: bool,
    tables: bool,
    **collecting: Any,
) -> Result:
    """Measures the convolutions of MODELs, alone and in stages.

    Every measurement is on disk before the next begins: a run that was killed goes on when the same
    command is given again.
    """
    if output_path is None and list_path is None:
        raise click.UsageError("Expected -o or --export-configurations, got neither.")
    configurations = _collect(context, models, backend_name == "host", collecting)
    if list_path is not None:
        save_configurations(configurations, list_path)
    listed = {
        "configurations": list_path and str(list_path),
        "convolutions": len(configurations.convolutions),
        "stages": len(configurations.stages),
    }
    measured: _Measured | None = None
    if output_path is not None:
        backend = load_core_library().open_backend(
            backend_name or ("cudnn" if visible_gpus() else "host")
        )
        options = RunOptions(
            algorithms=algorithms,
            tf32={"on": (True,), "off": (False,), "both": (True, False)}[tf32],
            pair_algorithms=pair_algorithms,
            measure=MeasureOptions(
                warmup_runs=warmup_runs,
                repetitions=repetitions,
                workspace_limit_bytes=workspace_mebibytes << 20,
                trace_kernels=trace_kernels,
            ),
            budget_seconds=budget,
        )
        measured = _measure_into(output_path, backend, configurations, options)

    def show() -> None:
        if list_path is not None:
            counts = "{convolutions} convolutions and {stages} stages".format(**listed)
            click.echo(f"{list_path}: {counts}")
        if measured is not None:
            _show_measured(measured, next_commands(models, measured.path, collecting), tables)

    if measured is None:
        return Result(listed | _NOT_MEASURED, show)
    return Result(listed | measured.document(), show, exit_code=measured.exit_code)


@dataclasses.dataclass(frozen=True)
class _Measured:
    """What came of measuring.

    Attributes:
        path: the profile's file.
        profile: all that is in it now.
        outcome: how the run ended.
        exit_code: what the process is to end with.
    """

    path: str
    profile: Profile
    outcome: Outcome
    exit_code: int

    def document(self) -> dict[str, Any]:
        return {
            "profile": self.path,
            "measured": self.outcome.measured_count,
            "failed": self.outcome.failure_count,
            "end": self.outcome.end.name.lower(),
            "left": self.outcome.left,
        }


_NOT_MEASURED = dict.fromkeys(("profile", "measured", "failed", "end", "left"))


def _show_measured(measured: _Measured, next_commands: list[str], tables: bool) -> None:
    if tables:
        show_profile(measured.profile)
    else:
        show_summary(measured.profile, measured.path)
    click.echo(_describe_outcome(measured.outcome, measured.path))
    if measured.outcome.end is End.FINISHED or measured.outcome.end is End.OUT_OF_TIME:
        for command in next_commands:
            click.echo(f"Next: {command}")


def _describe_outcome(outcome: Outcome, path: str) -> str:
    text = f"{path}: {outcome.measured_count} measured now, {outcome.failure_count} failed"
    if outcome.end is End.FINISHED:
        return text
    left = f" Left: {', '.join(outcome.left)}." if outcome.left else ""
    return f"{text}\nEnded because {outcome.end.value}.{left} The same command goes on from here."


def _collect(
    context: click.Context, models: tuple[str, ...], is_host: bool, collecting: dict[str, Any]
) -> ConfigurationList:
    """The list of all models, in the order given."""
    stages: StageChoice = collecting["stage_choice"]
    files = [model for model in models if model.endswith(".json")]
    if len(files) == len(models):
        _refuse_collecting_options(context)
        if stages.plan_path is not None:
            raise click.UsageError("Expected --stages PLAN.json with a model, got lists alone.")
    lists = []
    for model in models:
        if model in files:
            loaded = load_configurations(model)
            keeps_stages = bool(stages.sources or stages.plan_path)
            lists.append(loaded if keeps_stages else dataclasses.replace(loaded, stages=()))
        else:
            lists.append(_collect_model(model, is_host, collecting))
    return merge_lists(lists)


def _refuse_collecting_options(context: click.Context) -> None:
    """A list is what it is; an option that would do nothing is a mistake."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in COLLECTING and source is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(
                f"Expected no {parameter.opts[0]} with a list of configurations alone. It was "
                "chosen when the list was made."
            )


def _collect_model(model: str, is_host: bool, collecting: dict[str, Any]) -> ConfigurationList:
    hint = "Install it, or make a list with --export-configurations where it is."
    with work_on_model(model, hint=hint) as status:
        from tf_interop.model.collect import (
            CollectOptions,
            StageSource,
            collect_configurations,
        )

        stages: StageChoice = collecting["stage_choice"]
        layout = collecting["layout"]
        options = CollectOptions(
            batch_sizes=collecting["batch"],
            dtype=collecting["dtype"],
            inference=collecting["inference"],
            training=collecting["training"],
            image_size=collecting["image_size"],
            layouts={"as-is": (), "both": ("NHWC", "NCHW")}.get(layout, (layout,)),
            compute_capability=_compute_capability(collecting["target"], is_host),
            stage_sources=tuple(map(StageSource, stages.sources)),
            max_pairs=collecting["max_pairs"],
            plan=None if stages.plan_path is None else load_plan(stages.plan_path),
        )
        collected = collect_configurations([model], options, say=status.update)
    for note in collected.notes:
        click.echo(note, err=True)
    return collected.configurations


def _compute_capability(target: str | None, is_host: bool) -> str | None:
    if target == "cpu" or (target is None and is_host):
        return None
    if target is not None:
        return target
    gpus = visible_gpus()
    return gpus[0].compute_capability if gpus else None


def _measure_into(
    output_path: pathlib.Path,
    backend: Backend,
    configurations: ConfigurationList,
    options: RunOptions,
) -> _Measured:
    """Measures, and appends to the profile."""
    device = identify_device(backend.describe())
    with open_profile(output_path, device) as file, _stopping() as stop:
        before = file.profile.entries
        if before:
            click.echo(f"Going on with {len(before)} measurements of before.", err=True)
        run = ProfileRun(
            backend,
            configurations,
            options,
            before=before,
            device=device,
            keep=file.append,
            should_stop=lambda: stop.signal is not None,
        )
        with shown_progress() as say:
            outcome = run.run(say)
    for note in outcome.notes:
        click.echo(note, err=True)
    exit_code = 0 if stop.signal is None else 128 + stop.signal
    exit_code = 3 if outcome.end is End.DEVICE_LOST else exit_code
    return _Measured(str(output_path), file.profile, outcome, exit_code)


@dataclasses.dataclass
class _Stop:
    """Which signal has asked for an end, if any."""

    signal: int | None = None


@contextlib.contextmanager
def _stopping() -> Iterator[_Stop]:
    """Has Ctrl-C and SIGTERM end the run after the measurement in hand; a second Ctrl-C at once."""
    stop = _Stop()

    def ask(number: int, _frame: object) -> None:
        if stop.signal is not None:
            raise KeyboardInterrupt
        stop.signal = number
        click.echo("Stopping after this measurement …", err=True)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
