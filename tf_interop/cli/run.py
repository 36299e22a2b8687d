"""The command `tf-interop run`: runs a program, unchanged, with the plugin on."""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
import pathlib
import pkgutil
import runpy
import signal
import sys
import traceback
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click
import msgspec
import wrapt

import tf_interop
from tf_interop.cli import options
from tf_interop.cli.main import end_with, help_end, print_error
from tf_interop.errors import PlanError, TfInteropError
from tf_interop.planning.types import load_plan, save_plan
from tf_interop.versioned_file import write_file

if TYPE_CHECKING:
    from tensorflow.core.framework import graph_pb2

    from tf_interop.runtime.status import Status

# TensorFlow is not imported here: the program may set it up first.

_TRACED_CALLS = 10  # of each op, after its first

_EXAMPLES = """
run --plan plan.json train.py --epochs 1
run --policy always --report -m my_package.train --epochs 1

To measure the convolutions of a program:
run --export-configurations list.json train.py
profile list.json --budget 10m -o profile.json
"""


def _run_program(
    program: str, arguments: tuple[str, ...], is_module: bool, finish: Callable[[bool], bool]
) -> None:
    """Runs a program as `__main__`, outside of click.

    The program decides how the process ends, unless its results cannot be written.

    Args:
        program: a script or a module.
        arguments: the rest of its `sys.argv`.
        is_module: whether it is a module.
        finish: reports and saves, given whether the program failed; returns whether it could.
    """
    # The settings that Python starts with.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # stdin still has the errors that stdout began with.
        sys.stdout.reconfigure(errors=getattr(sys.stdin, "errors", "strict"))
    path = pathlib.Path(program)
    sys.argv[:] = [program, *arguments]
    # With -P and -I Python puts nothing at the start of the path, so nothing is replaced.
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        sys.path[0] = str(path.resolve().parent) if path.is_file() else program
        if is_module:
            sys.path[0] = os.getcwd()  # noqa: PTH109 (an entry of sys.path is a string)
    try:
        if is_module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        elif pkgutil.get_importer(program) or path.suffix == ".pyc":
            runpy.run_path(program, run_name="__main__")
        else:
            _run_script(path.absolute())
    except SystemExit as end:
        if not finish(bool(end.code)) and not end.code:
            raise SystemExit(1) from None
        raise
    except BaseException as error:
        if isinstance(error, ImportError) and _is_raised_by_runpy(error):
            print_error(f"There is no program to run: {error}. Check its name.")
            raise SystemExit(2) from None
        finish(True)
        raise
    if not finish(False):
        raise SystemExit(1)


def _run_script(path: pathlib.Path) -> None:
    """Runs a script as Python does.

    With runpy, `__file__` would be lost when the program changes the working directory, `__main__`
    when threads and exit handlers still run, and a script that comes through a pipe.
    """
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main).update(__file__=str(path), __builtins__=builtins)
    exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), vars(main))


def _is_raised_by_runpy(error: ImportError) -> bool:
    """Whether there was no program: only the code that looks for it has run."""
    package = str(pathlib.Path(tf_interop.__file__).parent)
    return all(
        pathlib.PurePath(frame.filename).name in ("runpy.py", "<frozen runpy>")
        or frame.filename.startswith(package)
        for frame in traceback.extract_tb(error.__traceback__)
    )


