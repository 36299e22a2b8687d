"""What a plan comes to, graph by graph, for people to read and as plain values for `--json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.filesize import decimal

from tf_interop.planning.problem import ValueSource
from tf_interop.planning.types import GraphPlan, GraphPrediction, Plan
from tf_interop.tables import UNKNOWN, new_table, percent, print_on


def show_plan(plan: Plan, console: Console, lacking: Sequence[str] | None = None) -> None:
    """Prints a table with a row for each graph, and below it what was not measured, and why.

    Args:
        plan: any plan.
        console: where to print.
        lacking: what the profile lacks of each graph, as a sentence; empty where it lacks nothing.
            None where that is not known.
    """
    table = new_table("Plan: microseconds and memory, in stages and one after another")
    table.add_column("graph", overflow="fold")
    for heading in ("batch", "conv.", "stages", "us", "one by one", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("measured", justify="right", max_width=12)
    for heading in ("peak", "one by one"):
        table.add_column(heading, justify="right", no_wrap=True)
    for graph in plan.graphs:
        table.add_row(
            graph.mode or graph.fingerprint,
            "any" if graph.batch_size is None else str(graph.batch_size),
            str(graph.convolution_count),
            str(len(graph.stages)),
            *_prediction_cells(graph),
        )
    print_on(console, table)
    print_on(
        console,
        "\nOne by one: every convolution alone, with what is fastest alone; measured. The column "
        "measured\nis the share of us that was; the rest is modelled. Memory: outputs of "
        "convolutions, workspaces.",
    )
    for graph, what in zip(plan.graphs, lacking or [""] * len(plan.graphs), strict=True):
        for line in (_say_unmeasured(graph, what), _say_no_stage(graph)):
            if line:
                print_on(console, f"{name_graph(graph)}: {line}")


def name_graph(graph: GraphPlan) -> str:
    """What tells the graphs of a plan apart, such as `inference, batch 8`."""
    batch = "" if graph.batch_size is None else f", batch {graph.batch_size}"
    return f"{graph.mode or graph.fingerprint}{batch}"


def describe_graph(graph: GraphPlan) -> str:
    """What is expected of a graph of a plan, in a few lines."""
    batch = "any batch size" if graph.batch_size is None else f"batch size {graph.batch_size}"
    lines = [
        f"Graph {graph.fingerprint}, {batch}: {len(graph.stages)} stages for "
        f"{graph.convolution_count} convolutions"
    ]
    prediction = predicted(graph)
    if prediction is not None:
        budget = prediction.memory_budget_bytes
        lines += [
            f"  {prediction.latency_us:.1f} us expected, {_measured_words(graph, prediction)}; "
            f"{prediction.sequential_us:.1f} us one after another, measured",
            f"  memory at most {decimal(prediction.peak_bytes)}; "
            f"{decimal(prediction.sequential_peak_bytes)} one after another; "
            + ("no budget" if budget is None else f"budget {decimal(budget)}"),
            f"  search: {prediction.search}",
        ]
    said = (_say_unmeasured(graph), _say_no_stage(graph))
    return "\n".join([*lines, *(f"  {line}" for line in said if line)])


def summarize_graph(graph: GraphPlan) -> dict[str, Any]:
    """The values of one entry of a plan; None where it predicts nothing of any convolution."""
    prediction = predicted(graph)
    return {
        "mode": graph.mode,
        "fingerprint": graph.fingerprint,
        "batch_size": graph.batch_size,
        "convolutions": graph.convolution_count,
        "unmeasured": None if graph.prediction is None else graph.prediction.unmeasured_count,
        "stages": len(graph.stages),
        "latency_us": None if prediction is None else prediction.latency_us,
        "sequential_us": None if prediction is None else prediction.sequential_us,
        "peak_bytes": None if prediction is None else prediction.peak_bytes,
    }


def predicted(graph: GraphPlan) -> GraphPrediction | None:
    """What is expected of a graph; None where nothing is, as none of its convolutions is known."""
    prediction = graph.prediction
    if prediction is None or 0 < graph.convolution_count <= prediction.unmeasured_count:
        return None
    return prediction


def _prediction_cells(graph: GraphPlan) -> tuple[str, ...]:
    prediction = predicted(graph)
    if prediction is None:
        measured = UNKNOWN if graph.prediction is None else _incomplete(graph, graph.prediction)
        return (UNKNOWN, UNKNOWN, UNKNOWN, measured, UNKNOWN, UNKNOWN)
    # Of a part of the graph it would be no ratio of the graph.
    ratio, measured = UNKNOWN, _incomplete(graph, prediction)
    if not prediction.unmeasured_count:
        measured = percent(_measured_share(graph, prediction))
        if prediction.latency_us:
            ratio = f"{prediction.sequential_us / prediction.latency_us:.2f}"
    return (
        f"{prediction.latency_us:.1f}",
        f"{prediction.sequential_us:.1f}",
        ratio,
        measured,
        decimal(prediction.peak_bytes),
        decimal(prediction.sequential_peak_bytes),
    )


def _incomplete(graph: GraphPlan, prediction: GraphPrediction) -> str:
    measured = graph.convolution_count - prediction.unmeasured_count
    return f"incomplete: {measured} of {graph.convolution_count} convolutions"


def _measured_share(graph: GraphPlan, prediction: GraphPrediction) -> float | None:
    """Of the predicted time; unstaged convolutions were measured."""
    if not prediction.latency_us:
        return None
    modelled_us = sum(
        stage.prediction.latency_us
        for stage in graph.stages
        if stage.prediction is not None and stage.prediction.source is ValueSource.MODELLED
    )
    return max(0.0, 1 - modelled_us / prediction.latency_us)


def _measured_words(graph: GraphPlan, prediction: GraphPrediction) -> str:
    share = _measured_share(graph, prediction)
    if share is None or share == 1:
        words = "measured"
    elif not share:
        words = "modelled"
    else:
        words = f"{percent(share)} of it measured, the rest modelled"
    return f"{_incomplete(graph, prediction)}, {words}" if prediction.unmeasured_count else words


def _say_unmeasured(graph: GraphPlan, lacking: str = "") -> str:
    if graph.prediction is None or not graph.prediction.unmeasured_count:
        return ""
    return (
        f"{_incomplete(graph, graph.prediction)}. What is not in the profile is in no stage and "
        "in none of these values. "
        + (lacking or "Profile the model with this mode and this batch size to plan them.")
    )


def _say_no_stage(graph: GraphPlan) -> str:
    if graph.stages or predicted(graph) is None:
        return ""
    return f"no stage: {graph.why_no_stage or 'none is faster by more than the values may be off'}"
