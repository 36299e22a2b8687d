"""The command `tf-interop report`: a plan as a page, a trace and a picture."""

from __future__ import annotations

import json
import pathlib

import click
from rich.console import Console

from tf_interop.cli.command import Result, command
from tf_interop.cli.options import (
    MODEL,
    image_size_option,
    output_option,
    target_option,
    written_option,
)
from tf_interop.cli.progress import work_on_model
from tf_interop.errors import PlanError
from tf_interop.planning.show import doubt, name_graph, summarize_graph, verdict
from tf_interop.planning.types import Plan, load_plan
from tf_interop.report.measured import load_run
from tf_interop.report.network import Network
from tf_interop.versioned_file import write_file

# TensorFlow and Jinja are imported only where they are needed.

_EXAMPLES = """
report plan.json --model NASNetMobile -o report.html
report plan.json --export-trace predicted.json --png timeline.png

With what a run of a program took:
run --plan plan.json --trace trace.json train.py
report plan.json --trace trace.json

A plan for a GPU, shown on a machine without one:
report plan.json --model my_package.models:build --for 9.0
"""


@command(_EXAMPLES)
@click.argument("plan_path", metavar="PLAN", type=click.Path(path_type=pathlib.Path))
@output_option("REPORT.html", "The page.", default="report.html")
@click.option(
    "--model",
    type=MODEL,
    help="The model that PLAN is for, as in tf-interop plan and tune. It adds dependencies and "
    "the computation of each part. The model is traced; a tuned one also runs once, on "
    "zeros.",
)
@click.option("--title", help="The page's title. [default: the model's name, or the plan's file]")
@click.option(
    "--trace",
    "run_path",
    metavar="TRACE.json",
    type=click.Path(),
    help="A file of tf-interop run --trace with this plan. The page shows its timeline next to "
    "the predicted ones.",
)
@written_option(
    "--export-trace",
    "trace_path",
    "PREDICTED.json",
    "Also write the predicted timelines as a trace for ui.perfetto.dev or chrome://tracing.",
)
@written_option(
    "--png",
    "picture_path",
    "TIMELINE.png",
    "Also write the timelines as a picture; needs the extra `report`.",
)
@image_size_option
@target_option("The device that the plan is for", "this process' device")
def report(
    plan_path: pathlib.Path,
    output_path: pathlib.Path,
    model: str | None,
    title: str | None,
    run_path: str | None,
    trace_path: pathlib.Path | None,
    picture_path: pathlib.Path | None,
    image_size: tuple[int, int] | None,
    target: str | None,
) -> Result:
    """Shows PLAN as a page.

    The page shows what the plan gains, and why, with its network and its timelines. It is one file
    that needs no network. Every time is marked as measured, modelled or simulated.
    """
    plan = load_plan(plan_path)
    run = None if run_path is None else load_run(run_path)
    picture = None
    if picture_path is not None:
        # First: it may not be possible, and tracing takes long.
        from tf_interop.report.picture import draw_timelines

        picture = draw_timelines(plan)
    networks = () if model is None else _trace(model, plan, image_size, target)
    title = title or model or plan_path.name
    with Console(stderr=True).status("Drawing"):
        # Jinja takes a while to import.
        from tf_interop.report.page import render_page
        from tf_interop.report.trace import trace_of_plan

        page = render_page(plan, title=title, networks=networks, run=run)
        write_file(page.encode(), output_path, "page", PlanError)
        if trace_path is not None:
            write_file(json.dumps(trace_of_plan(plan)).encode(), trace_path, "trace", PlanError)
        if picture_path is not None and picture is not None:
            write_file(picture, picture_path, "picture", PlanError)

    written = {"page": output_path, "trace": trace_path, "picture": picture_path}

    def show() -> None:
        for graph in plan.graphs:
            said = f"{verdict(graph)} {doubt(graph)}".rstrip()
            click.echo(f"{title}, {name_graph(graph)}: {said}")
        for what, path in written.items():
            if path is not None:
                click.echo(f"The {what} is in {path}.")

    graphs = [
        summarize_graph(graph) | {"verdict": verdict(graph), "doubt": doubt(graph)}
        for graph in plan.graphs
    ]
    return Result({**written, "graphs": graphs}, show)


def _trace(
    model: str, plan: Plan, image_size: tuple[int, int] | None, target: str | None
) -> tuple[Network | None, ...]:
    with work_on_model(model, parameter="--model") as say:
        from tf_interop.measure.device import running_device
        from tf_interop.model.load import load_model
        from tf_interop.report.model import networks_of_model

        if target is None:
            device = running_device("cudnn")
            target = "cpu" if device is None else device.compute_capability or "cpu"
        return networks_of_model(
            load_model(model, image_size=image_size),
            plan,
            image_size=image_size,
            compute_capability=None if target == "cpu" else target,
            say=say,
        )
