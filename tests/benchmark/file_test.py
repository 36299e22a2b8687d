"""Benchmarks' files, and what is made of them: summaries, tables, CSV and pictures."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from benchmark_values import BENCHMARK, CASE, OURS_BLOCKS, STOCK_BLOCKS, make_block, with_ours
from profile_values import GPU
from rich.console import Console

from tf_interop.benchmark.file import load_benchmark, save_benchmark
from tf_interop.benchmark.plot import write_plot
from tf_interop.benchmark.result import (
    Benchmark,
    Block,
    CaseResult,
    Speedup,
    Summary,
    Variant,
    VariantResult,
)
from tf_interop.benchmark.tables import CSV_COLUMNS, show_benchmark, write_csv
from tf_interop.errors import BenchmarkError

NO_STAGE = tuple(dataclasses.replace(block, stage_count=0) for block in OURS_BLOCKS)


def _shown(benchmark: Benchmark) -> str:
    text = io.StringIO()
    show_benchmark(benchmark, Console(file=text, width=100))
    return text.getvalue()


def _csv_rows(benchmark: Benchmark, folder: pathlib.Path) -> dict[str, dict[str, str]]:
    write_csv(benchmark, folder / "results.csv")
    with (folder / "results.csv").open(newline="") as file:
        return {row["variant"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize(
    ("damage", "place"),
    [
        (lambda raw: raw["results"].append(raw["results"][0]), r"results\[1\]"),
        (lambda raw: raw["results"][0]["variants"][0]["blocks"].reverse(), r"variants\[0\].blocks"),
        (lambda raw: raw["results"][0]["variants"][1].update(failure=None), r"variants\[1\]"),
        (lambda raw: raw["results"][0].update(variants=[{"variant": "xla"}] * 2), ".variants`"),
    ],
)
def test_refuses_what_is_not_legal(
    tmp_path: pathlib.Path, damage: Callable[[Any], None], place: str
) -> None:
    path = tmp_path / "results.json"
    save_benchmark(BENCHMARK, path)
    raw = json.loads(path.read_text())
    damage(raw)
    path.write_text(json.dumps(raw))
    with pytest.raises(BenchmarkError, match=place):
        load_benchmark(path)


def _summary(*blocks: Block, stock: tuple[Block, ...] = ()) -> Summary | None:
    variants = (
        VariantResult(Variant.STOCK, blocks=stock),
        VariantResult(Variant.XLA, blocks=blocks),
    )
    return CaseResult(CASE, variants).summarize(Variant.XLA)


def test_a_summary_is_of_all_steps_of_all_blocks() -> None:
    summary = _summary(
        make_block(0, 4.0, 1.0, 3.0, memory_peak_bytes=7, gpu_utilization=0.5, first_step_ms=100.0),
        make_block(1, 2.0, 100.0, memory_peak_bytes=9, gpu_utilization=None, first_step_ms=300.0),
    )
    assert summary is not None
    assert summary.median_ms == 3.0
    assert summary.quartile_ms == (2.0, 4.0)
    assert summary.block_range_ms == (3.0, 51.0)  # of the medians of the blocks
    assert summary.examples_per_second == pytest.approx(8 / 0.003)
    assert (summary.memory_peak_bytes, summary.first_step_ms) == (9, 200.0)
    assert summary.gpu_utilization == 0.5
    assert summary.speedup is None
    assert _summary() is None


@pytest.mark.parametrize(
    ("blocks", "speedup"),
    [
        # The second turn is half as fast for all: over all blocks it would look like 15 / 6 = 2.5.
        (OURS_BLOCKS, Speedup(2.25, 2.0, 2.5)),
        ((make_block(0, 5.0), make_block(7, 0.001)), Speedup(2.2, 2.2, 2.2)),
        ((make_block(7, 0.001),), None),
    ],
)
def test_a_speedup_is_of_the_turns_that_both_have(
    blocks: tuple[Block, ...], speedup: Speedup | None
) -> None:
    summary = _summary(*blocks, stock=STOCK_BLOCKS)
    assert summary is not None and summary.speedup == speedup


def test_a_plan_without_a_stage_has_no_speedup(tmp_path: pathlib.Path) -> None:
    benchmark = with_ours(*NO_STAGE)
    summary = benchmark.results[0].summarize(Variant.OURS)
    assert summary is not None and summary.ran_as_stock and summary.speedup is None
    text = _shown(benchmark)
    [ours] = [line for line in text.splitlines() if line.startswith("ours ")]
    assert "as stock" in ours
    assert "in 1 of 2 turns" not in text
    row = _csv_rows(benchmark, tmp_path)["ours"]
    assert (row["median_ms"], row["speedup"]) == ("6.0", "")
    assert "in 1 of 2 turns" in _shown(with_ours(NO_STAGE[0], OURS_BLOCKS[1]))


def test_one_turn_has_no_range(tmp_path: pathlib.Path) -> None:
    once = with_ours(OURS_BLOCKS[0])
    assert "2.00 (one turn)" in _shown(once)
    row = _csv_rows(once, tmp_path)["ours"]
    assert (row["speedup"], row["lowest_speedup"], row["highest_speedup"]) == ("2.0", "", "")


def test_a_table_has_every_variant_and_says_what_is_missing() -> None:
    text = _shown(BENCHMARK)
    lines = text.splitlines()
    [ours] = [line for line in lines if line.startswith("ours ")]
    assert "6.00 ms" in ours
    assert "2.25 (2.00–2.50)" in ours
    assert ours.split()[-1] == "4"
    assert any(line.strip().startswith("xla: timed out") for line in lines)
    assert any("3 times: no workspace" in line for line in lines)
    assert "RSS" in text
    assert "one turn" not in text


def test_a_table_of_a_cpu_says_so_and_knows_no_tf32() -> None:
    on_cpu, on_gpu = _shown(BENCHMARK), _shown(dataclasses.replace(BENCHMARK, device=GPU))
    assert "ResNet50, inference, batch 8, float32" in on_cpu
    assert "ResNet50, inference, batch 8, tf32" in on_gpu
    assert "Measured on a CPU" in on_cpu
    assert "Measured on a CPU" not in on_gpu


def test_a_csv_file_has_a_line_for_each_variant(tmp_path: pathlib.Path) -> None:
    rows = _csv_rows(BENCHMARK, tmp_path)
    assert list(rows) == ["stock", "xla", "ours"]
    assert tuple(rows["ours"]) == CSV_COLUMNS
    assert float(rows["ours"]["median_ms"]) == 6.0
    assert (rows["ours"]["speedup"], rows["ours"]["fallbacks"]) == ("2.25", "3")
    assert rows["xla"]["median_ms"] == ""
    assert rows["xla"]["failure"].startswith("timed out")


def test_a_plot_is_of_the_kind_of_its_suffix(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    write_plot(BENCHMARK, tmp_path / "results.png")
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
    write_plot(BENCHMARK, tmp_path / "results.svg")
    assert (tmp_path / "results.svg").read_text().count('id="legend') == 1
    with pytest.raises(BenchmarkError, match=r"results\.unknown"):
        write_plot(BENCHMARK, tmp_path / "results.unknown")
    with pytest.raises(BenchmarkError, match="Measure first"):
        write_plot(dataclasses.replace(BENCHMARK, results=()), tmp_path / "results.png")


def test_names_of_cases_tell_them_apart() -> None:
    other = dataclasses.replace(CASE, image_size=(32, 64))
    assert other.name == "ResNet50, inference, batch 8, tf32, 32x64"
    assert other.name != CASE.name
