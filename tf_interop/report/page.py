"""Renders a report as one self-contained HTML file.

The template reads the values of the plan, and the template engine escapes all text from a graph.
The page's policy allows its own style, by its digest, and no script, so that even unescaped text
could not run.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import markupsafe
from rich.filesize import decimal

from tf_interop.errors import PlanError
from tf_interop.parallel import show as parallel_show
from tf_interop.parallel.types import Axis, ParallelPlan
from tf_interop.planning import show
from tf_interop.planning.explain import SHARED_RESOURCES, sum_of_uses
from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.report import network as layout
from tf_interop.report.network import Network, NetworkNode
from tf_interop.report.timeline import MeasuredRun, Timeline, timeline_of_run, timelines_of
from tf_interop.terminal import count_of, percent

ASSETS = pathlib.Path(__file__).with_name("assets")
_LABEL_MEANINGS = {
    "measured": "on a device",
    "modelled": "from measurements of each convolution alone",
    "counted": "from shapes and workspaces of convolutions only",
}
# Longer times are easier to read in milliseconds.
MILLISECOND_US = 1000


def render_page(
    plan: Plan,
    *,
    title: str,
    networks: Sequence[Network | None] = (),
    run: MeasuredRun | None = None,
) -> str:
    """Renders the page as HTML.

    Args:
        plan: the plan.
        title: of the page.
        networks: the dependencies in each graph of the plan.
        run: its timeline is shown next to the predicted ones.

    Raises:
        PlanError: the run has no stage and no unit of the plan.
    """
    graphs = shown_graphs(plan, networks, run)
    if run is not None and not any(graph.run for graph in graphs):
        raise PlanError(
            "The trace has no call of a stage or unit of this plan after the first. Run the "
            "program with 'tf-interop run --plan' and this plan, for more steps."
        )
    return _render(
        "report.html",
        plan.made_with,
        marks=_marks(plan),
        title=title,
        is_of_host=plan.made_with.get("backend") == "host"
        and any(graph.measured is None for graph in plan.graphs),
        graphs=graphs,
    )


def render_division(plan: ParallelPlan, title: str) -> str:
    """Renders the page of a parallel plan as HTML."""
    return _render(
        "division.html",
        plan.made_with,
        title=title,
        plan=plan,
        label_meanings=_LABEL_MEANINGS
        | {"modelled": "by the cost model", "counted": "from the shapes of tensors"},
    )


def _render(template: str, made_with: Mapping[str, str], marks: str = "", **values: Any) -> str:
    """Fills a template; `marks` are added to the style."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "px": "{:g}".format,
        "us": microseconds,
        "layer": layout.layer_of,
        "size": decimal,
        "percent": percent,
        "count_of": count_of,
        "digest": lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode(),
        "replace_by": lambda name, values: values.get(name),
    }
    environment.globals |= {
        "layout": layout,
        "resources": SHARED_RESOURCES,
        "sum_of_uses": sum_of_uses,
        "plans": show,
        "divisions": parallel_show,
        "axes": {axis.value: number for number, axis in enumerate(Axis)},
        "label_meanings": _LABEL_MEANINGS,
        "used_labels": set(),  # filled by the macro that shows labels
        "zip": zip,
    }
    # The package's own file needs no escaping.
    style = (ASSETS / "report.css").read_text(encoding="utf-8")
    names = {"tensorflow": "TensorFlow", "cudnn": "cuDNN"}
    return environment.get_template(template).render(
        facts={names.get(key, key): each for key, each in made_with.items() if key != "backend"},
        style=markupsafe.Markup(style + marks),
        **values,
    )


# No slots, for cached_property.
@dataclasses.dataclass(frozen=True)
class ShownGraph:
    """An entry of a plan, with its network and its measured run, if known."""

    planned: GraphPlan
    network: Network | None = None
    run: Timeline | None = None

    @functools.cached_property
    def timelines(self) -> tuple[Timeline, ...]:
        """The predicted timelines; empty if no planner made the stages."""
        return timelines_of(self.planned)

    @functools.cached_property
    def nodes(self) -> dict[str, NetworkNode]:
        """The convolutions of the network, by name."""
        return {} if self.network is None else {node.name: node for node in self.network.nodes}

    @property
    def stage_numbers(self) -> dict[str, int]:
        """The stage of each convolution that is in one."""
        stages = enumerate(self.planned.stages)
        return {name: number for number, each in stages for name in each.nodes}

    @functools.cached_property
    def times_us(self) -> dict[str, float]:
        """The time of each convolution alone, where the plan has it."""
        times = {each.node: each.latency_us for each in self.planned.unstaged}
        for each in self.planned.stages:
            for lane, its in zip(each.stage.lanes, each.alone, strict=False):
                if len(lane.steps) == 1:
                    times[lane.steps[0].operation] = its.alone_us
        return times

    @property
    def measured_count(self) -> int:
        """The number of convolutions with predicted times."""
        return len(self.stage_numbers) + len(self.planned.unstaged)

    @property
    def first_stage(self) -> int:
        """The stage to show first: the one that saves most, else the widest."""

        def promise(number: int) -> tuple[float, int, int]:
            planned = self.planned.stages[number]
            prediction = planned.prediction
            saved_us = prediction.saved_us if prediction else 0.0
            return saved_us, len(planned.nodes), -number

        return max(range(len(self.planned.stages)), key=promise, default=0)


def shown_graphs(
    plan: Plan, networks: Sequence[Network | None] = (), run: MeasuredRun | None = None
) -> tuple[ShownGraph, ...]:
    """The entries of a plan, with their networks and their parts of a run."""
    return tuple(
        ShownGraph(graph, network, None if run is None else timeline_of_run(run, graph))
        for graph, network in zip(plan.graphs, networks or [None] * len(plan.graphs), strict=True)
    )


def microseconds(value: float, beside: float = 0.0) -> str:
    """Formats a time such as `130.0 µs` or `12.35 ms`, in a unit that also fits `beside`."""
    longest = max(value, beside)
    if longest < MILLISECOND_US:
        return f"{value:.1f} µs"
    return f"{value / 1000:.{3 if longest < 10 * MILLISECOND_US else 2}f} ms"


def _marks(plan: Plan) -> str:
    """CSS rules that mark the shown stage in the drawings; CSS cannot compare two attributes."""
    most = max((len(graph.stages) for graph in plan.graphs), default=0)
    chosen = [f'.graph:has(.s{number}:target) [data-stage="{number}"]' for number in range(most)]
    selectors = [*chosen, ".graph:not(:has(.stage-panel:target)) .first"]
    return f"{', '.join(selectors)} {{ --mark: var(--ink); --mark-width: 3; }}\n"
