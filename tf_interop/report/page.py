"""A report as one HTML file that needs nothing else: no network, and no script but its own.

The template reads the values of the plan. All that comes from a graph is escaped by the template
engine. The page's policy allows its own style and script by their digests alone, so that even what
were not escaped could run nothing.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import jinja2
import markupsafe

from tf_interop.planning import tables
from tf_interop.planning.problem import ValueSource
from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.profile.tables import describe_convolution
from tf_interop.profile.types import Profile
from tf_interop.report import bars, drawing, words
from tf_interop.report.network import Network, NetworkNode, network_for, planned_nodes
from tf_interop.report.notices import (
    Notice,
    graph_notes,
    graph_notices,
    page_notices,
    profile_fit,
)
from tf_interop.report.timeline import Span, Timeline, timelines_of
from tf_interop.runtime.run_record import RunGraph, RunRecord, Timing
from tf_interop.tables import percent

_ASSETS = pathlib.Path(__file__).with_name("assets")
_MOST_CANDIDATES = 12


@dataclasses.dataclass(frozen=True, slots=True)
class _Shown:
    """An entry of the plan, with what else the page shows of it.

    Attributes:
        title: what the graph is.
        planned: what the plan says of it.
        notices: what to know before its values.
        notes: what else to know.
        network: what depends on what; None where that is not known.
        nodes: what is known of its convolutions, by name.
        unplanned: convolutions that the plan does not name, as far as they are known.
        timelines: when what runs; none where no planner made the stages.
        run: what a run did to the graph; None where none is known.
        timings: of the graph.
    """

    title: str
    planned: GraphPlan
    notices: tuple[Notice, ...]
    notes: tuple[str, ...]
    network: Network | None
    nodes: Mapping[str, NetworkNode]
    unplanned: tuple[str, ...]
    timelines: tuple[Timeline, ...]
    run: RunGraph | None
    timings: tuple[Timing, ...]

    @property
    def first_stage(self) -> int:
        """The number of the stage to show first: that which saves most, else the widest."""

        def promise(number: int) -> tuple[float, int, int]:
            planned = self.planned.stages[number]
            prediction = planned.prediction
            saved_us = prediction.sequential_us - prediction.latency_us if prediction else 0.0
            return saved_us, len(planned.nodes), -number

        return max(range(len(self.planned.stages)), key=promise)


def render_page(
    plan: Plan,
    *,
    title: str,
    networks: Sequence[Network] = (),
    profile: Profile | None = None,
    run: RunRecord | None = None,
) -> str:
    """The page as HTML.

    Args:
        plan: any plan.
        title: of the page.
        networks: what depends on what in its graphs, as far as that is known.
        profile: what the plan was made by.
        run: a run with the plan.
    """
    simulated = words.is_simulated(plan)
    label = functools.partial(words.value_label, simulated=simulated)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "px": _rounded,
        "us": words.microseconds,
        "size": words.size,
        "percent": percent,
        "count_of": words.count_of,
    }
    environment.globals |= {
        "bars": bars,
        "drawing": drawing,
        "tables": tables,
        "words": words,
        "describe_convolution": describe_convolution,
        "describe_span": functools.partial(_describe_span, label=label),
        "label": label,
        "measured": label(ValueSource.MEASURED),
        "most_candidates": _MOST_CANDIDATES,
        "simulated": simulated,
    }
    style, script = (_asset(name) for name in ("report.css", "report.js"))
    return environment.get_template("report.html").render(
        title=title,
        facts=_facts(plan, profile),
        notices=list(page_notices(plan, profile, run)),
        graphs=[
            _show_graph(graph, name, networks, profile, run, simulated)
            for graph, name in zip(plan.graphs, words.graph_titles(plan), strict=True)
        ],
        run=run,
        style=style,
        script=script,
        policy=_policy(style, script),
    )


def _show_graph(
    graph: GraphPlan,
    title: str,
    networks: Sequence[Network],
    profile: Profile | None,
    run: RunRecord | None,
    simulated: bool,
) -> _Shown:
    network = network_for(graph, networks)
    nodes = {} if network is None else {node.name: node for node in network.nodes}
    fit = None if profile is None else profile_fit(graph, network, profile)
    measured = words.value_label(ValueSource.MEASURED, simulated=simulated)
    named = set(planned_nodes(graph))

    def is_of_graph(each: RunGraph | Timing) -> bool:
        sizes = {each.batch_size, graph.batch_size}
        return each.fingerprint == graph.fingerprint and (None in sizes or len(sizes) == 1)

    return _Shown(
        title=title,
        planned=graph,
        notices=tuple(graph_notices(graph, network, fit, measured)),
        notes=tuple(graph_notes(graph, network, fit)),
        network=network,
        nodes=MappingProxyType(nodes),
        unplanned=tuple(name for name in nodes if name not in named),
        timelines=timelines_of(graph, simulated=simulated),
        run=next(filter(is_of_graph, () if run is None else run.graphs), None),
        timings=tuple(filter(is_of_graph, () if run is None else run.timings)),
    )


def _facts(plan: Plan, profile: Profile | None) -> dict[str, str]:
    """What the plan was made with, without what is said in words."""
    facts = dict(plan.made_with)
    if profile is not None:
        device = profile.device
        facts |= {
            "device": device.name,
            "profiled": device.date,
            "SMs": "" if device.sm_limits is None else str(device.sm_count),
            "memory": words.size(device.memory_bytes) if device.memory_bytes else "",
            "cudnn": device.cudnn or facts.get("cudnn", ""),
            "driver": device.driver,
        }
    said = {words.SIMULATED, "backend"} | ({"profiled"} if words.is_simulated(plan) else set())
    names = {"tensorflow": "TensorFlow", "cudnn": "cuDNN"}
    return {
        names.get(name, name): value for name, value in facts.items() if value and name not in said
    }


def _describe_span(span: Span, *, label: functools.partial[str]) -> str:
    runs = ", ".join(
        f"{step.operation} with {step.algorithm}" if step.algorithm else step.operation
        for step in span.steps
    )
    where = "in no stage" if span.stage is None else f"stage {span.stage}"
    if span.lane is not None:
        where += f", lane {span.lane}"
    took = f"{words.microseconds(span.duration_us)} {label(span.source)}"
    if span.row and span.busy_us is not None:
        took = f"the stage takes {took}, this lane alone {words.microseconds(span.busy_us)}"
    return f"{where}: {runs}; {took}"


def _asset(name: str) -> markupsafe.Markup:
    # Its own files, and no input: they go into the page as they are.
    return markupsafe.Markup((_ASSETS / name).read_text(encoding="utf-8"))


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _rounded(value: float) -> str:
    """A position: a thousandth is less than a pixel of the widest drawing."""
    return f"{value:.3f}".rstrip("0").rstrip(".")
