"""The commands `tf-interop show`, `report` and `schema`, which show files."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import click
import msgspec
from rich.console import Console

from tf_interop.benchmark.result import benchmark_schema, load_benchmark
from tf_interop.benchmark.show import show_benchmark, write_csv
from tf_interop.cli import options
from tf_interop.cli.main import Result, command, print_json
from tf_interop.cli.progress import model_loaded
from tf_interop.errors import PlanError, TfInteropError
from tf_interop.parallel.costs.devices import device_graph_schema
from tf_interop.parallel.show import show_parallel_plan, summary
from tf_interop.parallel.types import load_parallel_plan, parallel_plan_schema
from tf_interop.planning.show import doubt, explain_stages, name_graph, summarize_graph, verdict
from tf_interop.planning.types import Plan, load_plan, plan_schema
from tf_interop.profile.file import load_profile, profile_document, profile_schema
from tf_interop.profile.tables import show_profile
from tf_interop.report.network import Network
from tf_interop.report.timeline import load_run
from tf_interop.versioned_file import SHOWN_KINDS, kind_of, read_file, write_file

# TensorFlow and Jinja are imported only if they are needed.

_SCHEMAS = {
    "plan": plan_schema,
    "parallel-plan": parallel_plan_schema,
    "device-graph": device_graph_schema,
    "profile": profile_schema,
    "benchmark": benchmark_schema,
}


@command(
    """
show plan.json
show profile.json
show results.json --csv results.csv
"""
)
@click.argument("file")
@options.written("--csv", "csv_path", "OUT.csv", "Also write the results of a benchmark as CSV.")
def show(file: str, csv_path: pathlib.Path | None) -> Result:
    """Prints a plan, a profile or results of a benchmark.

    It explains a plan stage by stage: the algorithm of each lane, its time alone and together,
    measured or modelled, its memory, its kernels' shares of a streaming multiprocessor (SM), and
    the other algorithms, with the reasons against them.

    For a parallel plan it prints each layer with its division, the predicted times of that and of
    other divisions, and the reason.

    For a profile it prints each convolution with its fastest algorithm, and each stage's time
    against that of the same convolutions one after another, in µs.

    For a benchmark it prints the ms of a step, and how the variants compare.

    With --json it prints the whole content of the file. For an invalid file the error names the
    place.
    """
    # A profile with thousands of measurements takes seconds.
    with Console(stderr=True).status("Reading"):
        # A damaged file still names its kind, and the reader for that kind reports the place.
        content = read_file(file, "plan, parallel plan, profile or benchmark", TfInteropError)
        kind = kind_of(content)
        if kind not in SHOWN_KINDS:
            raise TfInteropError(
                f"'{file}' is not a plan, a parallel plan, a profile or results of a benchmark. "
                "Check the path."
            )
        if csv_path is not None and kind != "benchmark":
            raise click.UsageError(
                f"'{file}' is a {kind.replace('_', ' ')}, but --csv needs results of a benchmark. "
                "Leave out --csv."
            )
        if kind == "plan":
            plan = load_plan(file)
            return Result(plan, lambda: explain_stages(plan, Console()))
        if kind == "parallel_plan":
            parallel = load_parallel_plan(file)
            return Result(parallel, lambda: show_parallel_plan(parallel, Console()))
        if kind == "profile":
            profile = load_profile(file)
            return Result(profile_document(profile), lambda: show_profile(profile, Console()))
        results = load_benchmark(file)
        if csv_path is not None:
            write_csv(results, csv_path)
        return Result(results, lambda: show_benchmark(results, Console()))


@command("schema plan > plan.schema.json")
@click.argument("kind", type=click.Choice(list(_SCHEMAS)))
def schema(kind: str) -> Result:
    """Prints the JSON schema of a kind of file.

    The schema of a profile describes one line.
    """
    document = _SCHEMAS[kind]()
    return Result(document, lambda: print_json(document))


@command(
    """
report plan.json --model NASNetMobile -o report.html
report plan.json --export-trace predicted.json --png timeline.png

With the measured timeline of a program:
run --plan plan.json --trace trace.json train.py
report plan.json --trace trace.json

A plan for a GPU, shown on a machine without one:
report plan.json --model my_package.models:build --for 9.0

