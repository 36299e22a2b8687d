"""The commands `tf-interop tune` and `tuned`, which lists the cache of tuned plans."""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
import sys
from typing import TYPE_CHECKING

import click
from rich.console import Console

from tf_interop.cli import options
from tf_interop.cli.main import Result, command
from tf_interop.cli.progress import model_loaded
from tf_interop.measure.device import ask_for_all_hardware_queues
from tf_interop.planning.show import doubt, name_graph, summarize_graph
from tf_interop.planning.types import Plan, save_plan
from tf_interop.terminal import UNKNOWN, new_table, print_on
from tf_interop.tuning.cache import cache_folder, cached_plans, clear_cache

if TYPE_CHECKING:
    from tf_interop.tuning.tune import TunedGraph, Tuning


@command(
    """
tune InceptionV3 --batch 1,8 --budget 1m
tune my_package.models:build --training --batch 32 -o plan.json
tune ResNet50 --no-compare-xla --fresh
""",
)
@options.model
@options.batches
@click.option("--training", is_flag=True, help="Tune a training step instead of inference.")
@click.option(
    "--budget", "budget_s", type=options.TIME, default="30s", help="How long to measure one graph."
)
@options.image_size
@click.option(
    "--compare-xla/--no-compare-xla",
    default=True,
    help="Also measure jit_compile=True, which takes the budget once more.",
)
@click.option("--fresh", is_flag=True, help="Measure again, even if the cache has a result.")
@options.output("PLAN.json", "The plan, for tf-interop run --plan and enable(plan=…).")
def tune(
    model: str,
    batch_sizes: tuple[int, ...],
    training: bool,
    budget_s: float,
    image_size: tuple[int, int] | None,
    compare_xla: bool,
    fresh: bool,
    output_path: pathlib.Path | None,
) -> Result:
    """Finds by measurement what beats stock TensorFlow on this machine.

    The command measures steps as programs run them, in several new processes: stock TensorFlow,
    and, in turns with it, MODEL as tf_interop.enable() changes it, after it has found its way to
    run. The model runs on random values.

    The result is cached in the user's cache folder, where tf_interop.tune(model) finds it.

    On a GPU it measures convolutions and stages, as tf-interop profile does, and plans from them.
    It measures no whole step there.
    """
    ask_for_all_hardware_queues()  # before the model is loaded, which may start CUDA
    with model_loaded(model, image_size, training=training) as (loaded, say):
        from tf_interop.tuning.tune import tune as tune_model

        tuning = tune_model(
            loaded,
            batch_sizes=batch_sizes,
            training=training,
            image_size=image_size,
            budget=budget_s,
            compare_xla=compare_xla,
            use_cache=not fresh,
            enable=False,
            say=say,
        )
    if output_path is not None:
        called = shlex.join(["tf-interop", *sys.argv[1:]])
        made_with = tuning.plan.made_with | {"model": model, "command": called}
        save_plan(dataclasses.replace(tuning.plan, made_with=made_with), output_path)
    graphs = [
        {
            "name": each.name,
            "is_cached": each.is_cached,
            **summarize_graph(each.plan),
            "xla": each.xla,
        }
        for each in tuning.graphs
    ]

    def show() -> None:
        for graph in tuning.graphs:
            _show_graph(graph, Console())
        if advice := _how_to_use(tuning, output_path):
            print_on(Console(), advice)

    return Result({"plan": output_path, "is_faster": tuning.is_faster, "graphs": graphs}, show)


@command("tuned\ntuned --clear")
@click.option("--clear", is_flag=True, help="Delete all of them.")
def tuned(clear: bool) -> Result:
    """Lists the tuned plans in the cache."""
    folder, found = cache_folder(), list(cached_plans())
    if clear:
        clear_cache()

    def show() -> None:
        if found:
            title = "Tuned before: tf_interop.enable() against stock TensorFlow"
            table = new_table(title, "graph", "times as fast")
            table.add_column("measured on", overflow="fold")
            for _, plan in found:
                (graph,) = plan.graphs
                measured = graph.measured
                assert measured is not None  # the cache has only such plans
                ours = measured.ours
                ratio = f"{ours.ratio:.2f} ± {ours.error or 0:.2f}"
                table.add_row(
                    _name_of(plan),
                    ratio if ours.is_gain else "stock is as fast",
                    plan.made_with.get("device", UNKNOWN),
                )
            print_on(Console(), table)
        click.echo(f"{folder}: {len(found)} plans" + " deleted" * clear)

    document = {
        "folder": folder,
        "plans": [
            {"file": path.name, "graph": _name_of(plan), "made_with": plan.made_with}
            | summarize_graph(plan.graphs[0])
            for path, plan in found
        ],
    }
    return Result(document, show)


def _show_graph(graph: TunedGraph, console: Console) -> None:
    measured = graph.plan.measured
    if measured is not None:
        table = new_table(graph.name, "", "median step, ms", "times as fast")
        for each in measured.compared:
            error = f" ± {each.error:.3f}" if each.error else ""
            table.add_row(each.name, f"{each.step_ms:.2f}", f"{each.ratio:.3f}{error}")
        print_on(console, table)
        of_xla = ""
        if measured.xla is not None:
            of_xla = " XLA ran in one process, beside stock TensorFlow there."
        print_on(
            console,
            "times as fast as stock TensorFlow; 95 % of further programs should be within ±."
            + of_xla,
        )
        if isinstance(graph.xla, str):
            print_on(console, f"XLA was not measured: {graph.xla}.")
    fresh = " --fresh measures again." if graph.is_cached else ""
    print_on(console, f"\n{graph}{fresh}")


def _how_to_use(tuning: Tuning, path: pathlib.Path | None) -> str:
    written = "" if path is None else f"The plan is in {path}."
    if any(doubt(each.plan) for each in tuning.graphs):
        return written or "The result was not kept. -o writes it."
    if not tuning.is_faster:
        return f"There is nothing to turn on. {written}".rstrip()
    if path is not None:
        return f"{written} To use it: tf-interop run --plan {path} your_program.py"
    if any(each.plan.measured is None for each in tuning.graphs):
        return (
            "To use it, write a plan with -o. No whole step was measured, and XLA may be "
            "faster: first compare with tf-interop benchmark --plan."
        )
    return (
        "To use it, call tf_interop.tune(model) with the same options, which finds it in the "
        "cache; or write a plan with -o and pass it to tf-interop run --plan."
    )


def _name_of(plan: Plan) -> str:
    return plan.made_with.get("graph") or name_graph(plan.graphs[0])
