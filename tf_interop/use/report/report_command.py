"""The command `tf-interop report`: a plan as a page, a trace and a picture."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator

import click
from rich.console import Console
from rich.status import Status

from tf_interop.errors import PlanError
from tf_interop.know.plans.plan import Plan
from tf_interop.know.plans.plan_file import load_plan
from tf_interop.know.plans.planning_problem_file import load_problem
from tf_interop.know.profiles.profile import Profile
from tf_interop.know.profiles.profile_file import load_profile
from tf_interop.know.results.run_record import load_run
from tf_interop.use.command_arguments import errors_shown, image_size_option, parse_target
from tf_interop.use.report.figures import is_simulated, total_label
from tf_interop.use.report.report_data import graph_titles, make_report
from tf_interop.use.report.report_network import Network, network_for, network_of_problem
from tf_interop.use.report.timeline_trace import trace_of_plan

# TensorFlow, Jinja and matplotlib are imported only where they are needed.

_AS_IT_IS = "\b\n"
_EPILOG = f"""{_AS_IT_IS}Examples:
  tf-interop report plan.json -o report.html
  tf-interop report plan.json --model InceptionV3 --profile profile.json
  tf-interop report plan.json --trace trace.json --png timeline.png

{_AS_IT_IS}A plan for a GPU, shown on a machine without one:
  tf-interop report plan.json --model my_package.models:build --for 9.0

