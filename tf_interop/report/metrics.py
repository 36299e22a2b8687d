"""The totals of a report, each with what it is."""

from __future__ import annotations

import dataclasses
import math

from tf_interop.plan.problem import FigureSource
from tf_interop.plan.types import GraphPlan, GraphPrediction
from tf_interop.report.bars import size
from tf_interop.report.words import (
    COUNTED,
    count_of,
    figure_label,
    measured_count,
    microseconds,
    staged_count,
    total_labels,
    what_is_lacking,
)
from tf_interop.runtime.run_record import Timing, RunRecord


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A figure with what it is.

    Attributes:
        name: what it is of.
        text: the figure; empty where there is none.
        labels: `measured`, `modelled`, `simulated` or `counted`; none for a number of things.
        is_sum: whether it is the sum of such figures, and nothing took that long as a whole.
        warning: what makes it less than it seems.
        note: what else to know.
    """

    name: str
    text: str
    labels: tuple[str, ...] = ()
    is_sum: bool = False
    warning: str = ""
    note: str = ""


def figures_of(graph: GraphPlan, run: RunRecord | None, *, simulated: bool) -> list[Figure]:
    """The totals of an entry of a plan.

    Args:
        graph: the entry.
        run: a run with the plan.
        simulated: whether what is called measured was not.
    """
    prediction = graph.prediction
    figures = []
    if prediction is not None and graph.convolution_count:
        figures += _times(graph, prediction, simulated)
    figures.append(
        Figure(
            "stages",
            str(len(graph.stages)),
            note=f"{staged_count(graph)} of {count_of(graph.convolution_count, 'convolution')}",
        )
    )
    if prediction is not None and measured_count(graph):
        figures.append(_peak(graph, prediction))
    figures += [_step_figure(step) for step in _steps(graph, run)]
    return figures


def _times(graph: GraphPlan, prediction: GraphPrediction, simulated: bool) -> list[Figure]:
    measured = figure_label(FigureSource.MEASURED, simulated=simulated)
    if not measured_count(graph):
        return [Figure("time", "", warning=f"nothing {measured}")]
    warning = what_is_lacking(graph, simulated=simulated)
    one_by_one = Figure(
        "one after another",
        microseconds(prediction.sequential_us, prediction.latency_us),
        (measured,),
        is_sum=True,
        warning=warning,
    )
    if not graph.stages:
        # Without a stage the plan is one after another, and a ratio says nothing.
        return [one_by_one]
    figures = [
        Figure(
            "in stages",
            microseconds(prediction.latency_us, prediction.sequential_us),
            total_labels(graph, simulated=simulated),
            is_sum=True,
            warning=warning,
            note=_spread_note(graph),
        ),
        one_by_one,
    ]
    if prediction.latency_us:
        ratio = prediction.sequential_us / prediction.latency_us
        figures.append(Figure("ratio", f"{ratio:.2f}×", note="of these two sums"))
    return figures


def _spread_note(graph: GraphPlan) -> str:
    spread_us = math.fsum(
        stage.prediction.spread_us for stage in graph.stages if stage.prediction is not None
    )
    return f"± {microseconds(spread_us)} if all stages are off alike" if spread_us else ""


def _peak(graph: GraphPlan, prediction: GraphPrediction) -> Figure:
    budget = prediction.memory_budget_bytes
    notes = ["no budget" if budget is None else f"budget {size(budget)}"]
    if graph.stages:
        notes.insert(0, f"{size(prediction.sequential_peak_bytes)} one after another")
    elif prediction.peak_bytes != prediction.sequential_peak_bytes:
        other = size(prediction.sequential_peak_bytes)
        notes.insert(0, f"in the plan's order; {other} in the graph's own, which outputs outlive")
    return Figure("peak memory", size(prediction.peak_bytes), (COUNTED,), note="; ".join(notes))


def _steps(graph: GraphPlan, run: RunRecord | None) -> list[Timing]:
    return [
        step
        for step in (() if run is None else run.timings)
        if step.fingerprint == graph.fingerprint
        and (None in (step.batch_size, graph.batch_size) or step.batch_size == graph.batch_size)
    ]


def _step_figure(step: Timing) -> Figure:
    return Figure(
        f"whole step, {step.what}",
        microseconds(step.latency_us),
        (FigureSource.MEASURED.value,),
        note=f"± {microseconds(step.spread_us)}; other operations included",
    )
