"""The command `tf-interop report`: a plan as a page, a trace and a picture."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence

import click
from rich.console import Console

from tf_interop.cli.command import Result, command
from tf_interop.cli.options import (
    image_size_option,
    output_option,
    profile_option,
    target_option,
    written_option,
)
from tf_interop.cli.progress import work_on_model
from tf_interop.errors import PlanError
from tf_interop.planning.file import load_plan
from tf_interop.planning.problem import load_problem
from tf_interop.planning.show import summarize_graph
from tf_interop.planning.types import Plan
from tf_interop.profile.file import load_profile
from tf_interop.profile.types import Profile
from tf_interop.report.graphs import ShownGraph, count_of, foreign_device, shown_graphs
from tf_interop.report.network import Network, network_of_problem
from tf_interop.report.trace import trace_of_plan
from tf_interop.runtime.run_record import load_run
from tf_interop.versioned_file import write_file

# TensorFlow, Jinja and matplotlib are imported only where they are needed.

_EXAMPLES = """
report plan.json -o report.html
report plan.json --model InceptionV3 --profile profile.json
report plan.json --trace trace.json --png timeline.png

A plan for a GPU, shown on a machine without one:
report plan.json --model my_package.models:build --for 9.0
"""
_DEFAULT_OUTPUT = "report.html"
_NO_NETWORK = (
    "Not on the page: what depends on what, and what each convolution computes. Add --model with "
    "the model that was planned, or --problem."
)


@command(_EXAMPLES)
@click.argument("plan_path", metavar="PLAN", type=click.Path(path_type=pathlib.Path))
@output_option(
    "REPORT.html",
    f"The page. [default: {_DEFAULT_OUTPUT}, where neither --trace nor --png is asked for]",
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
@profile_option(
    "What PLAN was made by: adds the device and, with --model, every measured algorithm."
)
@click.option(
    "--run",
    "run_path",
    metavar="RUN.json",
    help="What tf-interop run --save-run wrote: adds what the plugin did, and what was timed.",
)
@written_option(
    "--trace",
    "trace_path",
    "TRACE.json",
    "The timelines as a trace for ui.perfetto.dev or chrome://tracing.",
)
@written_option(
    "--png",
    "picture_path",
    "TIMELINE.png",
    "The timelines as a picture; needs matplotlib (the extra report).",
)
@click.option("--title", help="The page's title. [default: the model's name, or the plan's file]")
@image_size_option
@target_option("What the plan is for", "what the profile is of, else what this process runs on")
def report(
    plan_path: pathlib.Path,
    output_path: pathlib.Path | None,
    model: str | None,
    problem_paths: tuple[str, ...],
    profile_path: pathlib.Path | None,
    run_path: str | None,
    trace_path: pathlib.Path | None,
    picture_path: pathlib.Path | None,
    title: str | None,
    image_size: tuple[int, int] | None,
    target: str | None,
) -> Result:
    """Shows PLAN as a page: its network, its timelines, and reasons.

    The page is one file that needs no network. Every time in it says whether it was measured,
    modelled or simulated.
    """
    if model is not None and problem_paths:
        raise click.UsageError("Expected --model or --problem, got both.")
    if output_path is None and trace_path is None and picture_path is None:
        output_path = pathlib.Path(_DEFAULT_OUTPUT)
    plan = load_plan(plan_path)
    profile = None if profile_path is None else load_profile(profile_path)
    run = None if run_path is None else load_run(run_path)
    networks = tuple(network_of_problem(load_problem(path)) for path in problem_paths)
    if model is not None:
        networks = _trace(model, plan, profile, image_size, target)
    graphs = shown_graphs(plan, networks, profile)
    if networks:
        _check_fits(graphs, networks, plan_path)
    with Console(stderr=True).status("Drawing"):
        # First of all, since it can fail for what is not installed.
        if picture_path is not None:
            from tf_interop.report.picture import save_timeline_picture

            save_timeline_picture(plan, picture_path)
        if output_path is not None:
            # Jinja takes a while to import.
            from tf_interop.report.page import render_page

            title = title or model or plan_path.name
            page = render_page(plan, title=title, networks=networks, profile=profile, run=run)
            write_file(page.encode(), output_path, "page", PlanError)
        if trace_path is not None:
            trace = json.dumps(trace_of_plan(plan))
            write_file(trace.encode(), trace_path, "trace", PlanError)
    written = {"page": output_path, "trace": trace_path, "picture": picture_path}
    notes = [f"{each.title}: {each.profile_fit.text}" for each in graphs if each.profile_fit]
    notes += filter(None, [foreign_device(plan, profile)])
    if output_path is not None and not networks:
        notes.append(_NO_NETWORK)

    def show() -> None:
        for what, path in written.items():
            if path is not None:
                click.echo(f"{path}: {what} of {count_of(len(plan.graphs), 'graph')}")
        for note in notes:
            click.echo(note)

    summaries = [
        summarize_graph(each.planned) | {"latency_is": " and ".join(each.total_labels) or None}
        for each in graphs
    ]
    paths = {what: path and str(path) for what, path in written.items()}
    return Result({**paths, "notes": notes, "graphs": summaries}, show)


def _trace(
    model: str,
    plan: Plan,
    profile: Profile | None,
    image_size: tuple[int, int] | None,
    target: str | None,
) -> tuple[Network, ...]:
    with work_on_model(model, parameter="--model") as status:
        from tf_interop.measure.device import running_device
        from tf_interop.model.load import load_model
        from tf_interop.report.model import networks_of_model

        if target is None:
            device = profile.device if profile is not None else running_device("cudnn")
            target = "cpu" if device is None else device.compute_capability or "cpu"
        return networks_of_model(
            load_model(model, image_size=image_size),
            plan,
            image_size=image_size,
            compute_capability=None if target == "cpu" else target,
            profile=profile,
            say=status.update,
        )


def _check_fits(
    graphs: Sequence[ShownGraph], networks: tuple[Network, ...], plan_path: pathlib.Path
) -> None:
    if graphs and all(each.network is None for each in graphs):
        found = ", ".join(f"{each.fingerprint or 'a problem'}" for each in networks)
        raise PlanError(
            f"Expected the graph {graphs[0].planned.fingerprint} of '{plan_path}', got {found}. "
            "Name the model that was planned, and what it was planned for with --for."
        )
