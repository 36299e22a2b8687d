"""The command `tf-interop profile`: measures what a model computes, and keeps what was measured."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console

from tf_interop.decide.measuring.pair_figures import count_pairs
from tf_interop.errors import ProfileError
from tf_interop.know.installed.core_library import load_core_library
from tf_interop.know.installed.measuring import AlgorithmScope, MeasureOptions
from tf_interop.know.installed.measuring_backend import MeasuringBackend
from tf_interop.know.installed.nvidia import visible_gpus
from tf_interop.know.installed.profiled_device import identify_device
from tf_interop.know.plans.plan_file import load_plan
from tf_interop.know.profiles.configuration_list import ConfigurationList, merge_lists
from tf_interop.know.profiles.configuration_list_file import (
    load_configurations,
    save_configurations,
)
from tf_interop.know.profiles.foreign_device import why_foreign
from tf_interop.know.profiles.nsight_compute import add_nsight_figures, read_nsight_csv
from tf_interop.know.profiles.profile import Profile, ProfiledDevice
from tf_interop.know.profiles.profile_entries import Entry
from tf_interop.know.profiles.profile_file import load_profile, profile_schema, save_profile
from tf_interop.know.profiles.profile_journal import ProfileJournal, journal_path
from tf_interop.know.profiles.profile_merge import diff_profiles, merge_profiles
from tf_interop.use.budget import parse_budget
from tf_interop.use.command_arguments import (
    DefaultGroup,
    errors_shown,
    image_size_option,
    parse_batches,
    parse_target,
)
from tf_interop.use.profiling.profile_jobs import RunOptions
from tf_interop.use.profiling.profile_progress import shown_progress
from tf_interop.use.profiling.profile_run import End, Outcome, ProfileRun
from tf_interop.use.profiling.profile_tables import (
    show_difference,
    show_nsight_import,
    show_profile,
)

# TensorFlow is imported only where a model has to be traced: a saved list is measured without it.

_AS_IT_IS = "\b\n"
_EXIT_CODES = f"""{_AS_IT_IS}Exit codes:
  0    success; also where the budget was over before everything was measured
  1    an error that tf_interop reports
  2    wrong usage
  3    the device failed while it was measured on: the same command goes on behind what it failed at
  130  stopped by Ctrl-C, 143 by SIGTERM: what was measured is in the profile"""
_GROUP_EPILOG = f"""{_AS_IT_IS}Examples:
  tf-interop profile ResNet50 --batch 1,8 --budget 10m -o profile.json
  tf-interop profile measure --help
  tf-interop profile show profile.json
  tf-interop profile diff before.json after.json

{_EXIT_CODES}"""
_MEASURE_EPILOG = f"""{_AS_IT_IS}Examples:
  tf-interop profile InceptionV3 --batch 1,8,32 --training --budget 10m -o profile.json
  tf-interop profile my_package.models:build --dtype mixed_float16 -o profile.json
  tf-interop profile ResNet50 --stages plan.json -o profile.json

{_AS_IT_IS}On two machines, the second without TensorFlow:
  tf-interop profile ResNet50 --for 9.0 --export-configurations list.json
  tf-interop profile list.json --budget 10m -o profile.json

{_AS_IT_IS}A model that is named like a command:
  tf-interop profile measure show -o profile.json

