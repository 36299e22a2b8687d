"""What a report shows, from a plan and what else is known: plain values, nothing of HTML."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from tf_interop.convolution import Refusal
from tf_interop.plan.problem import FigureSource
from tf_interop.plan.types import GraphPlan, Plan
from tf_interop.profile.types import Profile
from tf_interop.report.bars import size
from tf_interop.report.drawings import (
    NetworkDrawing,
    TimelineDrawings,
    draw_network,
    draw_timelines,
)
from tf_interop.report.metrics import Figure, figures_of
from tf_interop.report.network import Network, NetworkNode, network_for
from tf_interop.report.notices import Notice, graph_notes, graph_notices, page_notices
from tf_interop.report.profile import profile_fit
from tf_interop.report.stage import ReportStage, report_stage
from tf_interop.report.timeline import (
    Timeline,
    has_times,
    planned_timeline,
    sequential_timeline,
)
from tf_interop.report.words import (
    SIMULATED,
    count_of,
    figure_label,
    is_simulated,
    measured_count,
    staged_count,
    total_labels,
)
from tf_interop.runtime.run_record import RunGraph, RunRecord


@dataclasses.dataclass(frozen=True, slots=True)
class UnstagedConvolution:
    """A convolution in no stage.

    Attributes:
        node: its name in the graph.
        algorithm: that its time is of; None where the runner chooses.
        latency_us: what it takes alone; None where that is not known.
        spread_us: how far that may be off; likewise.
    """

    node: str
    algorithm: str | None = None
    latency_us: float | None = None
    spread_us: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ReportGraph:
    """An entry of the plan.

    Attributes:
        anchor: a name for links.
        title: what the graph is.
        planned: what the plan says of it.
        notices: what to know before its figures.
        figures: the totals.
        network: the drawing of its convolutions.
        timelines: when what runs; None where no planner made the stages.
        stages: the stages.
        unstaged: the convolutions in no stage, as far as their names are known.
        unstaged_count: how many there are.
        refusals: convolutions that can be part of no stage.
        run: what a run did to the graph; None where none is known.
        notes: what else to know.
    """

    anchor: str
    title: str
    planned: GraphPlan
    notices: tuple[Notice, ...]
    figures: tuple[Figure, ...]
    network: NetworkDrawing
    timelines: TimelineDrawings | None
    stages: tuple[ReportStage, ...]
    unstaged: tuple[UnstagedConvolution, ...]
    unstaged_count: int
    refusals: tuple[Refusal, ...]
    run: RunGraph | None
    notes: tuple[str, ...]

    @property
    def first_stage(self) -> int:
        """The number of the stage to show first: that which saves most, else the widest."""
        return max(
            self.stages,
            key=lambda stage: (stage.saved_us, len(stage.planned.convolutions), -stage.number),
        ).number

    @property
    def unmeasured_count(self) -> int:
        """Convolutions of which a planner knew no time."""
        if self.planned.prediction is None:
            return 0
        return self.planned.convolution_count - measured_count(self.planned)


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """Everything on a page.

    Attributes:
        title: of the page.
        facts: what the plan was made with, each with its name.
        notices: what to know before all figures.
        measured: what figures that would be measured are called.
        graphs: the entries of the plan.
        run: a run with the plan; None where none is known.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    notices: tuple[Notice, ...]
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
        notices=tuple(page_notices(plan, profile, run)),
        measured=figure_label(FigureSource.MEASURED, simulated=simulated),
        graphs=tuple(
            _report_graph(number, graph, name, networks, profile, run, simulated)
            for number, (graph, name) in enumerate(
                zip(plan.graphs, graph_titles(plan), strict=True)
            )
        ),
        run=run,
    )


def graph_titles(plan: Plan) -> list[str]:
    """What to call each graph: its batch size and step, and what else tells it from the others."""
    titles = [
        ("any batch size" if graph.batch_size is None else f"batch {graph.batch_size}")
        + (f", {graph.step}" if graph.step else "")
        for graph in plan.graphs
    ]
    counts = collections.Counter(titles)
    return [
        title
        if counts[title] == 1
        else f"{title}, {count_of(graph.convolution_count, 'convolution')}"
        for title, graph in zip(titles, plan.graphs, strict=True)
    ]


def _facts(plan: Plan, profile: Profile | None) -> tuple[tuple[str, str], ...]:
    # What is said above, in words.
    said = (SIMULATED, "backend")
    facts = {name: value for name, value in plan.made_with.items() if name not in said}
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
    profile: Profile | None,
    run: RunRecord | None,
    simulated: bool,
) -> ReportGraph:
    network = network_for(graph, networks)
    nodes = {} if network is None else {node.name: node for node in network.nodes}
    fit = None if profile is None else profile_fit(graph, network, profile)
    of_run = None if run is None else _run_graph(graph, run)
    refusals = () if network is None else network.refusals
    return ReportGraph(
        anchor=f"graph-{number}",
        title=title,
        planned=graph,
        notices=tuple(graph_notices(graph, network, fit, simulated=simulated)),
        figures=tuple(figures_of(graph, run, simulated=simulated)),
        network=draw_network(graph, network),
        timelines=_timelines(graph, simulated),
        stages=tuple(
            report_stage(place, stage, graph, nodes, simulated=simulated)
            for place, stage in enumerate(graph.stages)
        ),
        unstaged=tuple(_unstaged(graph, nodes)),
        unstaged_count=graph.convolution_count - staged_count(graph),
        refusals=refusals or (() if of_run is None else of_run.refusals),
        run=of_run,
        notes=tuple(graph_notes(graph, network, fit)),
    )


def _timelines(graph: GraphPlan, simulated: bool) -> TimelineDrawings | None:
    if not has_times(graph):
        return None
    measured = figure_label(FigureSource.MEASURED, simulated=simulated)
    one_by_one = "One after another, each with what is fastest alone"
    timelines: dict[str, tuple[Timeline, tuple[str, ...]]] = {
        one_by_one: (sequential_timeline(graph), (measured,))
    }
    if graph.stages:
        in_stages = planned_timeline(graph), total_labels(graph, simulated=simulated)
        timelines["In the stages of the plan"] = in_stages
    return draw_timelines(timelines, simulated=simulated)


def _unstaged(graph: GraphPlan, nodes: Mapping[str, NetworkNode]) -> Iterator[UnstagedConvolution]:
    """Those that the plan names, then those that only the network does."""
    for each in graph.alone:
        node = nodes.get(each.node)
        candidates = () if node is None or node.costs is None else node.costs.candidates
        spreads = [known.spread_us for known in candidates if known.algorithm == each.algorithm]
        yield UnstagedConvolution(
            each.node, each.algorithm, each.latency_us, spreads[0] if spreads else None
        )
    planned = {each.node for stage in graph.stages for each in stage.convolutions}
    planned |= {each.node for each in graph.alone}
    yield from (UnstagedConvolution(name) for name in nodes if name not in planned)


def _run_graph(graph: GraphPlan, run: RunRecord) -> RunGraph | None:
    fitting = [
        each
        for each in run.graphs
        if each.fingerprint == graph.fingerprint
        and (None in (each.batch_size, graph.batch_size) or each.batch_size == graph.batch_size)
    ]
    return fitting[0] if fitting else None
