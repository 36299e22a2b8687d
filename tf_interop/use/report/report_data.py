"""What a report shows, from a plan and what else is known: plain values, nothing of HTML."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from tf_interop.know.convolution import Refusal
from tf_interop.know.plans.plan import GraphPlan, Plan
from tf_interop.know.plans.planning_problem import FigureSource
from tf_interop.know.profiles.profile import Profile
from tf_interop.know.results.run_record import MeasuredStep, RunGraph, RunRecord
from tf_interop.use.report.figures import SIMULATED, figure_label, is_simulated, total_label
from tf_interop.use.report.report_bars import microseconds, size
from tf_interop.use.report.report_drawings import (
    NetworkDrawing,
    TimelineDrawings,
    draw_network,
    draw_timelines,
)
from tf_interop.use.report.report_network import Network, network_for
from tf_interop.use.report.report_stage import ReportStage, report_stage
from tf_interop.use.report.timeline import has_times, planned_timeline, sequential_timeline


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A figure with what it is.

    Attributes:
        name: what it is of.
        text: the figure.
        label: `measured`, `modelled` or `simulated`; empty for a count.
        note: what else to know.
    """

    name: str
    text: str
    label: str = ""
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ReportGraph:
    """An entry of the plan.

    Attributes:
        anchor: a name for links.
        title: what the graph is.
        planned: what the plan says of it.
        figures: the totals.
        network: the drawing of its convolutions.
        timelines: when what runs; None where no planner made the stages.
        stages: the stages.
        alone: names, algorithms and times of the convolutions in no stage.
        refusals: convolutions that can be part of no stage.
        run: what a run did to the graph; None where none is known.
        notes: what else to know.
    """

    anchor: str
    title: str
    planned: GraphPlan
    figures: tuple[Figure, ...]
    network: NetworkDrawing
    timelines: TimelineDrawings | None
    stages: tuple[ReportStage, ...]
    alone: tuple[tuple[str, str | None, float], ...]
    refusals: tuple[Refusal, ...]
    run: RunGraph | None
    notes: tuple[str, ...]

    @property
    def first_stage(self) -> int:
        """The number of the stage to show first: that which saves the most time."""
        return max(self.stages, key=lambda stage: (stage.saved_us, -stage.number)).number


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """Everything on a page.

    Attributes:
        title: of the page.
        facts: what the plan was made with, each with its name.
        simulated: how the figures were made, where nothing was measured; else empty.
        measured: what figures that would be measured are called.
        graphs: the entries of the plan.
        run: a run with the plan; None where none is known.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    simulated: str
    measured: str
    graphs: tuple[ReportGraph, ...]
    run: RunRecord | None


def make_report(
    plan: Plan,
    *,
    title: str,
    networks: Sequence[Network] = (),
    profile: Profile | None = None,
    run: RunRecord | None = None,
) -> Report:
    """Gathers what a report shows.

    Args:
        plan: any plan.
        title: of the page.
        networks: what depends on what in its graphs, as far as that is known.
        profile: what the plan was made by.
        run: a run with the plan.
    """
    simulated = is_simulated(plan)
    return Report(
        title=title,
        facts=_facts(plan, profile),
        simulated=plan.made_with.get(SIMULATED, ""),
        measured=figure_label(FigureSource.MEASURED, simulated=simulated),
        graphs=tuple(
            _report_graph(number, graph, name, networks, run, simulated)
            for number, (graph, name) in enumerate(
                zip(plan.graphs, graph_titles(plan), strict=True)
            )
        ),
        run=run,
    )


def graph_titles(plan: Plan) -> list[str]:
    """What to call each graph: its batch size, and what else tells it from the others."""
    titles = [
        "any batch size" if graph.batch_size is None else f"batch {graph.batch_size}"
        for graph in plan.graphs
    ]
    counts = collections.Counter(titles)
    return [
        title if counts[title] == 1 else f"{title}, {graph.convolution_count} convolutions"
        for title, graph in zip(titles, plan.graphs, strict=True)
    ]


def _facts(plan: Plan, profile: Profile | None) -> tuple[tuple[str, str], ...]:
    facts = {name: value for name, value in plan.made_with.items() if name != SIMULATED}
    if profile is not None:
        device = profile.device
        facts |= {"device": device.name, "profiled": device.date}
        if device.sm_limits is not None:
            facts["SMs"] = str(device.sm_count)
        facts |= {"memory": size(device.memory_bytes)} if device.memory_bytes else {}
        facts |= {"cudnn": device.cudnn} if device.cudnn else {}
        facts |= {"driver": device.driver} if device.driver else {}
    if is_simulated(plan):
        facts.pop("profiled", None)
    names = {"tensorflow": "TensorFlow", "cudnn": "cuDNN"}
    return tuple((names.get(name, name), value) for name, value in facts.items())


def _report_graph(
    number: int,
    graph: GraphPlan,
    title: str,
    networks: Sequence[Network],
    run: RunRecord | None,
    simulated: bool,
) -> ReportGraph:
    network = network_for(graph, networks)
    nodes = {} if network is None else {node.name: node for node in network.nodes}
    timelines = None
    if has_times(graph):
        timelines = draw_timelines(
            {
                "One after another, each with what is fastest alone": sequential_timeline(graph),
                "In the stages of the plan": planned_timeline(graph),
            },
            simulated=simulated,
        )
    of_run = None if run is None else _run_graph(graph, run)
    refusals = () if network is None else network.refusals
    return ReportGraph(
        anchor=f"graph-{number}",
        title=title,
        planned=graph,
        figures=tuple(_figures(graph, run, simulated)),
        network=draw_network(graph, network),
        timelines=timelines,
        stages=tuple(
            report_stage(place, stage, graph, nodes, simulated=simulated)
            for place, stage in enumerate(graph.stages)
        ),
        alone=tuple((each.node, each.algorithm, each.latency_us) for each in graph.alone),
        refusals=refusals or (() if of_run is None else of_run.refusals),
        run=of_run,
        notes=tuple(_notes(graph, network)),
    )


def _figures(graph: GraphPlan, run: RunRecord | None, simulated: bool) -> list[Figure]:
    staged = sum(len(stage.convolutions) for stage in graph.stages)
    prediction = graph.prediction
    figures = []
    if prediction is not None:
        label = total_label(graph, simulated=simulated)
        figures.append(Figure("in stages", microseconds(prediction.latency_us), label))
        measured = figure_label(FigureSource.MEASURED, simulated=simulated)
        figures.append(
            Figure("one after another", microseconds(prediction.sequential_us), measured)
        )
        if prediction.latency_us:
            ratio = prediction.sequential_us / prediction.latency_us
            figures.append(Figure("ratio", f"{ratio:.2f}×", label, "of the convolutions alone"))
    figures.append(
        Figure(
            "stages",
            str(len(graph.stages)),
            note=f"{staged} of {graph.convolution_count} convolutions",
        )
    )
    if prediction is not None:
        budget = prediction.memory_budget_bytes
        against = f"{size(prediction.sequential_peak_bytes)} one after another"
        limit = "no budget" if budget is None else f"budget {size(budget)}"
        figures.append(
            Figure("peak memory", size(prediction.peak_bytes), note=f"{against}; {limit}")
        )
    figures += [_step_figure(step) for step in _steps(graph, run)]
    return figures


def _steps(graph: GraphPlan, run: RunRecord | None) -> list[MeasuredStep]:
    return [
        step
        for step in (() if run is None else run.steps)
        if step.fingerprint == graph.fingerprint
        and (None in (step.batch_size, graph.batch_size) or step.batch_size == graph.batch_size)
    ]


def _step_figure(step: MeasuredStep) -> Figure:
    return Figure(
        f"whole step, {step.what}",
        microseconds(step.latency_us),
        FigureSource.MEASURED.value,
        f"± {microseconds(step.spread_us)}; other operations included",
    )


def _run_graph(graph: GraphPlan, run: RunRecord) -> RunGraph | None:
    fitting = [
        each
        for each in run.graphs
        if each.fingerprint == graph.fingerprint
        and (None in (each.batch_size, graph.batch_size) or each.batch_size == graph.batch_size)
    ]
    return fitting[0] if fitting else None


def _notes(graph: GraphPlan, network: Network | None) -> list[str]:
    notes = []
    prediction = graph.prediction
    if prediction is None:
        notes.append("No planner made these stages: no times, memory or reasons are known.")
    else:
        notes.append(f"Search: {prediction.search}.")
        if prediction.unmeasured_count:
            notes.append(
                f"{prediction.unmeasured_count} of {graph.convolution_count} convolutions were not "
                "measured. They are in no stage and in none of these figures."
            )
        if not graph.stages:
            notes.append("No stage is faster by more than the figures may be off.")
    if network is None:
        notes.append(
            "A plan does not hold what depends on what: the network is drawn in the order of the "
            "plan. --model or --problem adds it, and what each convolution computes."
        )
    return notes
