"""What a plan comes to, graph by graph, for people to read, and what is not in the figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.console import Console
from rich.filesize import decimal

from tf_interop.plan.problem import FigureSource
from tf_interop.plan.types import GraphPlan, GraphPrediction, Plan
from tf_interop.tables import UNKNOWN, new_table, percent, print_on


@dataclasses.dataclass(frozen=True, slots=True)
class GraphLabel:
    """What is known of a graph of a plan besides the plan.

    Attributes:
        step: what is run of the model, such as `inference`.
        missing: what the profile lacks of it, as a sentence; empty where it lacks nothing, or where
            that is not known.
    """

    step: str
    missing: str = ""


def show_plan(plan: Plan, console: Console, labels: Sequence[GraphLabel] = ()) -> None:
    """Prints a table with a row for each graph, and below it what is missing, and why.

    Args:
        plan: any plan.
        console: where to print.
        labels: what each graph is; by default its fingerprint.
    """
    table = new_table("Plan: microseconds and memory, in stages and one after another")
    table.add_column("graph", overflow="fold")
    for heading in ("batch", "conv.", "stages", "us", "one by one", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("measured", justify="right", max_width=12)
    for heading in ("peak", "one by one"):
        table.add_column(heading, justify="right", no_wrap=True)
    names = [label.step for label in labels] or [graph.fingerprint for graph in plan.graphs]
    for name, graph in zip(names, plan.graphs, strict=True):
        table.add_row(
            name,
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
    missing = [label.missing for label in labels] or [""] * len(plan.graphs)
    for name, graph, what in zip(names, plan.graphs, missing, strict=True):
        batch = "" if graph.batch_size is None else f", batch {graph.batch_size}"
        for line in (_say_unmeasured(graph, what), _say_no_stage(graph)):
            if line:
                print_on(console, f"{name}{batch}: {line}")


def describe_graph(graph: GraphPlan) -> str:
    """What is expected of a graph of a plan, in a few lines."""
    batch = "any batch size" if graph.batch_size is None else f"batch size {graph.batch_size}"
    lines = [
        f"Graph {graph.fingerprint}, {batch}: {len(graph.stages)} stages for "
        f"{graph.convolution_count} convolutions"
    ]
    prediction = graph.prediction
    if prediction is None:
        return lines[0]
    if has_figures(graph):
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


def has_figures(graph: GraphPlan) -> bool:
    """Whether anything is expected of a graph: some of its convolutions were measured."""
    prediction = graph.prediction
    return prediction is not None and not _is_unmeasured(graph, prediction)


def _is_unmeasured(graph: GraphPlan, prediction: GraphPrediction) -> bool:
    return 0 < graph.convolution_count <= prediction.unmeasured_count


def _prediction_cells(graph: GraphPlan) -> tuple[str, ...]:
    prediction = graph.prediction
    if prediction is None:
        return (UNKNOWN,) * 6
    if _is_unmeasured(graph, prediction):
        return (UNKNOWN, UNKNOWN, UNKNOWN, _incomplete(graph, prediction), UNKNOWN, UNKNOWN)
    is_whole = not prediction.unmeasured_count
    return (
        f"{prediction.latency_us:.1f}",
        f"{prediction.sequential_us:.1f}",
        # Of a part of the graph it would be no ratio of the graph.
        _ratio(prediction) if is_whole else UNKNOWN,
        percent(_measured_share(graph, prediction)) if is_whole else _incomplete(graph, prediction),
        decimal(prediction.peak_bytes),
        decimal(prediction.sequential_peak_bytes),
    )


def _incomplete(graph: GraphPlan, prediction: GraphPrediction) -> str:
    measured = graph.convolution_count - prediction.unmeasured_count
    return f"incomplete: {measured} of {graph.convolution_count} convolutions"


def _ratio(prediction: GraphPrediction) -> str:
    if not prediction.latency_us:
        return UNKNOWN
    return f"{prediction.sequential_us / prediction.latency_us:.2f}"


def _measured_share(graph: GraphPlan, prediction: GraphPrediction) -> float | None:
    """Of the predicted time; convolutions in no stage were measured alone."""
    if not prediction.latency_us:
        return None
    modelled_us = sum(
        stage.prediction.latency_us
        for stage in graph.stages
        if stage.prediction is not None and stage.prediction.source is FigureSource.MODELLED
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


def _say_unmeasured(graph: GraphPlan, missing: str = "") -> str:
    if graph.prediction is None or not graph.prediction.unmeasured_count:
        return ""
    return (
        f"{_incomplete(graph, graph.prediction)}. What is not in the profile is in no stage and "
        "in none of these figures. "
        + (missing or "Profile the model with this step and this batch size to plan them.")
    )


def _say_no_stage(graph: GraphPlan) -> str:
    if graph.stages or not has_figures(graph):
        return ""
    return f"no stage: {graph.why_no_stage or 'none is faster by more than the figures may be off'}"
