"""The command `tf-interop benchmark`: measures models in several ways by turns."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import itertools
import os
import pathlib
import platform
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import tf_interop
from tf_interop.know.installed.profiled_device import running_device, this_cpu
from tf_interop.know.plans.plan_file import load_plan
from tf_interop.know.profiles.profile import ProfiledDevice
from tf_interop.know.profiles.profile_file import load_profile
from tf_interop.know.results.benchmark_file import benchmark_schema, load_benchmark
from tf_interop.know.results.benchmark_result import (
    Benchmark,
    Case,
    MeasuringOptions,
    Precision,
    Step,
    Variant,
)
from tf_interop.use.benchmark.benchmark_plot import write_plot
from tf_interop.use.benchmark.benchmark_process import run_child
from tf_interop.use.benchmark.benchmark_run import (
    BenchmarkRun,
    Listener,
    PlanSource,
    RunOptions,
    new_benchmark,
)
from tf_interop.use.benchmark.benchmark_tables import show_benchmark, write_csv
from tf_interop.use.budget import parse_budget
from tf_interop.use.command_arguments import (
    DefaultGroup,
    errors_shown,
    parse_batches,
    parse_image_size,
)

_T = TypeVar("_T")

_AS_IT_IS = "\b\n"
_EXIT_CODES = f"""{_AS_IT_IS}Exit codes:
  0    success; also where the budget was over before everything was measured
  1    an error that tf_interop reports
  2    wrong usage
  3    something crashed, timed out or ran out of memory; the results say what, and hold the rest
  130  stopped by Ctrl-C, 143 by SIGTERM: what was measured is in the results"""
_GROUP_EPILOG = f"""{_AS_IT_IS}Examples:
  tf-interop benchmark ResNet50 --profile profile.json --batch 1,32 -o results.json
  tf-interop benchmark measure --help
  tf-interop benchmark show results.json --plot results.png

{_EXIT_CODES}"""
_MEASURE_EPILOG = f"""{_AS_IT_IS}Examples:
  tf-interop benchmark ResNet50 --profile profile.json --batch 1,8,32 --training -o results.json
  tf-interop benchmark ResNet50 --plan tf32=plan.json --plan float16=half.json \\
      --precision tf32,float16 -o results.json --csv results.csv --plot results.png

{_AS_IT_IS}To see it work, on any machine:
  tf-interop benchmark MobileNet --image-size 32 --policy always --repetitions 1 -o results.json

