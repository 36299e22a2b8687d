"""Writes what the plugin leaves alone in keras.applications into docs/limits.md.

Example: python python/networks/applications_table.py
"""

from __future__ import annotations

import collections
import json
import pathlib
import textwrap
from typing import Any

import click

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULT = ROOT / "docs" / "results" / "applications.json"
PAGE = ROOT / "docs" / "limits.md"

_BEGIN = "<!-- applications: written by python/networks/applications_table.py -->\n"
_END = "<!-- end of applications -->\n"
_XLA = "compiled by XLA, in a function with `jit_compile=True`"
_GRAPHS = ("inference", "training")


def render(result: dict[str, Any]) -> str:
    """The text of the page: how many networks agree, and what is left alone in which of them.

    Args:
        result: what `compare_applications.py` wrote.

    Returns:
        A sentence and a table in Markdown.
    """
    networks = result["networks"]
    totals = {
        graph: tuple(sum(each[graph][key] for each in networks) for key in _COUNTS)
        for graph in _GRAPHS
    }
    # Where gradients could not be compared there are none.
    shares = [max(each["outputs"], each["gradients"] or 0) for each in networks]
    agreeing = sum(share <= 1 for share in shares)
    without_gradients = [each["network"] for each in networks if each["gradients"] is None]
    run = {each["network"] for each in networks}
    not_run = [name for name in result["architectures"] if name not in run]
    text = (
        f"Of the {len(result['architectures'])} architectures {len(networks)} were run, and "
        f"{agreeing} give the same outputs and gradients with the policy `always`: no tensor is "
        f"moved further than {max(shares):.2f} of what rounding explains "
        f"(results/applications.json: {result['machine']}, {result['date']}, TensorFlow "
        f"{result['tensorflow']}, Keras {result['keras']}, `{result['command']}`). In "
        "stages are "
        + " and ".join(
            f"{in_stages} of {convolutions} convolutions of {_NAMES[graph]}"
            for graph, (in_stages, convolutions) in totals.items()
        )
        + "."
    )
    if without_gradients:
        text += f" Outputs alone were compared of {', '.join(without_gradients)}."
    if not_run:
        text += f" Not run: {', '.join(not_run)}."
    lines = [
        textwrap.fill(text, 100, break_on_hyphens=False),
        "",
        "| left alone | networks | inference | training step |",
        "|---|---|---|---|",
    ]
    for what, by_network in sorted(_left_alone(networks).items()):
        counts = [sum(each[graph] for each in by_network.values()) for graph in _GRAPHS]
        names = ", ".join(sorted(by_network))
        lines.append(f"| {what} | {names} | {counts[0]} | {counts[1]} |")
    return "\n".join(lines) + "\n"


_COUNTS = ("in_stages", "convolutions")
_NAMES = {"inference": "inference", "training": "training steps"}


def _left_alone(networks: list[dict[str, Any]]) -> dict[str, dict[str, collections.Counter[str]]]:
    """For each reason with its detail, by network, how many in inference and training."""
    found: dict[str, dict[str, collections.Counter[str]]] = {}
    for network in networks:
        for graph in _GRAPHS:
            counts = network[graph]
            reasons = {f"`{detail}`": count for detail, count in counts["details"].items()}
            if counts["left_to_xla"]:
                reasons[_XLA] = counts["left_to_xla"]
            for reason, count in reasons.items():
                of_network = found.setdefault(reason, {}).setdefault(
                    network["network"], collections.Counter()
                )
                of_network[graph] += count
    return found


def with_table(page: str, result: dict[str, Any]) -> str:
    """The page with the text between its two marks written anew."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    if not after:
        raise ValueError(f"Expected the marks {_BEGIN!r} and {_END!r} in the page, got none.")
    return before + _BEGIN + render(result) + _END + after


@click.command(help=__doc__)
def main() -> None:
    """Rewrites the page."""
    PAGE.write_text(with_table(PAGE.read_text(), json.loads(RESULT.read_text())))


if __name__ == "__main__":
    main()
