"""Benchmarks for people: a table for each case; and as CSV, a line for each variant."""

from __future__ import annotations

import csv
import io
import pathlib
from collections.abc import Iterator

from rich.console import Console

from tf_interop.benchmark.result import (
    Benchmark,
    Case,
    MemoryKind,
    Summary,
    Variant,
    VariantResult,
)
from tf_interop.errors import BenchmarkError
from tf_interop.tables import UNKNOWN, new_table, percent, print_on
from tf_interop.versioned_file import write_atomically

_ON_A_CPU = (
    "Measured on a CPU: it shows how everything works. Whether stages are faster on a GPU, for "
    "which they are made, it does not say."
)
CSV_COLUMNS = (
    "model",
    "step",
    "batch_size",
    "precision",
    "image_size",
    "variant",
    "median_ms",
    "first_quartile_ms",
    "third_quartile_ms",
    "lowest_block_ms",
    "highest_block_ms",
    "examples_per_second",
    "speedup",
    "lowest_speedup",
    "highest_speedup",
    "first_step_ms",
    "memory_peak_bytes",
    "memory_kind",
    "gpu_utilization",
    "blocks",
    "stages",
    "fallbacks",
    "failure",
    "device",
)


def results_by_case(benchmark: Benchmark) -> dict[Case, list[VariantResult]]:
    """The variants of each case, in the order of the file."""
    by_case: dict[Case, list[VariantResult]] = {}
    for result in benchmark.results:
        by_case.setdefault(result.case, []).append(result)
    return by_case


def show_benchmark(benchmark: Benchmark, console: Console) -> None:
    """Prints what was measured on, and a table for each case."""
    device = benchmark.device
    versions = ", ".join(f"{name} {version}" for name, version in benchmark.made_with.items())
    print_on(console, f"{device.name}, {device.date}; {versions}")
    if device.backend == "host":
        print_on(console, _ON_A_CPU)
    by_case = results_by_case(benchmark)
    for case, results in by_case.items():
        _show_case(case.name_on(device), results, console)
    kinds = {
        block.memory_kind
        for results in by_case.values()
        for each in results
        for block in each.blocks
    }
    print_on(
        console,
        "\nmedian, quartiles: of all timed steps. times as fast: as stock, turn by turn, with the "
        "lowest and the highest turn.",
    )
    compared = [each for each in benchmark.results if each.variant is not Variant.STOCK]
    if any(each.speedup is not None and not each.speedup.has_range for each in compared):
        print_on(
            console,
            "one turn: no range, so that a difference may be chance. More --repetitions give one.",
        )
    if any(each.ran_as_stock for each in compared):
        print_on(
            console,
            "as stock: the plan has no stage for it, so that the same program ran; what its times "
            "differ from those of stock is chance.",
        )
    if MemoryKind.PROCESS_RSS in kinds:
        print_on(
            console,
            "memory: of the whole process (RSS). GPU busy: there is no GPU to ask.",
        )
    if MemoryKind.GPU_ALLOCATOR in kinds:
        print_on(console, "memory: the peak of TensorFlow's GPU allocator while steps were timed.")


def write_csv(benchmark: Benchmark, path: pathlib.Path) -> None:
    """Writes a CSV file with a line for each variant of each case.

    Raises:
        BenchmarkError: the file cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, CSV_COLUMNS)
    writer.writeheader()
    writer.writerows(_csv_row(benchmark, result) for result in benchmark.results)
    try:
        write_atomically(text.getvalue().encode(), path)
    except OSError as error:
        raise BenchmarkError(
            f"Expected to write CSV file '{path}', got: {error.strerror}. Choose another file."
        ) from error


def _show_case(name: str, results: list[VariantResult], console: Console) -> None:
    table = new_table(name)
    table.add_column("")
    for column in ("median", "quartiles", "times as fast", "first step", "memory", "GPU busy"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("stages", justify="right")
    for result in results:
        if result.summary is not None:
            table.add_row(result.variant.value, *_cells(result, result.summary), _stages(result))
        else:
            table.add_row(result.variant.value, *(UNKNOWN,) * 7)
    print_on(console, table)
    for note in _notes(results):
        print_on(console, f"  {note}")


def _cells(result: VariantResult, summary: Summary) -> tuple[str, ...]:
    first, third = summary.quartile_ms
    return (
        f"{summary.median_ms:.2f} ms",
        f"{first:.2f}–{third:.2f}",
        _times_as_fast(result),
        f"{summary.first_step_ms / 1e3:.1f} s",
        f"{summary.memory_peak_bytes / 1e6:.0f} MB",
        percent(summary.gpu_utilization),
    )


def _times_as_fast(result: VariantResult) -> str:
    ratio = result.speedup
    if ratio is None:
        return "as stock" if result.ran_as_stock else UNKNOWN
    if ratio.has_range:
        return f"{ratio.median:.2f} ({ratio.lowest:.2f}–{ratio.highest:.2f})"
    # Of stock itself every turn is 1.
    return f"{ratio.median:.2f}" + (" (one turn)" if result.variant is not Variant.STOCK else "")


def _stages(result: VariantResult) -> str:
    counts = sorted({block.stage_count for block in result.blocks})
    return "–".join(str(count) for count in (counts[0], counts[-1])[: len(counts)])


def _notes(results: list[VariantResult]) -> Iterator[str]:
    for result in results:
        name = result.variant.value
        if result.failure is not None:
            yield f"{name}: {result.failure.kind.value}: {result.failure.message}"
        without = sum(not block.stage_count for block in result.blocks)
        if result.variant.needs_plan and without and not result.ran_as_stock:
            yield f"{name}: without a stage, as stock, in {without} of {len(result.blocks)} turns"
        for reason, count in _fallbacks(result).items():
            yield f"{name}: not as planned, {count} times: {reason}"


def _fallbacks(result: VariantResult) -> dict[str, int]:
    counts: dict[str, int] = {}
    for block in result.blocks:
        for reason, count in block.fallbacks.items():
            counts[reason] = counts.get(reason, 0) + count
    return counts


def _csv_row(benchmark: Benchmark, result: VariantResult) -> dict[str, object]:
    case, summary, failure = result.case, result.summary, result.failure
    row: dict[str, object] = {
        "model": case.model,
        "step": case.step.value,
        "batch_size": case.batch_size,
        "precision": case.precision.value,
        "image_size": "" if case.image_size is None else "x".join(map(str, case.image_size)),
        "variant": result.variant.value,
        "failure": "" if failure is None else f"{failure.kind.value}: {failure.message}",
        "device": benchmark.device.name,
        "blocks": len(result.blocks),
    }
    if summary is None:
        return row
    row |= {
        "median_ms": summary.median_ms,
        "first_quartile_ms": summary.quartile_ms[0],
        "third_quartile_ms": summary.quartile_ms[1],
        "lowest_block_ms": summary.block_range_ms[0],
        "highest_block_ms": summary.block_range_ms[1],
        "examples_per_second": summary.examples_per_second,
        "first_step_ms": summary.first_step_ms,
        "memory_peak_bytes": summary.memory_peak_bytes,
        "memory_kind": result.blocks[0].memory_kind.value,
        "gpu_utilization": "" if summary.gpu_utilization is None else summary.gpu_utilization,
        "stages": _stages(result),
        "fallbacks": sum(_fallbacks(result).values()),
    }
    speedup = result.speedup
    if speedup is not None:
        row["speedup"] = speedup.median
        if speedup.has_range:
            row |= {"lowest_speedup": speedup.lowest, "highest_speedup": speedup.highest}
    return row
