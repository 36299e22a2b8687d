#!/usr/bin/env python3
"""Writes docs/results.md from the result files under docs/results/.

A file is a benchmark, or has tables from `python/benchmarks/result_file.py`.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import shlex
import statistics
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

# The benchmarks are in the checkout, which is not on Python's path.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from python.benchmarks.result_file import FORMAT
from tf_interop.benchmark.result import Benchmark, Case, Mode, Variant
from tf_interop.benchmark.show import times_as_fast

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
PAGE = ROOT / "docs" / "results.md"

_INTRODUCTION = """# Results

<!-- Written by scripts/write_results.py from the files under results/. -->

Every value is from a result file under results/, which names its machine, date, versions and
command.

Comparisons with stock TensorFlow show its median step, and how many times as fast the other
[variants](benchmark.md) are: the median round, and in brackets the slowest and the fastest. "Same
as stock" and "same as xla" mean that nothing was changed. "–" means that the variant was not
measured: `frozen`, `tflite`, `onnxruntime` and `openvino` do not train. Another table has the
geometric means, and in brackets the number of rows. A variant's mean is over the rows that it has,
so compare only variants with the same number. Where nothing was changed, the ratio is that of stock
or xla itself."""
_TITLE = "Compared with stock TensorFlow"
_TITLES = {
    "cpu_one_core_taken.json": f"{_TITLE}, while another program takes one of two cores",
    "cpu_xla.json": f"{_TITLE}, in functions that XLA compiles, on a CPU without VNNI",
    "cpu_older.json": f"{_TITLE}: an older version on an Intel Xeon, beside XLA",
    "cpu_amd.json": f"{_TITLE}: an AMD EPYC",
    "cpu_other_networks.json": f"{_TITLE}: other networks and batch sizes",
}
_COMPETITORS = (Variant.ONNXRUNTIME, Variant.OPENVINO)
_OF_THIS_PACKAGE = (Variant.ENABLED, Variant.OURS)
_COMPILED = (Variant.XLA, Variant.XLA_ENABLED)
_NOTHING = "–"
_LONGEST_COMMANDS = 200  # characters; the page leaves out longer ones, which the file has


def read_results() -> dict[str, Any]:
    """Reads all result files: a benchmark or plain values, by the file's name."""
    raws = {path.name: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    return {
        name: raw if raw["format"] == FORMAT else msgspec.convert(raw, Benchmark)
        for name, raw in raws.items()
    }


def render(results: Mapping[str, Any]) -> str:
    """Renders the page in Markdown from the results, by their files' names."""
    parts = [_INTRODUCTION]
    for name, result in results.items():
        section = _of_benchmark if isinstance(result, Benchmark) else _of_tables
        parts += section(name, result)
    return "\n\n".join(parts) + "\n"


def _of_tables(name: str, result: dict[str, Any]) -> Iterator[str]:
    yield f"## {result['title']}"
    yield _origin(
        name, result["machine"], result["date"], result["made_with"], (result["command"],)
    )
    yield _paragraph(result["says"])
    for columns, rows in itertools.groupby(result["rows"], key=tuple):
        yield _table(columns, [[_cell(each) for each in row.values()] for row in rows])


def _of_benchmark(name: str, benchmark: Benchmark) -> Iterator[str]:
    device = benchmark.device
    unit = "SMs" if device.backend == "cudnn" else "cores"
    yield f"## {_TITLES.get(name, _TITLE)}"
    versions = benchmark.made_with | ({"cudnn": device.cudnn} if device.cudnn else {})
    machine = f"{device.name}, {device.sm_count} {unit}"
    yield _origin(name, machine, device.date, versions, benchmark.commands)
    measured = {each.variant for each in benchmark.results}
    variants = [each for each in Variant if each in measured]
    yield _table(
        ["", *(each.value for each in variants)],
        [
            [case.name_on(device), *(_compared(benchmark, case, each) for each in variants)]
            for case in benchmark.by_case
        ],
    )
    if measured.issuperset(_COMPILED):
        yield _paragraph("The first step in seconds, in the median round. It includes compiling.")
        yield _table(
            ["", *(each.value for each in _COMPILED)],
            [
                [case.name_on(device), *(_first_step(benchmark, case, each) for each in _COMPILED)]
                for case in benchmark.by_case
            ],
        )
    if means := _means(benchmark, variants):
        yield _table(("", *(each.value for each in variants if each is not Variant.STOCK)), means)


def _origin(
    name: str, machine: str, date: str, versions: Mapping[str, str], commands: Sequence[str]
) -> str:
    listed = ", ".join(f"{key} {version}" for key, version in versions.items())
    quoted = ", ".join(f"`{command}`" for command in commands)
    if len(quoted) > _LONGEST_COMMANDS:
        programs = dict.fromkeys(_program_of(command) for command in commands)
        quoted = ", ".join(f"`{each} …`" for each in programs) + " (the file has the options)"
    return _paragraph(f"[{name}](results/{name}): {machine}, {date}, {listed}; {quoted}")


def _program_of(command: str) -> str:
    """The command without environment variables, files and options."""
    words = itertools.dropwhile(lambda word: "=" in word, shlex.split(command))
    return " ".join(
        itertools.takewhile(lambda word: not word.startswith("-") and ".json" not in word, words)
    )


def _paragraph(text: str) -> str:
    return textwrap.fill(
        " ".join(text.split()), 100, break_on_hyphens=False, break_long_words=False
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    heads = [column.replace("_", " ") for column in columns]
    lines = [heads, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
    return _NOTHING if value is None else str(value)


def _means(benchmark: Benchmark, variants: Sequence[Variant]) -> list[list[str]]:
    """The rows of a table: geometric means of each variant but stock."""
    others = [each for each in variants if each is not Variant.STOCK]
    rows = []
    for mode in Mode:
        means = [_mean(_ratios(benchmark, each, mode)) for each in others]
        rows.append([f"{mode.value}, against stock", *means])
    for mode in Mode:
        theirs, ours = (_ratios(benchmark, each, mode) for each in _COMPILED)
        shared = {case: ours[case] / theirs[case] for case in ours.keys() & theirs.keys()}
        against = [_mean(shared if each is Variant.XLA_ENABLED else {}) for each in others]
        rows.append([f"{mode.value}, against {Variant.XLA.value}", *against])
    fastest = _ratios_of_fastest(benchmark, _COMPETITORS)
    names = [each.value for each in _COMPETITORS if each in variants]
    against = []
    for each in others:
        ratios = _ratios(benchmark, each, Mode.INFERENCE) if each in _OF_THIS_PACKAGE else {}
        shared = {case: ratios[case] / fastest[case] for case in ratios.keys() & fastest.keys()}
        against.append(_mean(shared))
    rows.append([f"inference, against the faster of {' and '.join(names)}", *against])
    return [row for row in rows if set(row[1:]) - {_NOTHING}]


def _mean(ratios: Mapping[Case, float]) -> str:
    """The geometric mean and the number of values."""
    if not ratios:
        return _NOTHING
    return f"{statistics.geometric_mean(ratios.values()):.2f} ({len(ratios)})"


def _ratios(benchmark: Benchmark, variant: Variant, mode: Mode) -> dict[Case, float]:
    """How many times as fast as stock a variant is, in each case in which it was measured.

    Where nothing was changed, the ratio is that of the variant that it was.
    """
    ratios = {}
    for result in benchmark.results:
        if (result.variant, result.case.mode) != (variant, mode):
            continue
        same_as = result.same_as
        counted = result if same_as is None else benchmark.of(result.case, same_as)
        summary = benchmark.summarize(counted)
        if summary is not None and summary.speedup is not None:
            ratios[result.case] = summary.speedup
    return ratios


def _ratios_of_fastest(benchmark: Benchmark, variants: Sequence[Variant]) -> dict[Case, float]:
    """How many times as fast as stock the fastest of these variants is in inference."""
    fastest: dict[Case, float] = {}
    for variant in variants:
        for case, ratio in _ratios(benchmark, variant, Mode.INFERENCE).items():
            fastest[case] = max(ratio, fastest.get(case, ratio))
    return fastest


def _compared(benchmark: Benchmark, case: Case, variant: Variant) -> str:
    result = benchmark.of(case, variant)
    summary = benchmark.summarize(result)
    if summary is None:
        return _NOTHING if result.failure is None else result.failure.kind.value
    if variant is Variant.STOCK:
        return f"{summary.median_ms:.1f} ms"
    return times_as_fast(benchmark, result, to=" to ")


def _first_step(benchmark: Benchmark, case: Case, variant: Variant) -> str:
    result = benchmark.of(case, variant)
    first_ms = [block.first_step_ms for block in result.blocks]
    return f"{statistics.median(first_ms) / 1e3:.1f}" if first_ms else _NOTHING


if __name__ == "__main__":
    PAGE.write_text(render(read_results()))
