"""The command line, `tf-interop`: analyze, profile, plan, run, benchmark, report, doctor."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
from typing import NoReturn

import click
from rich.console import Console

import tf_interop
from tf_interop.errors import TfInteropError
from tf_interop.know.plans.plan_file import load_plan, save_plan
from tf_interop.know.profiles.profile_file import load_profile
from tf_interop.know.results.run_record import save_run
from tf_interop.use.benchmark.benchmark_command import benchmark
from tf_interop.use.command_arguments import image_size_option
from tf_interop.use.doctor.doctor_command import doctor
from tf_interop.use.enabling.run_program import Program, enable_once_imported
from tf_interop.use.planning.plan_command import plan as plan_group
from tf_interop.use.profiling.profile_command import profile
from tf_interop.use.report.report_command import report as report_command

# TensorFlow takes seconds to import, and a program that is run wants to do that itself: here it is
# imported only where a command needs it.

# Click keeps the lines of a paragraph that starts with this.
_AS_IT_IS = "\b\n"
_EXIT_CODES = f"""{_AS_IT_IS}Exit codes:
  0  success
  1  an error that tf_interop reports
  2  wrong usage"""
_ANALYZE_EPILOG = f"""{_AS_IT_IS}Examples:
  tf-interop analyze InceptionV3 --batch 1
  tf-interop analyze ResNet50 --training --json
  tf-interop analyze my_package.models:build --image-size 299x299

{_EXIT_CODES}"""
_RUN_EPILOG = f"""{_AS_IT_IS}Examples:
  tf-interop run --policy always --report train.py --epochs 1
  tf-interop run --plan plan.json -m my_package.train --epochs 1

{_EXIT_CODES}
  and the program's own, where it ends with another than 0"""


@dataclasses.dataclass(frozen=True)
class _PreparedRun:
    """What `run` does once the command line has been read, outside of click.

    Attributes:
        program: the program.
        report: whether to say at the end what the plugin did.
        plan_path: where to write the plan at the end; None for nowhere.
        record_path: where to write the record of the run; None for nowhere.
    """

    program: Program
    report: bool
    plan_path: str | None
    record_path: str | None

    def run(self) -> None:
        """Runs the program; it decides how the process ends, unless the plan is not written."""
        try:
            self.program.run()
        except SystemExit as end:
            if not self._finish(has_failed=bool(end.code)) and not end.code:
                raise SystemExit(1) from None
            raise
        except BaseException:
            self._finish(has_failed=True)
            raise
        if not self._finish(has_failed=False):
            raise SystemExit(1)

    def _finish(self, *, has_failed: bool) -> bool:
        """Reports and saves as far as asked for; returns whether that went well."""
        if not self.report and self.plan_path is None and self.record_path is None:
            return True
        if "tensorflow" not in sys.modules:
            if not has_failed:
                _print_error("Expected a program that imports TensorFlow, got one that did not.")
            return False
        status = tf_interop.status()
        if self.report:
            click.echo(str(status), err=True, nl=False)
        if self.record_path is not None and not self._record(status, self.record_path):
            return False
        if self.plan_path is None:
            return True
        if not status.stage_count:
            _print_error(f"Expected stages to save in '{self.plan_path}', got none.")
            return False
        try:
            save_plan(status.plan, self.plan_path)
        except TfInteropError as error:
            _print_error(str(error))
            return False
        return True

    def _record(self, status: tf_interop.Status, path: str) -> bool:
        from tf_interop.use.enabling.record_run import record_run

        try:
            save_run(record_run(status, (self.program.target, *self.program.arguments)), path)
        except TfInteropError as error:
            _print_error(str(error))
            return False
        return True


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXIT_CODES)
@click.version_option(tf_interop.__version__, prog_name="tf-interop")
def cli() -> None:
    """Runs independent convolutions of one TensorFlow graph at the same time."""


@cli.command(epilog=_ANALYZE_EPILOG)
@click.argument("model")
@click.option("--batch", default=2, show_default=True, type=click.IntRange(min=1))
@click.option("--training", is_flag=True, help="A training step and not inference.")
@image_size_option
@click.option(
    "--as-grappler-hands-it-over/--own-graph-only",
    "as_handed_over",
    default=None,
    help="Whether to run the model once, on zeros, and look at the graph that Grappler hands to "
    "the plugin. Done for Keras models where the compiled library fits; a function may do more "
    "than compute, and is run only when told to.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def analyze(
    model: str,
    batch: int,
    training: bool,
    image_size: tuple[int, int] | None,
    as_handed_over: bool | None,
    as_json: bool,
) -> None:
    """Counts convolutions of MODEL and how many of them are independent.

    MODEL is the name of a Keras application (ResNet50), a .keras or .h5 file, the folder of a
    SavedModel, a GraphDef in a .pb or .pbtxt file, or module:function, which is called without
    arguments and gives a Keras model, a function or a GraphDef.
    """
    # Of TensorFlow's own messages only errors: they come between the figures.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    progress = Console(stderr=True)
    with progress.status("Importing TensorFlow"):
        from tf_interop.use.models.analyze import analyze as analyze_model
        from tf_interop.use.models.load_model import ModelArgumentError, load_model
    try:
        with progress.status(f"Loading {model}"):
            loaded = load_model(model, image_size=image_size)
        with progress.status(f"Analyzing {model}"):
            analysis = analyze_model(
                loaded,
                batch_size=batch,
                training=training,
                image_size=image_size,
                as_grappler_hands_it_over=as_handed_over,
            )
    except ModelArgumentError as error:
        raise click.BadParameter(str(error), param_hint="MODEL") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except TfInteropError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(analysis.to_json(), indent=2) if as_json else str(analysis).rstrip())


