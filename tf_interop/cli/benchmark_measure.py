"""The command `tf-interop benchmark measure`: measures models in several ways by turns."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import itertools
import pathlib
import platform
import shlex
import signal
import sys
from collections.abc import Iterator

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import tf_interop
from tf_interop.benchmark.plot import check_plot
from tf_interop.benchmark.process import run_child
from tf_interop.benchmark.result import (
    Benchmark,
    Case,
    MeasuringOptions,
    Mode,
    Precision,
    Variant,
)
from tf_interop.benchmark.run import (
    BenchmarkRun,
    Listener,
    PlanSource,
    RunOptions,
    new_benchmark,
)
from tf_interop.benchmark.tables import show_benchmark
from tf_interop.cli.arguments import output_option
from tf_interop.cli.benchmark_options import (
    PlanPaths,
    case_options,
    measuring_options,
    other_forms_options,
    plan_options,
    write_other_forms,
)
from tf_interop.cli.result import Result, command
from tf_interop.errors import BenchmarkError
from tf_interop.measure.device import running_device, this_cpu
from tf_interop.planning.file import load_plan
from tf_interop.profile.file import load_profile
from tf_interop.profile.types import ProfiledDevice
from tf_interop.tensorflow_messages import tensorflow_hushed

EXIT_CODES = {
    0: "success; also where the budget was over before everything was measured",
    3: "something crashed, timed out or ran out of memory; the results say what, and hold the rest",
    130: "stopped by Ctrl-C, 143 by SIGTERM: what was measured is in the results",
}


@command(
    """
benchmark ResNet50 --profile profile.json --batch 1,8,32 --training -o results.json
benchmark ResNet50 --plan tf32=plan.json --plan float16=half.json \\
    --precision tf32,float16 -o results.json --csv results.csv --plot results.png

To see it work, on any machine:
benchmark InceptionV3 --image-size 75 --policy always --variants stock,ours \\
    --seconds 1 -o results.json
""",
    exit_codes=EXIT_CODES,
    short_help="Measures models in each variant, by turns.",
)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@output_option(
    "RESULTS.json",
    "The results. A file that is there is gone on with.",
    required=True,
    is_gone_on_with=True,
)
@case_options
@plan_options
@measuring_options
@other_forms_options
def measure(
    models: tuple[str, ...],
    output_path: pathlib.Path,
    batch: tuple[int, ...],
    inference: bool,
    training: bool,
    precisions: tuple[Precision, ...],
    image_size: tuple[int, int] | None,
    variants: tuple[Variant, ...],
    plan_paths: PlanPaths,
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
) -> Result:
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
    if sum((bool(plan_paths), profile_path is not None, policy is not None)) > 1:
        raise click.UsageError("Expected one of --plan, --profile and --policy, got several.")
    modes = {Mode.INFERENCE: inference, Mode.TRAINING: training}
    # Cases of one model are together: what is measured first is of use without what follows.
    cases = tuple(
        Case(model, mode, size, precision, image_size)
        for model, precision, size, mode in itertools.product(models, precisions, batch, modes)
        if modes[mode]
    )

    def source_of(case: Case) -> PlanSource | None:
        plan_path = plan_paths.get(case.precision, plan_paths.get(None))
        if plan_path is None and profile_path is None and policy is None:
            return None
        return PlanSource(plan_path, profile_path, allow_foreign_profile)

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
    # Before anything is measured: each of them would be the failure of every case, or of the end.
    for path in plan_paths.values():
        load_plan(path)
    if profile_path is not None:
        load_profile(profile_path)
    if plot_path is not None:
        check_plot(plot_path)
    device, made_with = _environment()
    command = shlex.join(["tf-interop", *sys.argv[1:]])
    begun = new_benchmark(device, made_with, command, measuring, output_path)
    measured, signal_number = _run(begun, output_path, options)
    write_other_forms(measured, csv_path, plot_path)

    def show() -> None:
        show_benchmark(measured, Console())
        click.echo(_describe_end(measured, options, output_path))

    exit_code = 3 if _failures(measured) else 0
    if signal_number is not None:
        exit_code = 128 + signal_number
    return Result(measured, show, exit_code)


def _environment() -> tuple[ProfiledDevice, dict[str, str]]:
    """What is measured on, and with which software."""
    with Console(stderr=True).status("Importing TensorFlow"):
        try:
            with tensorflow_hushed():
                from tf_interop import tensorflow_internals

                version = tensorflow_internals.tensorflow_version()
        except ImportError as error:
            raise BenchmarkError(
                f"Expected to import TensorFlow, got: {error}. Install it."
            ) from error

        gpu = running_device("cudnn") if tensorflow_internals.may_have_gpus() else None
        made_with = {
            "tensorflow": version,
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

    with _signals_into(signals), _shown_progress() as listener:
        run = BenchmarkRun(
            begun,
            path,
            options,
            functools.partial(run_child, should_stop=should_stop),
            should_stop=should_stop,
            listener=listener,
        )
        run.run()
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
        yield lambda what, done, total: click.echo(f"{done} of {total} done; now {what}", err=True)
        return
    columns = (
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda what, done, total: progress.update(
            task, description=what, completed=done, total=total
        )


def _failures(measured: Benchmark) -> int:
    return sum(result.failure is not None for _, result in measured.variant_results)


def _describe_end(measured: Benchmark, options: RunOptions, path: pathlib.Path) -> str:
    wanted = len(options.cases) * len(options.variants) * options.repetitions
    blocks = sum(
        len(result.of(variant).blocks)
        for result in measured.results
        if result.case in options.cases
        for variant in options.variants
    )
    return f"{path}: {blocks} of {wanted} blocks, {_failures(measured)} failed"
