#!/usr/bin/env python3
"""Writes docs/results.md from the result files under docs/results/.

    scripts/write_results.py           writes the page
    scripts/write_results.py --check   ends with 1 where the page is not what the files say

A result file is written by the program that its `command` names. Every value of the page is in one
of them, and a file of a kind that this script does not know is an error, so that none is left out.
"""

from __future__ import annotations

import json
import pathlib
import sys
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

import click
import msgspec

# Where the package is not installed.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tf_interop.benchmark.result import Benchmark, Case, Variant
from tf_interop.benchmark.show import times_as_fast

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
PAGE = ROOT / "docs" / "results.md"

_INTRODUCTION = """\
# Results

<!-- Written by scripts/write_results.py from the files under results/. -->

Every value here is from a result file beside this page, and each file says on what machine, when,
with which versions and by which command it was made.
"""
_NO_GPU = """\
**None is of a GPU**: nothing of this has run on one, so this page does not say whether stages are
faster there. What it has is what the plugin costs, and that results stay the same.
"""

Write = Callable[[dict[str, Any]], str]
_MUST_HAVE = ("format", "version", "date", "machine", "command")
# What a result file says of the software that it was made with, where it does.
_VERSIONS = (
    "python",
    "tf_interop",
    "tensorflow",
    "keras",
    "tf_keras",
    "tf-models-official",
    "cuda",
    "cudnn",
    "libcuda",
    "libcudnn",
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
    sections = [_INTRODUCTION]
    if not any(_is_of_a_gpu(result) for result in results.values()):
        sections.append(_NO_GPU)
    for name in sorted(results):
        result = _with_origin(results[name])
        if missing := [key for key in _MUST_HAVE if not result.get(key)]:
            raise ValueError(
                f"Expected {', '.join(_MUST_HAVE)} in docs/results/{name}, got none of "
                f"{', '.join(missing)}. Make the file anew with its program."
            )
        if result["format"] not in _SECTIONS:
            raise ValueError(
                f"Expected a result of {', '.join(sorted(_SECTIONS))}, got {result['format']!r} in "
                f"docs/results/{name}. Add its section to scripts/write_results.py."
            )
        title, write = _SECTIONS[result["format"]]
        section = f"## {title}\n\n{_origin(name, result)}\n\n{write(result)}"
        picture = RESULTS / name.replace(".json", ".png")
        if picture.exists():
            section += f"\n![{title}](results/{picture.name})\n"
        sections.append(section)
    return "\n".join(sections)


def _is_of_a_gpu(result: dict[str, Any]) -> bool:
    return result.get("format") == "tf_interop.benchmark" and result["device"]["backend"] == "cudnn"


def _with_origin(result: dict[str, Any]) -> dict[str, Any]:
    """A result that says what it was made with as the others do."""
    if result.get("format") != "tf_interop.benchmark":
        return result
    device = result["device"]
    unit = "SMs" if device["backend"] == "cudnn" else "cores"
    origin = {
        "machine": f"{device['name']}, {device['sm_count']} {unit}",
        "date": device["date"],
        "command": "`, `".join(result["commands"]),
        "cudnn": device["cudnn"],
    }
    return {**result, **result["made_with"], **origin}


def _origin(name: str, result: dict[str, Any]) -> str:
    versions = [f"{key} {result[key]}" for key in _VERSIONS if result.get(key)]
    return _paragraph(
        f"[{name}](results/{name}): {result['machine']}, {result['date']}, {', '.join(versions)}; "
        f"`{result['command']}`"
    )


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 100, break_on_hyphens=False, break_long_words=False)


def _table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    header = list(header)
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines) + "\n"


def _benchmark(result: dict[str, Any]) -> str:
    """A table for inference and one for training, a line for each case."""
    parts = [
        _paragraph(
            "Median of a step in stock TensorFlow, and how many times as fast the others are, turn "
            "by turn, with the slowest and the fastest turn: XLA, the plan, the plan's algorithms "
            "without its concurrency, and its concurrency without its algorithms. As stock: the "
            "plan has no stage for it, so that the same program ran."
        )
    ]
    benchmark = msgspec.convert(result, Benchmark)
    device = benchmark.device
    rows = [
        (case.name_on(device), *(_compared(benchmark, case, each) for each in _VARIANTS))
        for case in benchmark.by_case
    ]
    parts.append(_table(("", *(variant.value for variant in _VARIANTS)), rows))
    slower = [
        f"{case.name_on(device)} ({reason})"
        for case in benchmark.by_case
        if (reason := _why_slower(benchmark, case))
    ]
    if slower:
        parts.append(_paragraph(f"Slower than stock in every turn: {'; '.join(slower)}.") + "\n")
    return "\n\n".join(parts)


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


def _rows_of(
    key: str,
    text: str | Write,
    columns: dict[str, Callable[[Any], object]],
) -> Write:
    """A section with a paragraph and a table.

    Args:
        key: what of the result has a row each.
        text: the paragraph, or what makes it of the result.
        columns: what makes a cell of each, by the column's title.
    """

    def write(result: dict[str, Any]) -> str:
        rows = [[cell(each) for cell in columns.values()] for each in result[key]]
        paragraph = text if isinstance(text, str) else text(result)
        return f"{_paragraph(paragraph)}\n\n{_table(columns, rows)}"

    return write