@cli.command(context_settings={"allow_interspersed_args": False}, epilog=_RUN_EPILOG)
@click.option(
    "--policy",
    type=click.Choice(["profiled", "always"]),
    default="profiled",
    show_default=True,
    help="profiled: only stages that a plan names or a profile says win. always: every "
    "convolution, faster or not.",
)
@click.option("--plan", "plan_path", type=click.Path(), help="A plan file.")
@click.option("--profile", "profile_path", type=click.Path(), help="A profile file.")
@click.option(
    "--allow-foreign-profile",
    is_flag=True,
    help="Go by the profile even where it is of another device or cuDNN version.",
)
@click.option(
    "--workspace-limit-mb",
    type=click.IntRange(min=0),
    metavar="MIB",
    help="What the workspaces of one stage may take together. [default: no limit but memory]",
)
@click.option(
    "--save-plan",
    "saved_plan_path",
    type=click.Path(dir_okay=False),
    metavar="OUT.json",
    help="Write the stages that were made to a plan file when the program ends.",
)
@click.option(
    "--save-run",
    "record_path",
    type=click.Path(dir_okay=False),
    metavar="RUN.json",
    help="Write what the plugin did to a file when the program ends, for tf-interop report --run.",
)
@click.option("--report", is_flag=True, help="Say on stderr at the end what the plugin did.")
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module, as after python -m.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    policy: str,
    plan_path: str | None,
    profile_path: str | None,
    allow_foreign_profile: bool,
    workspace_limit_mb: int | None,
    saved_plan_path: str | None,
    record_path: str | None,
    report: bool,
    is_module: bool,
    program: str,
    arguments: tuple[str, ...],
) -> _PreparedRun:
    """Runs the script PROGRAM, unchanged, with the plugin on.

    What follows PROGRAM belongs to it. It runs as under python: as __main__, with its own sys.argv,
    and its exit code is passed on.

    Where a GPU is present, Keras compiles models with XLA, and XLA leaves nothing to the plugin.
    This command cannot change that: have the program compile its models with jit_compile=False, or
    use tf_interop.keras.ConvStages. Processes that the program starts do not have the plugin on.
    """
    if policy == "always" and (plan_path or profile_path):
        raise click.UsageError("Expected no --plan and no --profile with --policy always.")
    if not is_module and not pathlib.Path(program).exists():
        raise click.BadParameter(
            f"Expected a script at '{program}', got none. For a module put -m before it.",
            param_hint="PROGRAM",
        )
    for option, path in (("--save-plan", saved_plan_path), ("--save-run", record_path)):
        if path is not None and not pathlib.Path(path).resolve().parent.is_dir():
            raise click.BadParameter(
                f"Expected a folder that exists, got '{path}'.", param_hint=option
            )
    try:
        plan = None if plan_path is None else load_plan(plan_path)
        profile = None if profile_path is None else load_profile(profile_path)
    except TfInteropError as error:
        raise click.ClickException(str(error)) from error
    if policy == "profiled" and plan is None and profile is None:
        click.echo(
            "tf_interop changes nothing: policy 'profiled' goes by a plan or a profile. Pass "
            "--plan or --profile, or --policy always.",
            err=True,
        )
    enable_once_imported(
        policy,
        plan,
        profile,
        allow_foreign_profile=allow_foreign_profile,
        workspace_limit_mb=workspace_limit_mb,
        on_error=_end_with,
    )
    return _PreparedRun(
        Program(program, is_module, arguments), report, saved_plan_path, record_path
    )


cli.add_command(benchmark)
cli.add_command(doctor)
cli.add_command(plan_group)
cli.add_command(profile)
cli.add_command(report_command)


def main() -> None:
    """The entry point. Ends the process with the command's or the program's exit code."""
    try:
        result = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        _print_error("Aborted.")
        sys.exit(1)
    if isinstance(result, _PreparedRun):
        # Not inside click, which would take the program's exceptions for its own.
        result.run()
    elif isinstance(result, int):
        sys.exit(result)


def _end_with(error: Exception) -> NoReturn:
    _print_error(str(error))
    raise SystemExit(1)


def _print_error(text: str) -> None:
    click.echo(f"Error: {text}", err=True)
