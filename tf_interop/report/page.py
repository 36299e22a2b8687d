"""A report as one HTML file that needs nothing else: no network, and no script.

The template reads the values of the plan. All that comes from a graph is escaped by the template
engine. The page's policy allows its own style by its digest and no script, so that even what were
not escaped could run nothing.
"""

from __future__ import annotations

import base64
import hashlib
import pathlib
from collections.abc import Sequence

import jinja2
import markupsafe

from tf_interop.planning import verdict
from tf_interop.planning.explain import SHARED_RESOURCES, sum_of_uses
from tf_interop.planning.types import Plan
from tf_interop.report import graphs, layout
from tf_interop.report.network import Network
from tf_interop.tables import percent

_ASSETS = pathlib.Path(__file__).with_name("assets")


def render_page(plan: Plan, *, title: str, networks: Sequence[Network | None] = ()) -> str:
    """The page as HTML.

    Args:
        plan: any plan.
        title: of the page.
        networks: what depends on what, for each graph of the plan, as far as that is known.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "px": _rounded,
        "replace_by": lambda name, values: values.get(name),
        "us": graphs.microseconds,
        "size": graphs.size,
        "percent": percent,
        "count_of": graphs.count_of,
    }
    environment.globals |= {
        "layout": layout,
        "verdicts": verdict,
        "resources": SHARED_RESOURCES,
        "sum_of_uses": sum_of_uses,
        "zip": zip,
    }
    # Its own file, and no input: it goes into the page as it is.
    style = markupsafe.Markup((_ASSETS / "report.css").read_text(encoding="utf-8") + _marks(plan))
    # How the plan's values came about is said in words.
    said = {graphs.SIMULATED, "backend"}
    names = {"tensorflow": "TensorFlow", "cudnn": "cuDNN"}
    return environment.get_template("report.html").render(
        title=title,
        facts={
            names.get(key, key): each for key, each in plan.made_with.items() if key not in said
        },
        made_up=plan.made_with.get(graphs.SIMULATED),
        is_of_host=plan.made_with.get("backend") == "host"
        and any(graph.measured is None for graph in plan.graphs),
        graphs=graphs.shown_graphs(plan, networks),
        style=style,
        digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
    )


def _marks(plan: Plan) -> str:
    """Marks in the drawings the stage that shows: CSS has no way to compare two attributes."""
    most = max((len(graph.stages) for graph in plan.graphs), default=0)
    chosen = [f'.graph:has(.s{number}:target) [data-stage="{number}"]' for number in range(most)]
    selectors = [*chosen, ".graph:not(:has(.stage-panel:target)) .first"]
    return f"{', '.join(selectors)} {{ --mark: var(--ink); --mark-width: 3; }}\n"


def _rounded(value: float) -> str:
    """A position: a thousandth is less than a pixel of the widest drawing."""
    return f"{value:.3f}".rstrip("0").rstrip(".")
