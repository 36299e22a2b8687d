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

from tf_interop.planning import show
from tf_interop.planning.explain import SHARED_RESOURCES, sum_of_uses
from tf_interop.planning.types import Plan
from tf_interop.profile.tables import describe_convolution
from tf_interop.profile.types import Profile
from tf_interop.report import graphs, layout
from tf_interop.report.network import Network
from tf_interop.runtime.run_record import RunRecord
from tf_interop.tables import percent

_ASSETS = pathlib.Path(__file__).with_name("assets")


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
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "px": _rounded,
        "us": graphs.microseconds,
        "size": graphs.size,
        "percent": percent,
        "count_of": graphs.count_of,
    }
    environment.globals |= {
        "describe_convolution": describe_convolution,
        "draw_network": layout.draw_network,
        "layout": layout,
        "resources": SHARED_RESOURCES,
        "sum_of_uses": sum_of_uses,
        "tables": show,
    }
    # Its own file, and no input: it goes into the page as it is.
    style = markupsafe.Markup((_ASSETS / "report.css").read_text(encoding="utf-8") + _marks(plan))
    return environment.get_template("report.html").render(
        title=title,
        facts=_facts(plan, profile),
        made_up=plan.made_with.get(graphs.SIMULATED),
        is_of_host="host" in (plan.made_with.get("backend"), profile and profile.device.backend),
        foreign=graphs.foreign_device(plan, profile),
        graphs=graphs.shown_graphs(plan, networks, profile, run),
        run=run,
        style=style,
        digest=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
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
            "memory": graphs.size(device.memory_bytes) if device.memory_bytes else "",
            "cudnn": device.cudnn or facts.get("cudnn", ""),
            "driver": device.driver,
        }
    simulated = graphs.SIMULATED in plan.made_with
    said = {graphs.SIMULATED, "backend"} | ({"profiled"} if simulated else set())
    names = {"tensorflow": "TensorFlow", "cudnn": "cuDNN"}
    return {
        names.get(name, name): value for name, value in facts.items() if value and name not in said
    }


def _marks(plan: Plan) -> str:
    """Marks in the drawings the stage that shows: CSS has no way to compare two attributes."""
    most = max((len(graph.stages) for graph in plan.graphs), default=0)
    chosen = [f'.graph:has(.s{number}:target) [data-stage="{number}"]' for number in range(most)]
    selectors = [*chosen, ".graph:not(:has(.stage-panel:target)) .first"]
    return f"{', '.join(selectors)} {{ --mark: var(--ink); --mark-width: 3; }}\n"


def _rounded(value: float) -> str:
    """A position: a thousandth is less than a pixel of the widest drawing."""
    return f"{value:.3f}".rstrip("0").rstrip(".")