_pass_time = _rows_of(
    "networks",
    "What the graph pass takes for training graphs as TensorFlow hands them over, policy `always`: "
    "median of several runs, and the first one. It runs twice before the first call of a function.",
    {
        "network": lambda each: each["network"],
        "nodes": lambda each: each["nodes"],
        "stages": lambda each: each["stages"],
        "median": lambda each: f"{each['median_ms']:.0f} ms",
        "first": lambda each: f"{each['first_ms']:.0f} ms",
    },
)
_plan_time = _rows_of(
    "networks",
    lambda result: (
        "What the planner takes: CPU time, and memory of its process. The times that it plans for "
        f"are {result['times_planned_for']}, so how much time the plans save says nothing and is "
        "left out."
    ),
    {
        "network": lambda each: each["network"],
        "convolutions": lambda each: each["convolutions"],
        "stages": lambda each: each["stages"],
        "time": lambda each: f"{each['seconds']:.2f} s",
        "memory": lambda each: f"{each['megabytes']:.0f} MB",
    },
)
_launches = _rows_of(
    "launches",
    "What launching one pinned convolution costs the host, beside the bare calls of cuDNN that it "
    "makes: medians. libcuda and libcudnn are stand-ins that do no work, so this is the share of "
    "this project alone.",
    {
        "a launch": lambda each: each["name"],
        "time": lambda each: f"{each['launch']['median_ns']} ns",
        "bare calls": lambda each: f"{each['bare_calls']['median_ns']} ns",
        "difference": lambda each: f"{each['overhead_ns']} ns",
    },
)
_stage_calls = _rows_of(
    "stages",
    "What the whole call of a stage costs the host, from finding what was kept for it to the join: "
    "medians over the same stand-ins, whose events and streams do no work either, for a small "
    "convolution on each lane. The second time is of calls whose results lie elsewhere every time.",
    {
        "lanes": lambda each: each["lanes"],
        "time": lambda each: f"{each['call']['median_ns']} ns",
        "new addresses": lambda each: f"{each['call_with_new_addresses']['median_ns']} ns",
    },
)


def _launch_overhead(result: dict[str, Any]) -> str:
    return f"{_launches(result).rstrip()}\n\n{_stage_calls(result)}"


_applications = _rows_of(
    "networks",
    lambda result: (
        f"{len(result['networks'])} of the {len(result['architectures'])} architectures of "
        "keras.applications with the plugin on (policy `always`) and off: convolutions in stages, "
        "and how far the plugin moved outputs and gradients at most, as a share of what rounding "
        "explains: eight times as far as a change of the last bits moves them in stock TensorFlow, "
        "and four roundings more."
    ),
    {
        "network": lambda each: each["network"],
        "inference": lambda each: _in_stages(each["inference"]),
        "training step": lambda each: _in_stages(each["training"]),
        "share of rounding": lambda each: f"{max(each['outputs'], each['gradients'] or 0):.2f}",
    },
)


def _in_stages(graph: dict[str, Any]) -> str:
    return f"{graph['in_stages']} of {graph['convolutions']}"


def _model_garden(result: dict[str, Any]) -> str:
    return _of_model_garden({**result, "kinds": result["relative_differences"].items()})


_of_model_garden = _rows_of(
    "kinds",
    lambda result: (
        f"`{result['program']}`, unedited, with the plugin on (policy `always`: "
        f"{result['convolutions_in_stages']} convolutions in {result['stages']} stages of up to "
        f"{result['widest']} lanes) and off. Largest relative difference of any tensor by the "
        "plugin, and by leaving out oneDNN. The share is, of the tensor where it is largest, the "
        "plugin's difference over eight times that of leaving out oneDNN and four roundings."
    ),
    {
        "tensors of": lambda each: each[0],
        "tensors": lambda each: each[1]["tensors"],
        "plugin": lambda each: f"{each[1]['plugin']:.1e}",
        "without oneDNN": lambda each: f"{each[1]['onednn']:.1e}",
        "share": lambda each: f"{each[1]['share_of_tolerance']:.2f}",
    },
)
_VARIANTS = (Variant.STOCK, Variant.XLA, Variant.OURS, Variant.PINNING, Variant.CONCURRENCY)
_SECTIONS: dict[str, tuple[str, Write]] = {
    "tf_interop.applications": ("Same results: keras.applications", _applications),
    "tf_interop.benchmark": ("Stock TensorFlow, XLA and stages", _benchmark),
    "tf_interop.launch_overhead": ("What a launch costs the host", _launch_overhead),
    "tf_interop.model_garden": ("Same results: a program of the model garden", _model_garden),
    "tf_interop.pass_time": ("What the graph pass takes", _pass_time),
    "tf_interop.plan_time": ("What planning takes", _plan_time),
}


def read_results(folder: pathlib.Path = RESULTS) -> dict[str, dict[str, Any]]:
    """The content of every result file, by its name."""
    return {path.name: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


@click.command(help=__doc__)
@click.option("--check", is_flag=True, help="Write nothing; end with 1 where the page is stale.")
def main(check: bool) -> None:
    """Writes or checks the page."""
    page = render(read_results())
    if not check:
        PAGE.write_text(page)
    elif not PAGE.exists() or PAGE.read_text() != page:
        raise click.ClickException(
            "docs/results.md is not what docs/results/*.json say: run scripts/write_results.py"
        )


if __name__ == "__main__":
    main()
