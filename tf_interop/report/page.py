"""A report as one HTML file that needs nothing else: no network, and no script but its own.

All that comes from a graph is escaped by the template engine. The page's policy allows its own
style and script by their digests alone, so that even what were not escaped could run nothing.
"""

from __future__ import annotations

import base64
import hashlib
import pathlib

import jinja2
import markupsafe

from tf_interop.report.bars import size
from tf_interop.report.data import Report
from tf_interop.report.drawings import NODE_HEIGHT, NODE_WIDTH
from tf_interop.report.words import count_of, microseconds
from tf_interop.tables import percent

_ASSETS = pathlib.Path(__file__).with_name("assets")


def render_report(report: Report) -> str:
    """The page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"px": _rounded, "us": microseconds, "size": size, "percent": percent}
    environment.filters |= {"count_of": count_of}
    environment.globals |= {"node_width": NODE_WIDTH, "node_height": NODE_HEIGHT}
    style, script = (_asset(name) for name in ("report.css", "report.js"))
    return environment.get_template("report.html").render(
        report=report, style=style, script=script, policy=_policy(style, script)
    )


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