{_AS_IT_IS}Exit codes:
  0  success
  1  an error that tf_interop reports
  2  wrong usage"""
_DEFAULT_OUTPUT = "report.html"


@click.command(epilog=_EPILOG)
@click.argument("plan_path", metavar="PLAN")
@click.option(
    "-o",
    "--output",
    "output_path",
    type=click.Path(dir_okay=False),
    metavar="REPORT.html",
    help=f"The page. [default: {_DEFAULT_OUTPUT}, where neither --trace nor --png is asked for]",
)
@click.option(
    "--model",
    help="The model that PLAN is for, as in tf-interop plan: adds what depends on what, and what "
    "each convolution computes. It is traced, not run.",
)
@click.option(
    "--problem",
    "problem_paths",
    multiple=True,
    metavar="PROBLEM.json",
    help="The planning problem that PLAN is of, in place of --model. May be given several times.",
)
@click.option(
    "--profile",
    "profile_path",
    metavar="PROFILE.json",
    help="What PLAN was made by: adds the device and, with --model, every measured algorithm.",
)
@click.option(
    "--run",
    "run_path",
    metavar="RUN.json",
    help="What tf-interop run --save-run wrote: adds what the plugin did, and measured steps.",
)
@click.option(
    "--trace",
    "trace_path",
    type=click.Path(dir_okay=False),
    metavar="TRACE.json",
    help="The timelines as a trace for ui.perfetto.dev or chrome://tracing.",
)
@click.option(
    "--png",
    "picture_path",
    type=click.Path(dir_okay=False),
    metavar="TIMELINE.png",
    help="The timelines as a picture; needs matplotlib (the extra report).",
)
@click.option("--title", help="The page's title. [default: the model's name, or the plan's file]")
@image_size_option
@click.option(
    "--for",
    "target",
    callback=parse_target,
    metavar="cpu|CC",
    help="What the plan is for: cpu, or a GPU of a compute capability such as 9.0. "
    "[default: what the profile is of, else what this process runs on]",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def report(
    plan_path: str,
    output_path: str | None,
    model: str | None,
    problem_paths: tuple[str, ...],
    profile_path: str | None,
    run_path: str | None,
    trace_path: str | None,
    picture_path: str | None,
    title: str | None,
    image_size: tuple[int, int] | None,
    target: str | None,
    as_json: bool,
) -> None:
    """Shows PLAN as a page: its network, timelines, and why each stage is as it is.

    The page is one file that needs no network. Every time in it says whether it was measured,
    modelled or simulated.
    """
    if model is not None and problem_paths:
        raise click.UsageError("Expected --model or --problem, got both.")
    if output_path is None and trace_path is None and picture_path is None:
        output_path = _DEFAULT_OUTPUT
    for path in filter(None, (output_path, trace_path, picture_path)):
        if not pathlib.Path(path).resolve().parent.is_dir():
            raise click.UsageError(f"Expected a folder that exists, got '{path}'.")
    with errors_shown(), _progress() as status:
        status.update("Reading")
        plan = load_plan(plan_path)
        profile = None if profile_path is None else load_profile(profile_path)
        run = None if run_path is None else load_run(run_path)
        networks = tuple(network_of_problem(load_problem(path)) for path in problem_paths)
        if model is not None:
            networks = _trace(model, plan, profile, image_size, target, status)
        if networks:
            _check_fits(plan, networks, plan_path)
        titles = graph_titles(plan)
        if output_path is not None:
            status.update("Drawing the page")
            shown = make_report(
                plan,
                title=title or model or pathlib.Path(plan_path).name,
                networks=networks,
                profile=profile,
                run=run,
            )
            # Jinja takes a while to import.
            from tf_interop.use.report.report_page import render_report

            _write(output_path, render_report(shown))
        if trace_path is not None:
            _write(trace_path, json.dumps(trace_of_plan(plan, titles)))
        if picture_path is not None:
            status.update("Drawing the picture")
            from tf_interop.use.report.timeline_picture import save_timeline_picture

            save_timeline_picture(plan, titles, picture_path)
    asked = {"page": output_path, "trace": trace_path, "picture": picture_path}
    written = {what: path for what, path in asked.items() if path is not None}
    if as_json:
        click.echo(json.dumps({**written, "graphs": _summary(plan)}, indent=2))
        return
    for what, path in written.items():
        click.echo(f"{path}: {what} of {len(plan.graphs)} graphs")


@contextlib.contextmanager
def _progress() -> Iterator[Status]:
    with Console(stderr=True).status("Starting") as status:
        yield status


def _trace(
    model: str,
    plan: Plan,
    profile: Profile | None,
    image_size: tuple[int, int] | None,
    target: str | None,
    status: Status,
) -> tuple[Network, ...]:
    # Of TensorFlow's own messages only errors.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    status.update("Importing TensorFlow")
    from tf_interop.know.installed.profiled_device import running_device
    from tf_interop.use.models.load_model import ModelArgumentError, load_model
    from tf_interop.use.report.report_model import networks_of_model

    if target is None:
        device = profile.device if profile is not None else running_device("cudnn")
        target = "cpu" if device is None else device.compute_capability or "cpu"
    try:
        status.update(f"Loading {model}")
        return networks_of_model(
            load_model(model, image_size=image_size),
            plan,
            image_size=image_size,
            compute_capability=None if target == "cpu" else target,
            profile=profile,
            say=lambda text: status.update(text),
        )
    except ModelArgumentError as error:
        raise click.BadParameter(str(error), param_hint="--model") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _check_fits(plan: Plan, networks: tuple[Network, ...], plan_path: str) -> None:
    missing = [graph for graph in plan.graphs if network_for(graph, networks) is None]
    if plan.graphs and len(missing) == len(plan.graphs):
        found = ", ".join(f"{each.fingerprint or 'a problem'}" for each in networks)
        raise PlanError(
            f"Expected the graph {missing[0].fingerprint} of '{plan_path}', got {found}. Name the "
            "model that was planned, and what it was planned for with --for."
        )


def _write(path: str, text: str) -> None:
    try:
        pathlib.Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise PlanError(
            f"Expected to write '{path}', got: {error.strerror}. Check the path."
        ) from error


def _summary(plan: Plan) -> list[dict[str, object]]:
    simulated = is_simulated(plan)
    return [
        {
            "fingerprint": graph.fingerprint,
            "batch_size": graph.batch_size,
            "stages": len(graph.stages),
            "latency_us": None if graph.prediction is None else graph.prediction.latency_us,
            "sequential_us": None if graph.prediction is None else graph.prediction.sequential_us,
            "latency_is": (
                None if graph.prediction is None else total_label(graph, simulated=simulated)
            ),
        }
        for graph in plan.graphs
    ]