How layers are divided over several devices:
report parallel.json
"""
)
@click.argument("plan_path", metavar="PLAN", type=click.Path(path_type=pathlib.Path))
@options.output("REPORT.html", "The page.", default="report.html")
@click.option(
    "--model",
    type=options.MODEL,
    help="The model that PLAN is for, as in tf-interop plan and tune. It adds dependencies and "
    "the computation of each part. The model is traced; if it was tuned, it also runs once, on "
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
@options.written(
    "--export-trace",
    "trace_path",
    "PREDICTED.json",
    "Also write the predicted timelines as a trace for ui.perfetto.dev or chrome://tracing.",
)
@options.written(
    "--png",
    "picture_path",
    "TIMELINE.png",
    "Also write the timelines as a picture; needs the extra `report`.",
)
@options.image_size
@options.target("The device that the plan is for", "this process's device")
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

    The page shows what the plan gains, and why, with the model's network and timelines. It is one
    file that works offline. Every time is marked as measured or modelled.

    For a parallel plan it shows the devices of each layer, with the predicted times, and what the
    devices send to each other.
    """
    if kind_of(read_file(plan_path, "plan", PlanError)) == "parallel_plan":
        others = {
            "--model": model,
            "--trace": run_path,
            "--export-trace": trace_path,
            "--png": picture_path,
        }
        return _report_division(plan_path, output_path, title, others)
    plan = load_plan(plan_path)
    run = None if run_path is None else load_run(run_path)
    picture = None
    if picture_path is not None:
        # First, because matplotlib may be missing, and tracing takes a long time.
        from tf_interop.report.exports import draw_timelines

        picture = draw_timelines(plan)
    networks = () if model is None else _trace(model, plan, image_size, target)
    title = title or model or plan.made_with.get("model") or plan_path.name
    with Console(stderr=True).status("Drawing"):
        from tf_interop.report.exports import trace_of_plan
        from tf_interop.report.page import render_page

        page = render_page(plan, title=title, networks=networks, run=run)
        write_file(page.encode(), output_path, "page", PlanError)
        if trace_path is not None:
            write_file(msgspec.json.encode(trace_of_plan(plan)), trace_path, "trace", PlanError)
        if picture_path is not None and picture is not None:
            write_file(picture, picture_path, "picture", PlanError)

    written = {"page": output_path, "trace": trace_path, "picture": picture_path}

    def show_verdicts() -> None:
        for graph in plan.graphs:
            click.echo(f"{title}, {name_graph(graph)}: {verdict(graph)}")
        for what, path in written.items():
            if path is not None:
                click.echo(f"The {what} is in {path}.")

    graphs = [
        summarize_graph(graph) | {"verdict": verdict(graph), "doubt": doubt(graph)}
        for graph in plan.graphs
    ]
    return Result({**written, "graphs": graphs}, show_verdicts)


def _report_division(
    plan_path: pathlib.Path,
    output_path: pathlib.Path,
    title: str | None,
    others: Mapping[str, object],
) -> Result:
    for option, value in others.items():
        if value is not None:
            raise click.UsageError(
                f"'{plan_path}' is a parallel plan, but {option} needs a plan of one device. Leave "
                f"out {option}."
            )
    plan = load_parallel_plan(plan_path)
    title = title or plan.made_with.get("model") or plan_path.name
    with Console(stderr=True).status("Drawing"):
        from tf_interop.report.page import render_division

        write_file(render_division(plan, title).encode(), output_path, "page", PlanError)

    def show_summaries() -> None:
        for graph in plan.graphs:
            click.echo(f"{title}, {name_graph(graph)}: {summary(graph)}")
        click.echo(f"The page is in {output_path}.")

    graphs = [
        {"graph": graph.fingerprint, "divided": len(graph.layers), "summary": summary(graph)}
        for graph in plan.graphs
    ]
    return Result({"page": output_path, "graphs": graphs}, show_summaries)


def _trace(
    model: str, plan: Plan, image_size: tuple[int, int] | None, target: str | None
) -> tuple[Network | None, ...]:
    with model_loaded(model, image_size, parameter="--model") as (loaded, say):
        from tf_interop.measure.device import running_device
        from tf_interop.report.model import networks_of_model

        if target is None:
            device = running_device("cudnn")
            target = "cpu" if device is None else device.compute_capability or "cpu"
        return networks_of_model(
            loaded,
            plan,
            image_size=image_size,
            compute_capability=None if target == "cpu" else target,
            say=say,
        )
