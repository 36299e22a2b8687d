#!/usr/bin/env python3
"""Writes docs/results.md from the result files under docs/results/.

A result file is written by the program that its `command` names. Every value of the page is in one
of them, and a file of a kind that the page's template does not know is an error, so that none is
left out.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import sys
import textwrap
from typing import Any

import jinja2
import msgspec

# Where the package is not installed.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tf_interop.benchmark.result import Benchmark, Case, Variant
from tf_interop.benchmark.show import times_as_fast

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
PAGE = ROOT / "docs" / "results.md"

_BENCHMARK = "tf_interop.benchmark"
_TITLES = {
    "tf_interop.applications": "Same results: keras.applications",
    _BENCHMARK: "Beside stock TensorFlow",
    "tf_interop.launch_overhead": "What a launch costs the host",
    "tf_interop.model_garden": "Same results: a program of the model garden",
    "tf_interop.pass_time": "What the graph pass takes",
    "tf_interop.plan_time": "What planning takes",
}
_MUST_HAVE = ("format", "version", "date", "machine", "command")
# What a result file says of the software that it was made with, where it does.
_VERSIONS = (
    *("python", "tf_interop", "tensorflow", "keras", "tf_keras", "tf-models-official"),
    *("cuda", "cudnn", "libcuda", "libcudnn"),
)


def render(results: dict[str, dict[str, Any]]) -> str:
    """The page.

    Args:
        results: the content of each result file, by its name.

    Returns:
        The page in Markdown.

    Raises:
        ValueError: a file lacks what it was made with, or is of a kind that is not known.
    """
    shown = {name: _with_origin(results[name]) for name in sorted(results)}
    for name, result in shown.items():
        if missing := [key for key in _MUST_HAVE if not result.get(key)]:
            raise ValueError(
                f"Expected {', '.join(_MUST_HAVE)} in docs/results/{name}, got none of "
                f"{', '.join(missing)}. Make the file anew with its program."
            )
        if result["format"] not in _TITLES:
            raise ValueError(
                f"Expected a result of {', '.join(sorted(_TITLES))}, got {result['format']!r} in "
                f"docs/results/{name}. Add its section to scripts/results.md.jinja."
            )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {
        "compared": _compared,
        "in_stages": lambda graph: f"{graph['in_stages']} of {graph['convolutions']}",
        "origin": _origin,
        "paragraph": lambda caller: _paragraph(caller()) + "\n",
        "titles": _TITLES,
    }
    pictures = {name: name.replace(".json", ".png") for name in shown}
    there = {name: picture for name, picture in pictures.items() if (RESULTS / picture).exists()}
    return environment.get_template("results.md.jinja").render(results=shown, pictures=there)


def _with_origin(result: dict[str, Any]) -> dict[str, Any]:
    """A result that says what it was made with as the others do."""
    if result.get("format") != _BENCHMARK:
        return {**result, "is_of_a_gpu": False}
    device = result["device"]
    unit = "SMs" if device["backend"] == "cudnn" else "cores"
    measured = msgspec.convert(result, Benchmark)
    reasons = {
        case.name_on(measured.device): _why_slower(measured, case) for case in measured.by_case
    }
    return {
        **result,
        **result["made_with"],
        "machine": f"{device['name']}, {device['sm_count']} {unit}",
        "date": device["date"],
        "command": "`, `".join(result["commands"]),
        "cudnn": device["cudnn"],
        "is_of_a_gpu": device["backend"] == "cudnn",
        "measured": measured,
        "variants": [
            each for each in Variant if any(one.variant is each for one in measured.results)
        ],
        "means": _geometric_means(measured),
        "slower": [f"{name} ({reason})" for name, reason in reasons.items() if reason],
    }


def _geometric_means(benchmark: Benchmark) -> dict[str, float]:
    """Of each variant that was measured of every case how many times as fast as stock it is.

    Where a plan changes nothing the program is stock's, and counts as 1.
    """
    ratios: dict[str, list[float]] = {}
    for result in benchmark.results:
        summary = benchmark.summarize(result)
        if summary is not None and result.variant is not Variant.STOCK:
            ratio = 1.0 if result.ran_as_stock else summary.speedup
            if ratio is not None:
                ratios.setdefault(result.variant.value, []).append(ratio)
    count = len(benchmark.by_case)
    return {
        variant: statistics.geometric_mean(values)
        for variant, values in ratios.items()
        if len(values) == count
    }


def _origin(name: str, result: dict[str, Any]) -> str:
    versions = [f"{key} {result[key]}" for key in _VERSIONS if result.get(key)]
    return _paragraph(
        f"[{name}](results/{name}): {result['machine']}, {result['date']}, {', '.join(versions)}; "
        f"`{result['command']}`"
    )


def _paragraph(text: str) -> str:
    return textwrap.fill(
        " ".join(text.split()), 100, break_on_hyphens=False, break_long_words=False
    )


def _compared(benchmark: Benchmark, case: Case, variant: Variant) -> str:
    result = benchmark.of(case, variant)
    summary = benchmark.summarize(result)
    if summary is None:
        return "–" if result.failure is None else result.failure.kind.value
    if variant is Variant.STOCK:
        return f"{summary.median_ms:.1f} ms"
    return times_as_fast(benchmark, result, to=" to ")


def _why_slower(benchmark: Benchmark, case: Case) -> str | None:
    """What is known of why a plan was slower in every turn; None where it was not."""
    result = benchmark.of(case, Variant.OURS)
    summary = benchmark.summarize(result)
    if summary is None or summary.speedup is None:
        return None
    if (summary.highest_speedup or summary.speedup) >= 1:
        return None
    reasons = sorted(result.fallbacks)
    return "; ".join(reasons) or "as planned: what the profile promised did not come true"


def read_results() -> dict[str, dict[str, Any]]:
    """The content of every result file, by its name."""
    return {path.name: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


if __name__ == "__main__":
    PAGE.write_text(render(read_results()))