{_EXIT_CODES}"""

_COLLECTING = ("batch", "dtype", "inference", "training", "image_size", "layout", "target")


def _parse_budget(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> float | None:
    if value is None:
        return None
    try:
        return parse_budget(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@dataclasses.dataclass(frozen=True)
class _StageChoice:
    """What `--stages` says.

    Attributes:
        sources: of `levels`, `pairs` and `merges` those that are asked for.
        plan_path: a plan's file, or None.
    """

    sources: tuple[str, ...]
    plan_path: str | None


def _parse_stages(_context: click.Context, _parameter: click.Parameter, value: str) -> _StageChoice:
    words = value.split(",")
    plans = [word for word in words if word.endswith(".json")]
    sources = tuple(word for word in words if word in ("levels", "pairs", "merges"))
    unknown = set(words) - set(plans) - set(sources) - {"none"}
    if unknown or len(plans) > 1 or ("none" in words and len(words) > 1):
        raise click.BadParameter(
            f"Expected levels, pairs, merges, a plan's file or several of these, or none, got "
            f"'{value}'."
        )
    return _StageChoice(sources, plans[0] if plans else None)


def _parse_algorithms(
    _context: click.Context, _parameter: click.Parameter, value: str
) -> AlgorithmScope | tuple[str, ...]:
    try:
        return AlgorithmScope(value)
    except ValueError:
        return tuple(dict.fromkeys(name for name in value.split(",") if name))


@click.group(cls=DefaultGroup, default_command="measure", epilog=_GROUP_EPILOG)
def profile() -> None:
    """Measures convolutions and stages of models, and shows what was measured.

    `tf-interop profile MODEL… -o profile.json` is short for `tf-interop profile measure MODEL…`.
    """


@profile.command(epilog=_MEASURE_EPILOG)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    "output_path",
    type=click.Path(dir_okay=False),
    metavar="PROFILE.json",
    help="The profile. One that is there is gone on with.",
)
@click.option(
    "--export-configurations",
    "list_path",
    type=click.Path(dir_okay=False),
    metavar="LIST.json",
    help="Write the list of what would be measured. Without -o nothing is measured.",
)
@click.option(
    "--batch",
    default="1",
    show_default=True,
    callback=parse_batches,
    metavar="N,…",
    help="Batch sizes.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64", "mixed_float16", "mixed_bfloat16"]),
    help="Keras' policy for a model that is built here.",
)
@click.option(
    "--inference/--no-inference",
    default=True,
    show_default=True,
    help="Whether to take what inference computes.",
)
@click.option("--training", is_flag=True, help="Take what a training step computes, too.")
@image_size_option
@click.option(
    "--layout",
    type=click.Choice(["as-is", "NHWC", "NCHW", "both"]),
    default="as-is",
    show_default=True,
    help="The layout to measure in; as-is is the graph's own.",
)
@click.option(
    "--for",
    "target",
    callback=parse_target,
    metavar="cpu|CC",
    help="What the graph is made for: cpu, or a GPU of a compute capability such as 9.0, which "
    "need not be here. [default: this machine's GPU, else cpu]",
)
@click.option(
    "--stages",
    "stage_choice",
    default="levels,pairs,merges",
    show_default=True,
    callback=_parse_stages,
    metavar="levels,pairs,merges,PLAN.json|none",
    help="levels: the groups that a profile is looked up for. pairs: independent convolutions. "
    "merges: convolutions on one image as one wider convolution. PLAN.json: the stages of a plan "
    "for the model.",
)
@click.option(
    "--max-pairs",
    default=32,
    show_default=True,
    type=click.IntRange(min=0),
    help="The most pairs of one graph; those with most to gain are taken.",
)
@click.option(
    "--algorithms",
    default="all",
    show_default=True,
    callback=_parse_algorithms,
    metavar="heuristic|all|knobs|NAME,…",
    help="heuristic: what the backend would consider. all: every algorithm. knobs: also with "
    "settings moved. Or names.",
)
@click.option(
    "--pair-algorithms",
    default=3,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many algorithms of each convolution of a pair to combine.",
)
@click.option(
    "--budget",
    callback=_parse_budget,
    metavar="TIME",
    help="When to stop, such as 90s, 10m or 1.5h. The most useful is measured first.",
)
@click.option(
    "--tf32",
    type=click.Choice(["on", "off", "both"]),
    default="on",
    show_default=True,
    help="Whether float32 may be computed in TF32.",
)
@click.option(
    "--backend",
    "backend_name",
    type=click.Choice(["cudnn", "host"]),
    help="What measures. [default: cudnn where there is a GPU, else host]",
)
@click.option("--repetitions", default=20, show_default=True, type=click.IntRange(min=1))
@click.option("--warmup-runs", default=3, show_default=True, type=click.IntRange(min=0))
@click.option(
    "--workspace-limit",
    "workspace_mebibytes",
    default=1024,
    show_default=True,
    type=click.IntRange(min=0),
    metavar="MIB",
    help="The most that one convolution may need.",
)
@click.option(
    "--trace-kernels/--no-trace-kernels",
    default=True,
    show_default=True,
    help="Whether to name the GPU kernels of each algorithm.",
)
@click.pass_context
def measure(
    context: click.Context,
    /,
    models: tuple[str, ...],
    output_path: str | None,
    list_path: str | None,
    backend_name: str | None,
    budget: float | None,
    algorithms: AlgorithmScope | tuple[str, ...],
    pair_algorithms: int,
    tf32: str,
    repetitions: int,
    warmup_runs: int,
    workspace_mebibytes: int,
    trace_kernels: bool,
    **collecting: Any,
) -> None:
    """Measures the convolutions of MODELs, alone and in stages.

    MODEL is the name of a Keras application (ResNet50), a .keras or .h5 file, the folder of a
    SavedModel, a GraphDef in a .pb or .pbtxt file, module:function, which is called without
    arguments and gives a Keras model, a function or a GraphDef; or a .json file that
    --export-configurations wrote, which needs no TensorFlow.

    Every measurement is on disk before the next begins: a run that was killed goes on when the same
    command is given again.
    """
    if output_path is None and list_path is None:
        raise click.UsageError("Expected -o or --export-configurations, got neither.")
    for path in (output_path, list_path):
        if path is not None and not pathlib.Path(path).resolve().parent.is_dir():
            raise click.UsageError(f"Expected a folder that exists, got '{path}'.")
    with errors_shown():
        is_host = backend_name == "host"
        configurations = _collect(context, models, is_host, collecting)
        if list_path is not None:
            save_configurations(configurations, list_path)
            _say_list(configurations, list_path)
        if output_path is None:
            return
        backend = _open_backend(backend_name)
        scope = algorithms if isinstance(algorithms, AlgorithmScope) else AlgorithmScope.ALL
        options = RunOptions(
            scope=scope,
            algorithms=() if isinstance(algorithms, AlgorithmScope) else algorithms,
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
        exit_code = _measure_into(output_path, backend, configurations, options)
    context.exit(exit_code)


@profile.command(epilog=_EXIT_CODES)
@click.argument("file")
@click.option("--like-paper", is_flag=True, help="In the form of the paper's Tables 1 and 2.")
def show(file: str, like_paper: bool) -> None:
    """Shows what the profile FILE holds."""
    with errors_shown():
        _show(load_profile(file), like_paper=like_paper)


@profile.command(epilog=_EXIT_CODES)
@click.argument("file")
def check(file: str) -> None:
    """Checks that FILE is a legal profile; says where it is not."""
    with errors_shown():
        loaded = load_profile(file)
    click.echo(
        f"{file}: {len(loaded.algorithms)} measurements of algorithms and {len(loaded.stages)} of "
        f"stages, {len(loaded.algorithm_failures) + len(loaded.stage_failures)} failures, on "
        f"{loaded.device.name}, {loaded.device.date}"
    )


@profile.command(epilog=_EXIT_CODES, short_help="Puts profiles of one device into one.")
@click.argument("files", metavar="FILE FILE...", nargs=-1, required=True)
@click.option("-o", "--output", "output_path", required=True, type=click.Path(dir_okay=False))
def merge(files: tuple[str, ...], output_path: str) -> None:
    """Puts profiles of one device into one; of two measurements of one thing the later counts."""
    with errors_shown():
        save_profile(merge_profiles([load_profile(file) for file in files]), output_path)


@profile.command(epilog=_EXIT_CODES, short_help="Compares two profiles.")
@click.argument("first")
@click.argument("second")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diff(first: str, second: str, as_json: bool) -> None:
    """Says how the profile SECOND differs from FIRST, by more than the spread."""
    with errors_shown():
        difference = diff_profiles(load_profile(first), load_profile(second))
    if as_json:
        click.echo(json.dumps(difference.to_json(), indent=2))
    else:
        show_difference(difference, Console())


@profile.command(epilog=_EXIT_CODES)
def schema() -> None:
    """Prints the JSON schema of profiles."""
    click.echo(json.dumps(profile_schema(), indent=2))


@profile.command("import-ncu", epilog=_EXIT_CODES, short_help="Adds what Nsight Compute found out.")
@click.argument("file", metavar="PROFILE")
@click.argument("csv")
@click.option(
    "-o",
    "--output",
    "output_path",
    type=click.Path(dir_okay=False),
    help="Where to write the profile. [default: PROFILE itself]",
)
def import_ncu(file: str, csv: str, output_path: str | None) -> None:
    """Adds what Nsight Compute found out about kernels, from the CSV that `ncu --csv` prints.

    Kernels are matched by function, grid and block. Fails where none of the CSV is in PROFILE.
    """
    with errors_shown():
        imported = add_nsight_figures(load_profile(file), read_nsight_csv(csv))
        if not imported.matched:
            raise ProfileError(
                f"Expected kernels of profile '{file}' in '{csv}', got none of "
                f"{len(imported.not_in_profile)} launches. Run ncu on what the profile measured."
            )
        save_profile(imported.profile, output_path or file)
    show_nsight_import(imported)


def _collect(
    context: click.Context, models: tuple[str, ...], is_host: bool, collecting: dict[str, Any]
) -> ConfigurationList:
    """The list of all models, in the order given."""
    stages: _StageChoice = collecting["stage_choice"]
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
        if parameter.name in _COLLECTING and source is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(
                f"Expected no {parameter.opts[0]} with a list of configurations alone. It was "
                "chosen when the list was made."
            )


def _collect_model(model: str, is_host: bool, collecting: dict[str, Any]) -> ConfigurationList:
    # Of TensorFlow's own messages only errors.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    progress = Console(stderr=True)
    with progress.status("Importing TensorFlow") as status:
        try:
            from tf_interop.use.models.load_model import ModelArgumentError
            from tf_interop.use.profiling.collect_configurations import (
                CollectOptions,
                StageSource,
                collect_configurations,
            )
        except ImportError as error:
            raise click.ClickException(
                f"Expected to import TensorFlow for '{model}', got: {error}. Install it, or make a "
                "list with --export-configurations where it is."
            ) from error

        stages: _StageChoice = collecting["stage_choice"]
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
        try:
            collected = collect_configurations([model], options, say=status.update)
        except ModelArgumentError as error:
            raise click.BadParameter(str(error), param_hint="MODEL") from error
        except ValueError as error:
            raise click.UsageError(str(error)) from error
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


def _open_backend(name: str | None) -> MeasuringBackend:
    return load_core_library().open_backend(name or ("cudnn" if visible_gpus() else "host"))


def _measure_into(
    output_path: str,
    backend: MeasuringBackend,
    configurations: ConfigurationList,
    options: RunOptions,
) -> int:
    """Measures, writes the profile, and says how it went; returns the exit code."""
    device = identify_device(backend.describe())
    before = _entries_before(output_path, device)
    with ProfileJournal.open(journal_path(output_path), device) as journal, _stopping() as stop:
        kept = journal.entries.entries
        if before or kept:
            click.echo(f"Going on with {len({*before, *kept})} measurements of before.", err=True)
        run = ProfileRun(
            backend,
            configurations,
            options,
            known=(*before, *kept),
            device=device,
            keep=journal.append,
            should_stop=lambda: stop.signal is not None,
        )
        with shown_progress(run) as listener:
            outcome = run.run(listener)
        whole = journal.finish(output_path)
    _show(whole, like_paper=False)
    _say_outcome(outcome, output_path)
    if outcome.end is End.DEVICE_LOST:
        return 3
    return 0 if stop.signal is None else 128 + stop.signal


def _entries_before(output_path: str, device: ProfiledDevice) -> tuple[Entry, ...]:
    if not pathlib.Path(output_path).exists():
        return ()
    before = load_profile(output_path)
    difference = why_foreign(before.device, device)
    if difference is not None:
        raise ProfileError(
            f"Expected profile '{output_path}' to be of this device, got one of another: "
            f"{difference}. Choose another file."
        )
    return before.entries


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


def _show(shown: Profile, *, like_paper: bool) -> None:
    show_profile(shown, Console(), like_paper=like_paper)
    if not like_paper:
        click.echo(str(count_pairs(shown)))


def _say_list(configurations: ConfigurationList, path: str) -> None:
    click.echo(
        f"{path}: {len(configurations.convolutions)} convolutions and "
        f"{len(configurations.stages)} stages"
    )


def _say_outcome(outcome: Outcome, output_path: str) -> None:
    for note in outcome.notes:
        click.echo(note, err=True)
    click.echo(
        f"{output_path}: {outcome.measured_count} measured now, {outcome.failure_count} failed"
    )
    if outcome.end is not End.FINISHED:
        left = f" Left: {', '.join(outcome.left)}." if outcome.left else ""
        click.echo(f"Ended because {outcome.end.value}.{left} The same command goes on from here.")