{_EXIT_CODES}"""


def _parse_members(kind: type[_T]) -> Callable[..., tuple[_T, ...]]:
    """A click callback for a list of an enumeration's values, such as `stock,ours`."""

    def parse(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[_T, ...]:
        known = {member.value: member for member in kind}  # type: ignore[attr-defined]
        words = tuple(dict.fromkeys(value.split(",")))
        unknown = [word for word in words if word not in known]
        if unknown:
            raise click.BadParameter(
                f"Expected some of {', '.join(known)}, got '{', '.join(unknown)}'."
            )
        return tuple(known[word] for word in words)

    return parse


def _parse_plans(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[Precision | None, pathlib.Path]:
    """Plan files by precision, from `tf32=plan.json`, or `plan.json` for all others."""
    plans: dict[Precision | None, pathlib.Path] = {}
    known = {member.value: member for member in Precision}
    for value in values:
        name, equals, path = value.partition("=")
        precision = known.get(name) if equals else None
        plan_path = pathlib.Path(path if precision is not None else value)
        if precision in plans:
            raise click.BadParameter(
                f"Expected one plan for each precision, got '{plans[precision]}' and '{plan_path}'."
            )
        plans[precision] = plan_path
    return plans


def _parse_time(_context: click.Context, _parameter: click.Parameter, value: str) -> float | None:
    try:
        return None if value is None else parse_budget(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_OUTPUTS = (
    click.option(
        "--csv",
        "csv_path",
        type=click.Path(dir_okay=False, path_type=pathlib.Path),
        metavar="OUT.csv",
        help="Also write a CSV file.",
    ),
    click.option(
        "--plot",
        "plot_path",
        type=click.Path(dir_okay=False, path_type=pathlib.Path),
        metavar="OUT.png",
        help="Also draw a picture, of the kind that the suffix says; needs matplotlib.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
)


def _with_outputs(command: Callable[..., None]) -> Callable[..., None]:
    return functools.reduce(lambda decorated, option: option(decorated), _OUTPUTS[::-1], command)


@click.group(cls=DefaultGroup, default_command="measure", epilog=_GROUP_EPILOG)
def benchmark() -> None:
    """Measures models with stock TensorFlow, with XLA and with the plugin, by turns.

    `tf-interop benchmark MODEL… -o out.json` is short for `tf-interop benchmark measure MODEL… …`.
    """


@benchmark.command(epilog=_MEASURE_EPILOG)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    "output_path",
    required=True,
    type=click.Path(dir_okay=False, path_type=pathlib.Path),
    metavar="RESULTS.json",
    help="The results. A file that is there is gone on with.",
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
    "--inference/--no-inference", default=True, show_default=True, help="Measure inference."
)
@click.option("--training", is_flag=True, help="Measure a training step, too.")
@click.option(
    "--precision",
    "precisions",
    default="tf32",
    show_default=True,
    callback=_parse_members(Precision),
    metavar="tf32,float32,float16,bfloat16",
    help="tf32: float32 with TensorFlow's switch for TF32 on, as it is by default. float32: with "
    "the switch off. float16, bfloat16: Keras' mixed precision.",
)
@click.option(
    "--image-size",
    callback=parse_image_size,
    metavar="N|HxW",
    help="Height and width, where the model leaves them open, is a Keras application, or a "
    "function with the argument image_size.",
)
@click.option(
    "--variants",
    default=",".join(each.value for each in Variant),
    show_default=True,
    callback=_parse_members(Variant),
    metavar="NAME,…",
    help="stock: TensorFlow as it is. xla: compiled by XLA. ours: with the plan's stages. pinning: "
    "the plan's algorithms, one after another. concurrency: the plan's lanes, no algorithm pinned.",
)
@click.option(
    "--plan",
    "plan_paths",
    multiple=True,
    callback=_parse_plans,
    metavar="[PRECISION=]PLAN.json",
    help="A plan that holds all cases, or those of a precision.",
)
@click.option(
    "--profile",
    "profile_path",
    type=click.Path(path_type=pathlib.Path),
    metavar="PROFILE.json",
    help="Plan each case by this profile, as tf-interop plan does.",
)
@click.option(
    "--policy",
    type=click.Choice(["always"]),
    help="Put every convolution into a stage, faster or not, in place of a plan.",
)
@click.option(
    "--allow-foreign-profile", is_flag=True, help="Plan by a profile of another device, too."
)
@click.option(
    "--repetitions",
    default=3,
    show_default=True,
    type=click.IntRange(min=1),
    help="Processes for each variant of a case; the variants take turns.",
)
@click.option(
    "--steps",
    default=MeasuringOptions().steps,
    show_default=True,
    type=click.IntRange(min=1),
    help="The fewest steps that a process times.",
)
@click.option(
    "--seconds",
    default=MeasuringOptions().seconds,
    show_default=True,
    type=click.FloatRange(min=0),
    help="The shortest time that a process goes on timing steps.",
)
@click.option(
    "--warmup-steps",
    default=MeasuringOptions().warmup_steps,
    show_default=True,
    type=click.IntRange(min=0),
    help="Steps after the first one that are not timed.",
)
@click.option(
    "--timeout",
    "timeout_seconds",
    default="15m",
    show_default=True,
    callback=_parse_time,
    metavar="TIME",
    help="When to end a process.",
)
@click.option(
    "--budget",
    "budget_seconds",
    callback=_parse_time,
    metavar="TIME",
    help="When to begin no further process, such as 90s, 10m or 1.5h.",
)
@click.option("--retry-failures", is_flag=True, help="Try again what failed before.")
@_with_outputs
@click.pass_context
def measure(
    context: click.Context,
    /,
    models: tuple[str, ...],
    output_path: pathlib.Path,
    batch: tuple[int, ...],
    inference: bool,
    training: bool,
    precisions: tuple[Precision, ...],
    image_size: tuple[int, int] | None,
    variants: tuple[Variant, ...],
    plan_paths: dict[Precision | None, pathlib.Path],
    profile_path: pathlib.Path | None,
    policy: str | None,
    allow_foreign_profile: bool,
    repetitions: int,
    steps: int,
    seconds: float,
    warmup_steps: int,
    timeout_seconds: float,
    budget_seconds: float | None,
    retry_failures: bool,
    csv_path: pathlib.Path | None,
    plot_path: pathlib.Path | None,
    as_json: bool,
) -> None:
    """Measures a step of each MODEL in each variant, a new process for each turn.

    MODEL is the name of a Keras application (ResNet50), a .keras or .h5 file, or module:function,
    which gives a Keras model and is called with image_size=(height, width) where it has that
    argument and --image-size is given.

    What crashes, runs out of memory or takes too long is an entry of the results with its reason,
    and the rest goes on. The results are on disk after every process: a run that was killed goes on
    when the same command is given again.
    """
    if not inference and not training:
        raise click.UsageError("Expected --inference or --training, got neither.")
    for path in filter(None, (output_path, csv_path, plot_path)):
        if not path.resolve().parent.is_dir():
            raise click.UsageError(f"Expected a folder that exists, got '{path}'.")
    if sum((bool(plan_paths), profile_path is not None, policy is not None)) > 1:
        raise click.UsageError("Expected one of --plan, --profile and --policy, got several.")
    steps_wanted = [
        step
        for step, is_wanted in ((Step.INFERENCE, inference), (Step.TRAINING, training))
        if is_wanted
    ]
    # Cases of one model are together: what is measured first is of use without what follows.
    cases = tuple(
        Case(model, step, size, precision, image_size)
        for model, precision, size, step in itertools.product(
            models, precisions, batch, steps_wanted
        )
    )

    def source_of(case: Case) -> PlanSource | None:
        plan_path = plan_paths.get(case.precision, plan_paths.get(None))
        if plan_path is None and profile_path is None and policy is None:
            return None
        return PlanSource(plan_path, profile_path, policy is not None, allow_foreign_profile)

    if any(variant.needs_plan for variant in variants):
        unplanned = [case.name for case in cases if source_of(case) is None]
        if unplanned:
            raise click.UsageError(
                f"Expected a plan for '{unplanned[0]}', got none. Pass --plan, --profile or "
                "--policy always, or leave out the variants ours, pinning and concurrency."
            )
    measuring = MeasuringOptions(warmup_steps, steps, seconds, timeout_seconds)
    options = RunOptions(
        cases, variants, repetitions, measuring, source_of, budget_seconds, retry_failures
    )
    with errors_shown():
        # Before anything is measured: each of them would be the failure of every case.
        for path in plan_paths.values():
            load_plan(path)
        if profile_path is not None:
            load_profile(profile_path)
        device, made_with = _environment()
        command = shlex.join(["tf-interop", *sys.argv[1:]])
        begun = new_benchmark(device, made_with, command, measuring, output_path)
        measured, signal_number = _run(begun, output_path, options)
        _put_out(measured, csv_path, plot_path, as_json=as_json)
    if not as_json:
        _say_end(measured, options, output_path)
    if signal_number is not None:
        context.exit(128 + signal_number)
    context.exit(3 if any(result.failure for result in measured.results) else 0)


@benchmark.command(epilog=_EXIT_CODES)
@click.argument("file", metavar="RESULTS")
@_with_outputs
def show(
    file: str, csv_path: pathlib.Path | None, plot_path: pathlib.Path | None, as_json: bool
) -> None:
    """Shows what is in the file RESULTS."""
    with errors_shown():
        _put_out(load_benchmark(file), csv_path, plot_path, as_json=as_json)


@benchmark.command(epilog=_EXIT_CODES)
def schema() -> None:
    """Prints the JSON schema of results."""
    click.echo(msgspec.json.format(msgspec.json.encode(benchmark_schema()), indent=2))


def _environment() -> tuple[ProfiledDevice, dict[str, str]]:
    """What is measured on, and with which software."""
    # Of TensorFlow's own messages only errors.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with Console(stderr=True).status("Importing TensorFlow"):
        from tf_interop.know.installed import tensorflow_internals

        gpu = running_device("cudnn") if tensorflow_internals.may_have_gpus() else None
        made_with = {
            "tensorflow": tensorflow_internals.tensorflow_version(),
            "keras": importlib.metadata.version("keras"),
            "tf_interop": tf_interop.__version__,
            "python": platform.python_version(),
        }
    return gpu or this_cpu(), made_with


def _run(begun: Benchmark, path: pathlib.Path, options: RunOptions) -> tuple[Benchmark, int | None]:
    """Measures; gives what is in the file then, and the signal that ended it, if one did."""
    signals: list[int] = []

    def should_stop() -> bool:
        return bool(signals)

    run = BenchmarkRun(
        begun,
        path,
        options,
        functools.partial(run_child, should_stop=should_stop),
        should_stop=should_stop,
    )
    with _signals_into(signals), _shown_progress() as listener:
        run.run(listener)
    return run.benchmark, signals[0] if signals else None


@contextlib.contextmanager
def _signals_into(signals: list[int]) -> Iterator[None]:
    """Has Ctrl-C and SIGTERM end the process in hand, and the run with it."""
    before = {
        number: signal.signal(number, lambda number, _: signals.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _shown_progress() -> Iterator[Listener]:
    """A bar on stderr, or a line for each process where that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bar(progress)


class _Bar(Listener):
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def begin(self, what: str, done: int, total: int) -> None:
        self._progress.update(self._task, description=what, completed=done, total=total)


class _Lines(Listener):
    def begin(self, what: str, done: int, total: int) -> None:
        click.echo(f"{done} of {total} done; now {what}", err=True)


def _put_out(
    measured: Benchmark,
    csv_path: pathlib.Path | None,
    plot_path: pathlib.Path | None,
    *,
    as_json: bool,
) -> None:
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(measured), indent=2))
    else:
        show_benchmark(measured, Console())
    if csv_path is not None:
        write_csv(measured, csv_path)
    if plot_path is not None and measured.results:
        write_plot(measured, plot_path)


def _say_end(measured: Benchmark, options: RunOptions, path: pathlib.Path) -> None:
    results = {(result.case, result.variant): result for result in measured.results}
    wanted = len(options.cases) * len(options.variants) * options.repetitions
    blocks = sum(
        len(results[case, variant].blocks)
        for case, variant in itertools.product(options.cases, options.variants)
        if (case, variant) in results
    )
    failures = sum(result.failure is not None for result in measured.results)
    click.echo(f"{path}: {blocks} of {wanted} blocks, {failures} failed")
