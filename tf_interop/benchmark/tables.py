"""Benchmarks for people: a table for each case; and as CSV, a line for each variant."""

from __future__ import annotations

import csv
import io
import pathlib
from collections.abc import Iterator

from rich.console import Console

from tf_interop.benchmark.result import Benchmark, CaseResult, MemoryKind, Variant, VariantResult
from tf_interop.errors import BenchmarkError
from tf_interop.tables import UNKNOWN, new_table, percent, print_on
from tf_interop.versioned_file import write_file

_ON_A_CPU = (
    "Measured on a CPU: it shows how everything works. Whether stages are faster on a GPU, for "
    "which they are made, it does not say."
)
CSV_COLUMNS = (
    "model", "mode", "batch_size", "precision", "image_size", "variant", "median_ms",
    "first_quartile_ms", "third_quartile_ms", "lowest_block_ms", "highest_block_ms",
    "examples_per_second", "speedup", "lowest_speedup", "highest_speedup", "first_step_ms",
    "memory_peak_bytes", "memory_kind", "gpu_utilization", "blocks", "stages", "fallbacks",
    "failure", "device",
)  # fmt: skip
_MEMORY_IS = {
    MemoryKind.PROCESS_RSS: "memory: of the whole process (RSS). GPU busy: there is no GPU to ask.",
    MemoryKind.GPU_ALLOCATOR: "memory: the peak of TensorFlow's GPU allocator while steps were "
    "timed.",
}


def show_benchmark(benchmark: Benchmark, console: Console) -> None:
    """Prints what was measured on, and a table for each case."""
    device = benchmark.device
    versions = ", ".join(f"{name} {version}" for name, version in benchmark.made_with.items())
    print_on(console, f"{device.name}, {device.date}; {versions}")
    if device.backend == "host":
        print_on(console, _ON_A_CPU)
    for result in benchmark.results:
        _show_case(result, result.case.name_on(device), console)
    print_on(
        console,
        "\nmedian, quartiles: of all timed steps. times as fast: as stock, turn by turn, with the "
        "lowest and the highest turn.",
    )
    summaries = [
        summary
        for result, measured in benchmark.variant_results
        if measured.variant is not Variant.STOCK
        and (summary := result.summarize(measured.variant)) is not None
    ]
    if any(each.speedup is not None and not each.speedup.has_range for each in summaries):
        print_on(
            console,
            "one turn: no range, so that a difference may be chance. More --repetitions give one.",
        )
    if any(each.ran_as_stock for each in summaries):
        print_on(
            console,
            "as stock: the plan has no stage for it, so that the same program ran; what its times "
            "differ from those of stock is chance.",
        )
    kinds = {
        block.memory_kind for _, measured in benchmark.variant_results for block in measured.blocks
    }
    for kind, text in _MEMORY_IS.items():
        if kind in kinds:
            print_on(console, text)


def write_csv(benchmark: Benchmark, path: pathlib.Path) -> None:
    """Writes a CSV file with a line for each variant of each case.

    Raises:
        BenchmarkError: the file cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, CSV_COLUMNS)
    writer.writeheader()
    for result, measured in benchmark.variant_results:
        writer.writerow(_csv_row(benchmark, result, measured))
    write_file(text.getvalue().encode(), path, "CSV file", BenchmarkError)


def _show_case(result: CaseResult, name: str, console: Console) -> None:
    table = new_table(name)
    table.add_column("")
    for column in ("median", "quartiles", "times as fast", "first step", "memory", "GPU busy"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("stages", justify="right")
    for measured in result.variants:
        table.add_row(measured.variant.value, *_cells(result, measured))
    print_on(console, table)
    for note in _notes(result):
        print_on(console, f"  {note}")


def _cells(result: CaseResult, measured: VariantResult) -> tuple[str, ...]:
    summary = result.summarize(measured.variant)
    if summary is None:
        return (UNKNOWN,) * 7
    first, third = summary.quartile_ms
    return (
        f"{summary.median_ms:.2f} ms",
        f"{first:.2f}–{third:.2f}",
        times_as_fast(result, measured.variant),
        f"{summary.first_step_ms / 1e3:.1f} s",
        f"{summary.memory_peak_bytes / 1e6:.0f} MB",
        percent(summary.gpu_utilization),
        _stages(measured),
    )


def times_as_fast(result: CaseResult, variant: Variant, *, to: str = "–") -> str:
    """How a variant of a case compares with stock TensorFlow, such as `2.25 (2.00–2.50)`.

    Args:
        result: what was measured of the case.
        variant: the variant.
        to: stands between the lowest and the highest turn.
    """
    summary = result.summarize(variant)
    if summary is None or summary.speedup is None:
        return "as stock" if summary is not None and summary.ran_as_stock else UNKNOWN
    ratio = summary.speedup
    if ratio.has_range:
        return f"{ratio.median:.2f} ({ratio.lowest:.2f}{to}{ratio.highest:.2f})"
    # Of stock itself every turn is 1.
    return f"{ratio.median:.2f}" + (" (one turn)" if variant is not Variant.STOCK else "")


def _stages(measured: VariantResult) -> str:
    counts = sorted({block.stage_count for block in measured.blocks})
    return "–".join(str(count) for count in (counts[0], counts[-1])[: len(counts)])


def _notes(result: CaseResult) -> Iterator[str]:
    for measured in result.variants:
        name = measured.variant.value
        if measured.failure is not None:
            yield f"{name}: {measured.failure.kind.value}: {measured.failure.message}"
        without = sum(not block.stage_count for block in measured.blocks)
        if measured.variant.needs_plan and 0 < without < len(measured.blocks):
            yield f"{name}: without a stage, as stock, in {without} of {len(measured.blocks)} turns"
        for reason, count in measured.fallbacks.items():
            yield f"{name}: not as planned, {count} times: {reason}"


def _csv_row(
    benchmark: Benchmark, result: CaseResult, measured: VariantResult
) -> dict[str, object]:
    """What is in the columns; a value that is missing is left out."""
    case, failure, summary = result.case, measured.failure, result.summarize(measured.variant)
    row: dict[str, object] = {
        "model": case.model,
        "mode": case.mode.value,
        "batch_size": case.batch_size,
        "precision": case.precision.value,
        "image_size": "" if case.image_size is None else "x".join(map(str, case.image_size)),
        "variant": measured.variant.value,
        "blocks": len(measured.blocks),
        "failure": "" if failure is None else f"{failure.kind.value}: {failure.message}",
        "device": benchmark.device.name,
    }
    if summary is None:
        return row
    speedup = summary.speedup
    range_of = speedup if speedup is not None and speedup.has_range else None
    return row | {
        "median_ms": summary.median_ms,
        "first_quartile_ms": summary.quartile_ms[0],
        "third_quartile_ms": summary.quartile_ms[1],
        "lowest_block_ms": summary.block_range_ms[0],
        "highest_block_ms": summary.block_range_ms[1],
        "examples_per_second": summary.examples_per_second,
        "speedup": None if speedup is None else speedup.median,
        "lowest_speedup": None if range_of is None else range_of.lowest,
        "highest_speedup": None if range_of is None else range_of.highest,
        "first_step_ms": summary.first_step_ms,
        "memory_peak_bytes": summary.memory_peak_bytes,
        "memory_kind": measured.blocks[0].memory_kind.value,
        "gpu_utilization": summary.gpu_utilization,
        "stages": _stages(measured),
        "fallbacks": measured.fallbacks.total(),
    }
