"""Summaries, tables and CSV of benchmarks."""

from __future__ import annotations

import csv
import dataclasses
import io
import pathlib

import pytest
from benchmark_values import BENCHMARK, CASE, OURS_BLOCKS, make_block, with_ours
from profile_values import CPU, GPU
from rich.console import Console

from tf_interop.benchmark.result import Benchmark, Block, Result, Summary, Variant
from tf_interop.benchmark.show import CSV_COLUMNS, show_benchmark, write_csv

NO_STAGE = tuple(dataclasses.replace(block, stage_count=0) for block in OURS_BLOCKS)


def _shown(benchmark: Benchmark) -> str:
    text = io.StringIO()
    show_benchmark(benchmark, Console(file=text, width=100))
    return text.getvalue()


def _csv_rows(benchmark: Benchmark, folder: pathlib.Path) -> dict[str, dict[str, str]]:
    write_csv(benchmark, folder / "results.csv")
    with (folder / "results.csv").open(newline="") as file:
        return {row["variant"]: row for row in csv.DictReader(file)}


def _summary_of_ours(*blocks: Block) -> Summary:
    benchmark = with_ours(*blocks)
    return benchmark.summarize(benchmark.of(CASE, Variant.OURS))


def test_summarizes_all_blocks() -> None:
    more = {"memory_peak_bytes": 9, "stage_count": 2, "fallbacks": {"": 3}}
    assert _summary_of_ours(
        make_block(4, 4.0, 1.0, 3.0, memory_peak_bytes=7, first_step_ms=100.0),
        make_block(5, 2.0, 100.0, first_step_ms=300.0, **more),
    ) == Summary(
        median_ms=27.0,
        first_quartile_ms=pytest.approx((2.0 + 26.5) / 2),
        third_quartile_ms=pytest.approx((3.5 + 75.5) / 2),
        lowest_block_ms=3.0,
        highest_block_ms=51.0,
        examples_per_second=pytest.approx(8 / 0.027),
        speedup=None,
        lowest_speedup=None,
        highest_speedup=None,
        first_step_ms=200.0,
        memory_peak_bytes=9,
        blocks=2,
        stages="0–2",
        fallbacks=3,
    )
    assert BENCHMARK.summarize(BENCHMARK.of(CASE, Variant.XLA)) is None


@pytest.mark.parametrize(
    ("blocks", "speedups", "shown"),
    [
        # The second round is half as fast for all; over all blocks the ratio would be 15 / 6 = 2.5.
        (OURS_BLOCKS, (2.25, 2.0, 2.5), "2.25 (2.00–2.50)"),
        ((make_block(0, 5.0, stage_count=1), make_block(7, 0.001)),
         (2.2, None, None), "2.20 (one round)"),
        ((make_block(7, 0.001, stage_count=1),), (None, None, None), " – "),
        (NO_STAGE, (None, None, None), "same as stock"),
    ],
)  # fmt: skip
def test_a_speedup_compares_common_turns(
    blocks: tuple[Block, ...],
    speedups: tuple[float | None, ...],
    shown: str,
) -> None:
    summary = _summary_of_ours(*blocks)
    assert (summary.speedup, summary.lowest_speedup, summary.highest_speedup) == speedups
    text = _shown(with_ours(*blocks))
    [ours] = [line for line in text.splitlines() if line.startswith("ours ")]
    assert shown in ours
    assert ("one round: it has no range" in text) == ("one round" in shown)


@pytest.mark.parametrize(
    ("variant", "stage_count", "same"),
    [
        (Variant.XLA_ENABLED, 0, Variant.XLA),
        (Variant.XLA_ENABLED, 3, None),
        (Variant.OURS, 0, Variant.STOCK),
        (Variant.XLA, 0, None),
        (Variant.ENABLED, 0, None),
    ],
)
def test_what_changed_nothing_is_the_variant_without_the_plugin(
    variant: Variant, stage_count: int, same: Variant | None
) -> None:
    result = Result(CASE, variant, blocks=(make_block(0, 1.0, stage_count=stage_count),))
    assert result.same_as is same
    shown = _shown(dataclasses.replace(BENCHMARK, results=(*BENCHMARK.results, result)))
    assert ("same as xla: nothing was changed" in shown) == (same is Variant.XLA)


def test_tables_and_csv_show_all_variants_and_failures(tmp_path: pathlib.Path) -> None:
    text = _shown(BENCHMARK)
    lines = text.splitlines()
    [ours] = [line for line in lines if line.startswith("ours ")]
    assert "6.75 ms" in ours and ours.split()[-1] == "4"
    assert any(line.strip().startswith("xla: timed out") for line in lines)
    assert any("3 times: no workspace" in line for line in lines)
    assert "RSS" in text
    assert "Not reliable" not in text
    busy = dataclasses.replace(OURS_BLOCKS[0], other_load=0.25)
    assert "other programs took up to 25 % of the cores" in _shown(with_ours(busy))
    hot = dataclasses.replace(OURS_BLOCKS[0], slowed=0.5)
    assert "a core was slower than at the beginning in up to 50 %" in _shown(with_ours(hot))
    rows = _csv_rows(BENCHMARK, tmp_path)
    assert list(rows) == ["stock", "xla", "ours"]
    assert tuple(rows["ours"]) == CSV_COLUMNS
    expected = {
        "model": "ResNet50", "mode": "inference", "image_size": "", "median_ms": "6.75",
        "speedup": "2.25", "fallbacks": "3", "failure": "",
    }  # fmt: skip
    assert expected.items() <= rows["ours"].items()
    assert (rows["xla"]["median_ms"], rows["xla"]["blocks"]) == ("", "0")
    assert rows["xla"]["failure"].startswith("timed out")


def test_a_table_of_a_cpu_says_so_and_has_no_tf32(tmp_path: pathlib.Path) -> None:
    on_cpu, on_gpu = _shown(BENCHMARK), _shown(dataclasses.replace(BENCHMARK, device=GPU))
    assert "ResNet50, inference, batch 8, float32" in on_cpu
    assert "ResNet50, inference, batch 8, tf32" in on_gpu
    assert " units\n" in on_cpu and " stages\n" in on_gpu
    assert "Measured on a CPU" in on_cpu
    assert "Measured on a CPU" not in on_gpu
    # Keras turns XLA on by itself only on a GPU.
    without = with_ours(*OURS_BLOCKS)
    shown = [_shown(dataclasses.replace(without, device=device)) for device in (GPU, CPU)]
    assert ["xla was not compared" in text for text in (*shown, on_gpu)] == [True, False, False]
    sized = dataclasses.replace(CASE, image_size=(32, 64))
    assert sized.name == "ResNet50, inference, batch 8, tf32, 32x64"
    of_size = dataclasses.replace(BENCHMARK, results=(Result(sized, Variant.STOCK),))
    assert _csv_rows(of_size, tmp_path)["stock"]["image_size"] == "32x64"