def _write_list(
    path: pathlib.Path, program: str, graphs: Iterable[tuple[graph_pb2.GraphDef, str]]
) -> None:
    """Writes the list of convolutions and stages of a program's graphs.

    Args:
        path: of the list.
        program: its name.
        graphs: as Grappler hands them over, each with the device type.

    Raises:
        PlanError: there are none.
        ProfileError: the file cannot be written.
    """
    from tf_interop.model.collect import CollectOptions, collect_graphs
    from tf_interop.model.graphs import folded_graph
    from tf_interop.profile.worklist import save_configurations
    from tf_interop.runtime.settings import Settings

    # Stages are planned for folded graphs.
    folded = (
        graph if Settings().makes_units(device_type) else folded_graph(graph, device_type)
        for graph, device_type in graphs
    )
    # TensorFlow may optimize a function several times.
    distinct = {graph.SerializeToString(deterministic=True): graph for graph in folded}
    named = ((f"{program}, graph {n}", graph) for n, graph in enumerate(distinct.values(), 1))
    try:
        collected = collect_graphs(named, CollectOptions())
    except ValueError as error:
        raise PlanError(f"There is nothing to list in '{path}': {error}") from None
    for note in collected.notes:
        click.echo(note, err=True)
    save_configurations(collected.configurations, path)


def _why_none_made(status: Status) -> str:
    """Says that nothing of a plan was used or made, with the causes in the status."""
    causes = [
        status.why_off,
        *(each.cause for each in status.failures),
        *(each.why_no_plan or each.why_unchanged for each in status.current_graphs),
        *(f"XLA compiles {each.name}" for each in status.xla_functions),
    ]
    said = "; ".join(cause.rstrip(".") for cause in dict.fromkeys(causes) if cause)
    return said or "TensorFlow optimized no graph with a convolution"


