"""A report as one HTML file that needs nothing else.

The template reads the values of the plan, and the template engine escapes all text from a graph.
The page's policy allows only its own style and script, by their digests, so that even unescaped
text could run nothing.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Sequence

import jinja2
import markupsafe
from rich.filesize import decimal

from tf_interop.errors import PlanError
from tf_interop.planning import show
from tf_interop.planning.explain import SHARED_RESOURCES, sum_of_uses
from tf_interop.planning.problem import ValueSource
from tf_interop.planning.types import GraphPlan, Plan
from tf_interop.profile.tables import describe_options
from tf_interop.report import layout
from tf_interop.report.measured import MeasuredRun, timeline_of_run
from tf_interop.report.network import Network, NetworkNode
from tf_interop.report.timeline import Timeline, timelines_of
from tf_interop.tables import percent

SIMULATED = "simulated"
"""The key of `Plan.made_with` that says how values were made where nothing was measured."""

ASSETS = pathlib.Path(__file__).with_name("assets")
# Longer times are easier to read in milliseconds.
MILLISECOND_US = 1000


def render_page(
    plan: Plan,
    *,
    title: str,
    networks: Sequence[Network | None] = (),
    run: MeasuredRun | None = None,
) -> str:
    """The page as HTML.

    Args:
        plan: what it shows.
        title: of the page.
        networks: what depends on what, for each graph of the plan.
        run: a run with the plan, whose timeline it shows beside those that were predicted.

    Raises:
        PlanError: the run has no stage and no unit of the plan.
    """
    graphs = shown_graphs(plan, networks, run)
    if run is not None and not any(graph.run for graph in graphs):
        raise PlanError(
            "The trace has no stage or unit of this plan after their first call. Run the "
            "program with 'tf-interop run --plan' and this plan, for more steps."
        )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "px": _rounded,
        "us": microseconds,
        "size": decimal,
        "percent": percent,
        "count_of": _count_of,
        "digest": lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode(),
        "replace_by": lambda name, values: values.get(name),
    }
    environment.globals |= {
        "describe_options": describe_options,
        "layout": layout,
        "resources": SHARED_RESOURCES,
        "sum_of_uses": sum_of_uses,
        "plans": show,
        "zip": zip,
    }
    # Its own files, and no input: they go into the page as they are.
    style, script = (
        (ASSETS / name).read_text(encoding="utf-8") for name in ("report.css", "report.js")
    )
    # How the plan's values came about is said in words.
    said = {SIMULATED, "backend"}
    names = {"tensorflow": "TensorFlow", "cudnn": "cuDNN"}
    return environment.get_template("report.html").render(
        title=title,
        facts={
            names.get(key, key): each for key, each in plan.made_with.items() if key not in said
        },
        made_up=plan.made_with.get(SIMULATED),
        is_of_host=plan.made_with.get("backend") == "host"
        and any(graph.measured is None for graph in plan.graphs),
        graphs=graphs,
        style=markupsafe.Markup(style + _marks(plan)),
        script=markupsafe.Markup(script),
    )


# Without slots: timelines are kept in the instance.
@dataclasses.dataclass(frozen=True)
class ShownGraph:
    """An entry of a plan, with what else a report shows of it.

    Attributes:
        planned: what the plan says of it.
        measured: what values are called that the plan calls measured.
        network: what depends on what; None if that is not known.
        run: when what ran, measured; None if that is not known.
    """

    planned: GraphPlan
    measured: str
    network: Network | None = None
    run: Timeline | None = None

    @functools.cached_property
    def timelines(self) -> tuple[Timeline, ...]:
        """When what runs; none where no planner made the stages."""
        return timelines_of(self.planned, self.label)

    @functools.cached_property
    def nodes(self) -> dict[str, NetworkNode]:
        """What is known of its convolutions or units, by name."""
        return {} if self.network is None else {node.name: node for node in self.network.nodes}

    @property
    def stage_numbers(self) -> dict[str, int]:
        """The stage of each convolution that is in one."""
        stages = enumerate(self.planned.stages)
        return {name: number for number, each in stages for name in each.nodes}

    @property
    def measured_count(self) -> int:
        """Convolutions that the predicted values are of."""
        return len(self.stage_numbers) + len(self.planned.unstaged)

    @property
    def promising(self) -> str:
        """What was not done and is most likely to win; empty if nothing is."""
        measured = self.planned.measured
        if measured is not None:
            taken = measured.ratio if self.planned.changes_graph else 1.0
            best = max(measured.compared, key=lambda each: each.ratio, default=None)
            if best is None or best.ratio <= taken:
                return ""
            error = "" if best.error is None else f" ± {best.error:.2f}"
            return f"{best.name}, {best.ratio:.2f}{error} times as fast as stock TensorFlow."
        for each in self.planned.rejected:
            # What runs in another stage is better off there.
            if each.may_win and self.stage_numbers.keys().isdisjoint(each.nodes):
                return f"{' and '.join(each.nodes)} together: {each.why_not}."
        return ""

    @property
    def first_stage(self) -> int:
        """The number of the stage to show first: that which saves most, else the widest."""

        def promise(number: int) -> tuple[float, int, int]:
            planned = self.planned.stages[number]
            prediction = planned.prediction
            saved_us = prediction.sequential_us - prediction.latency_us if prediction else 0.0
            return saved_us, len(planned.nodes), -number

        return max(range(len(self.planned.stages)), key=promise, default=0)

    def label(self, source: ValueSource) -> str:
        """What a value is called, so that none is taken for more than it is."""
        return self.measured if source is ValueSource.MEASURED else source.value


def shown_graphs(
    plan: Plan, networks: Sequence[Network | None] = (), run: MeasuredRun | None = None
) -> tuple[ShownGraph, ...]:
    """The entries of a plan, with what else a report shows of them."""
    measured = SIMULATED if SIMULATED in plan.made_with else ValueSource.MEASURED.value
    return tuple(
        ShownGraph(graph, measured, network, None if run is None else timeline_of_run(run, graph))
        for graph, network in zip(plan.graphs, networks or [None] * len(plan.graphs), strict=True)
    )


def microseconds(value: float, beside: float = 0.0) -> str:
    """Such as `130.0 µs` or `12.35 ms`: one unit for all times that it is read `beside`."""
    longest = max(value, beside)
    if longest < MILLISECOND_US:
        return f"{value:.1f} µs"
    return f"{value / 1000:.{3 if longest < 10 * MILLISECOND_US else 2}f} ms"


def _count_of(number: int, noun: str) -> str:
    """Such as `1 stage` and `2 stages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _marks(plan: Plan) -> str:
    """Marks in the drawings the stage that shows: CSS has no way to compare two attributes."""
    most = max((len(graph.stages) for graph in plan.graphs), default=0)
    chosen = [f'.graph:has(.s{number}:target) [data-stage="{number}"]' for number in range(most)]
    selectors = [*chosen, ".graph:not(:has(.stage-panel:target)) .first"]
    return f"{', '.join(selectors)} {{ --mark: var(--ink); --mark-width: 3; }}\n"


def _rounded(value: float) -> str:
    """A position: a thousandth is less than a pixel of the widest drawing."""
    return f"{value:.3f}".rstrip("0").rstrip(".")
