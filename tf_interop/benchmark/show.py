"""Shows benchmarks: a table for each case, and CSV with a line for each variant."""

from __future__ import annotations

import csv
import dataclasses
import io
import pathlib
from collections.abc import Iterator

import msgspec
from rich.console import Console

from tf_interop.benchmark.result import Benchmark, Case, Result, Summary, Variant
from tf_interop.errors import BenchmarkError
from tf_interop.measure.other_load import MOST_OTHER_LOAD
from tf_interop.terminal import UNKNOWN, new_table, percent, print_on
from tf_interop.versioned_file import write_file

_ON_A_CPU = "Measured on a CPU, with units. The results do not apply to stages on a GPU."
_PROGRAMS_ARE = (
    "whole run, rounds: the wall time of the program's process; the median, the shortest and the "
    "longest round. It includes imports and first calls, which may hide a gain in a short program. "
    "memory: of that process (RSS)."
)
_MEMORY_IS = {
    "host": "memory: the peak of the process during the timed steps (RSS).",
    "cudnn": "memory: the peak of TensorFlow's GPU allocator during the timed steps.",
}
CSV_COLUMNS = (
    *(field.name for field in dataclasses.fields(Case)),
    "variant",
    *(field.name for field in dataclasses.fields(Summary)),
    "failure",
    "device",
)


def show_benchmark(benchmark: Benchmark, console: Console) -> None:
    """Prints the device and the versions, and a table for each case."""
    device = benchmark.device
    versions = ", ".join(f"{name} {version}" for name, version in benchmark.made_with.items())
    print_on(console, f"{device.name}, {device.date}; {versions}")
    if not benchmark.results:
        return
    if device.backend == "host":
        print_on(console, _ON_A_CPU)
    for case, results in benchmark.by_case.items():
        columns = ["median", "quartiles", "times as fast", "first step", "memory"]
        if case.is_program:
            columns = ["whole run", "rounds", "times as fast", "memory"]
        columns.append("units" if device.backend == "host" else "stages")
        table = new_table(case.name_on(device), "", *columns)
        for result in results:
            cells = _cells(benchmark, result) or (UNKNOWN,) * len(columns)
            table.add_row(result.variant.value, *cells)
        print_on(console, table)
        for note in _notes(results):
            print_on(console, f"  {note}")
    for line in ("", *_legend(benchmark)):
        print_on(console, line)


def _legend(benchmark: Benchmark) -> Iterator[str]:
    """Explains the columns, and warns of misreadings."""
    load = max((block.other_load for each in benchmark.results for block in each.blocks), default=0)
    if load >= MOST_OTHER_LOAD:
        yield (
            f"Not reliable, because other programs took up to {percent(load)} of the cores: "
            "measure again when the machine is idle, into another file."
        )
    slowed = max((block.slowed for each in benchmark.results for block in each.blocks), default=0)
    if slowed:
        yield (
            f"Not reliable, because a core was slower than at the beginning in up to "
            f"{percent(slowed)} of the steps, as on a shared host or a hot machine: measure again, "
            "into another file."
        )
    programs = [case.is_program for case in benchmark.by_case]
    backend = benchmark.device.backend
    if any(programs):
        yield _PROGRAMS_ARE
    if not all(programs):
        yield "median, quartiles: of the steps of a round; the median over the rounds."
    yield "times as fast: as stock in the same round; the median, the lowest and the highest round."
    others = [each for each in benchmark.results if each.variant is not Variant.STOCK]
    if any("one round" in times_as_fast(benchmark, each) for each in others):
        yield "one round: it has no range, so a difference may be chance. Raise --repetitions."
    runs_plan = any(each.variant.needs_plan and not each.case.is_program for each in others)
    has_xla = any(each.variant is Variant.XLA for each in others)
    if backend == "cudnn" and runs_plan and not has_xla:
        yield "xla was not compared: it may be faster. Add it with --variants xla."
    for same in dict.fromkeys(each.same_as for each in others if each.same_as is not None):
        yield f"same as {same.value}: nothing was changed, so any difference is chance."
    if not all(programs):
        yield _MEMORY_IS[backend]


def times_as_fast(benchmark: Benchmark, result: Result, *, to: str = "–") -> str:
    """Compares a variant of a case with stock TensorFlow, such as `2.25 (2.00–2.50)`."""
    summary = benchmark.summarize(result)
    if summary is None or summary.speedup is None:
        return UNKNOWN if result.same_as is None else f"same as {result.same_as.value}"
    if summary.lowest_speedup is not None:
        return (
            f"{summary.speedup:.2f} ({summary.lowest_speedup:.2f}{to}{summary.highest_speedup:.2f})"
        )
    # Stock itself is 1 in every round.
    return f"{summary.speedup:.2f}" + (
        " (one round)" if result.variant is not Variant.STOCK else ""
    )


def write_csv(benchmark: Benchmark, path: pathlib.Path) -> None:
    """Writes a CSV file with a line for each variant of each case."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, CSV_COLUMNS)
    writer.writeheader()
    for result in benchmark.results:
        summary, failure = benchmark.summarize(result), result.failure
        row = {
            **msgspec.to_builtins(result.case),
            "image_size": "x".join(map(str, result.case.image_size or ())),
            "variant": result.variant.value,
            **({"blocks": 0} if summary is None else dataclasses.asdict(summary)),
            "failure": failure and f"{failure.kind.value}: {failure.message}",
            "device": benchmark.device.name,
        }
        writer.writerow(row)
    write_file(text.getvalue().encode(), path, "CSV file", BenchmarkError)


def _cells(benchmark: Benchmark, result: Result) -> tuple[str, ...]:
    summary = benchmark.summarize(result)
    if summary is None:
        return ()
    fast, memory = times_as_fast(benchmark, result), f"{summary.memory_peak_bytes / 1e6:.0f} MB"
    if summary.first_step_ms is None:
        turns = f"{summary.lowest_block_ms / 1e3:.2f}–{summary.highest_block_ms / 1e3:.2f}"
        return f"{summary.median_ms / 1e3:.2f} s", turns, fast, memory, summary.stages
    return (
        f"{summary.median_ms:.2f} ms",
        f"{summary.first_quartile_ms:.2f}–{summary.third_quartile_ms:.2f}",
        fast,
        f"{summary.first_step_ms / 1e3:.1f} s",
        memory,
        summary.stages,
    )


def _notes(results: list[Result]) -> Iterator[str]:
    for result in results:
        name = result.variant.value
        if result.failure is not None:
            yield f"{name}: {result.failure.kind.value}: {result.failure.message}"
        for reason, count in result.fallbacks.items():
            yield f"{name}: not as planned, {count} times: {reason}"