def _write_trace(path: pathlib.Path, status: Status) -> None:
    """Writes the recorded times of the stages and units of this process.

    Raises:
        PlanError: there are none, or the file cannot be written.
    """
    from tf_interop import tensorflow_internals
    from tf_interop.measure.device import running_gpu, this_cpu
    from tf_interop.report.timeline import NamedGraph, trace_of_run
    from tf_interop.runtime.plugin import get_plugin

    spans = get_plugin().library.read_timeline()
    if not spans:
        why = "no stage or unit ran twice, and the first call of each is left out"
        if not status.plan.graphs:
            why = _why_none_made(status)
        raise PlanError(f"There is nothing to write to '{path}': {why}.")
    gpu = running_gpu()
    versions = {"tensorflow": tensorflow_internals.tensorflow_version()}
    graphs = {
        report.plan.fingerprint: NamedGraph(
            report.plan.structure.names, () if report.plan.stages else report.op_names
        )
        for report in status.graphs
        if report.op_names
    }
    trace = trace_of_run(spans, gpu or this_cpu(), versions, graphs)
    write_file(msgspec.json.encode(trace), path, "trace", PlanError)


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog=help_end(_EXAMPLES) + ("\n  and the program's own code, if that is not 0"),
    short_help="Runs a program, unchanged, with the plugin on.",
)
@click.option(
    "--policy",
    type=click.Choice(["profiled", "always"]),
    default="profiled",
    help="profiled: only the stages of a plan; on a CPU, graphs that time themselves. always: all "
    "possible stages or units, faster or not.",
)
@click.option(
    "--plan",
    "plan_path",
    type=click.Path(),
    metavar="PLAN.json",
    help="A plan to use.",
)
@click.option(
    "--workspace-limit-mb",
    type=click.IntRange(min=0),
    metavar="MIB",
    help="The limit for all workspaces of one stage together. [default: no limit but memory]",
)
@options.written(
    "--save-plan",
    "saved_plan_path",
    "OUT.json",
    "Write the graphs with stages or units to a plan file when the program ends.",
)
@options.written(
    "--trace",
    "trace_path",
    "TRACE.json",
    "Write the times of stages and units, for 10 calls of each after its first, as a trace for "
    "ui.perfetto.dev, chrome://tracing or tf-interop report.",
)
@options.written(
    "--export-configurations",
    "list_path",
    "LIST.json",
    "Write the list of convolutions and stages of the program's graphs that tf-interop profile "
    "measures. Shapes must be known before a graph runs.",
)
@click.option(
    "--require-plan",
    is_flag=True,
    help="Exit with 1 if no graph of the program is one of the plan's.",
)
@click.option("--report", is_flag=True, help="Print the plugin's status on stderr at the end.")
@click.option("-m", "is_module", is_flag=True, help="PROGRAM is a module, as after python -m.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    policy: str,
    plan_path: str | None,
    workspace_limit_mb: int | None,
    saved_plan_path: pathlib.Path | None,
    trace_path: pathlib.Path | None,
    list_path: pathlib.Path | None,
    require_plan: bool,
    report: bool,
    is_module: bool,
    program: str,
    arguments: tuple[str, ...],
) -> Callable[[], None]:
    """Runs the script PROGRAM, unchanged, with the plugin on.

    Arguments after PROGRAM belong to it. It runs as under python: as __main__, with its own
    sys.argv, and its exit code is passed on.

    If there is a GPU, Keras compiles models with XLA. Their plans are made with --jit-compile. The
    plugin is not on in processes that the program starts.
    """
    if policy == "always" and plan_path:
        raise click.UsageError("Pass only one of --plan and --policy always.")
    if require_plan and not plan_path:
        raise click.UsageError("--require-plan is about a plan. Pass one with --plan.")
    if list_path is not None and (policy == "always" or plan_path):
        raise click.UsageError(
            "--export-configurations lists the graphs as they are. Leave out --plan and --policy."
        )
    if not is_module and not pathlib.Path(program).exists():
        raise click.BadParameter(
            f"There is no script '{program}' here. Check the path, or put -m before a module.",
            param_hint="PROGRAM",
        )
    plan = None if plan_path is None else load_plan(plan_path)
    if policy == "profiled" and plan is None and list_path is None:
        click.echo(
            "Without a plan, tf_interop changes nothing on a GPU. On a CPU it folds and keeps "
            "parameters, and graphs time themselves. For stages, pass --plan or --policy always.",
            err=True,
        )

    graphs: list[tuple[graph_pb2.GraphDef, str]] = []
    observing = contextlib.ExitStack()

    def enable(_tensorflow: object) -> None:
        try:
            # Observers would see folded graphs as graphs of their own.
            kept = None if list_path is None else False
            tf_interop.enable(policy, plan=plan, workspace_limit_mb=workspace_limit_mb, kept=kept)
            from tf_interop.runtime.plugin import get_plugin

            if trace_path is not None:
                get_plugin().library.record_timeline(_TRACED_CALLS)
            if list_path is not None:
                observing.enter_context(get_plugin().observe(lambda *graph: graphs.append(graph)))
        except TfInteropError as error:
            end_with(error)

    def finish(has_failed: bool) -> bool:
        observing.close()
        is_asked = bool(report or require_plan or saved_plan_path or trace_path or list_path)
        if "tensorflow" not in sys.modules:
            if is_asked and not has_failed:
                print_error(
                    "The program did not import TensorFlow, so the plugin did nothing. Name a "
                    "program that does."
                )
            return not is_asked
        status = tf_interop.status()
        if report:
            click.echo(str(status), err=True, nl=False)
        is_unused = plan is not None and not any(each.is_in_plan for each in status.graphs)
        if is_unused and not has_failed:
            unused = f"tf_interop did not use '{plan_path}': {_why_none_made(status)}."
            if require_plan:
                print_error(unused)
                return False
            click.echo(unused, err=True)
        try:
            if trace_path is not None:
                _write_trace(trace_path, status)
            if saved_plan_path is not None:
                if not status.plan.graphs:
                    raise PlanError(
                        f"There is nothing to save in '{saved_plan_path}': "
                        f"{_why_none_made(status)}."
                    )
                save_plan(status.plan, saved_plan_path)
            if list_path is not None:
                _write_list(list_path, program, graphs)
        except TfInteropError as error:
            print_error(str(error))
            return False
        return True

    # Not before the program imports TensorFlow: first it may set environment variables, such as
    # CUDA_VISIBLE_DEVICES.
    wrapt.register_post_import_hook(enable, "tensorflow")
    return functools.partial(_run_program, program, arguments, is_module, finish)
