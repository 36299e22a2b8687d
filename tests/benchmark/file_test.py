"""Benchmarks' files, and what is made of them: tables, CSV and pictures."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from benchmark_values import BENCHMARK, CASE
from profile_values import GPU
from rich.console import Console

from tf_interop.benchmark.file import benchmark_schema, load_benchmark, save_benchmark
from tf_interop.benchmark.plot import write_plot
from tf_interop.benchmark.result import Benchmark, Block, Variant
from tf_interop.benchmark.statistics import summarize
from tf_interop.benchmark.tables import CSV_COLUMNS, show_benchmark, write_csv
from tf_interop.errors import BenchmarkError

SCHEMA = pathlib.Path(__file__).resolve().parents[2] / "docs" / "schemas" / "benchmark.schema.json"


def _raw(path: pathlib.Path) -> Any:
    save_benchmark(BENCHMARK, path)
    return json.loads(path.read_text())


def _shown(benchmark: Benchmark) -> str:
    text = io.StringIO()
    show_benchmark(benchmark, Console(file=text, width=100))
    return text.getvalue()


def _with_blocks_of_ours(blocks: tuple[Block, ...]) -> Benchmark:
    """The benchmark with other blocks of the plan, summed up as they are in older files, too."""
    stock, xla, ours = BENCHMARK.results
    changed = dataclasses.replace(
        ours, blocks=blocks, summary=summarize(blocks, CASE.batch_size, stock.blocks)
    )
    return dataclasses.replace(BENCHMARK, results=(stock, xla, changed))


def test_reads_back_what_was_written(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "results.json"
    save_benchmark(BENCHMARK, path)
    assert load_benchmark(path) == BENCHMARK


def test_a_written_file_has_the_published_schema(tmp_path: pathlib.Path) -> None:
    schema = json.loads(SCHEMA.read_text())
    raw = _raw(tmp_path / "results.json")
    jsonschema.validate(raw, schema)
    raw["results"][0]["blocks"][0]["step_ms"] = []
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(raw, schema)


def test_the_published_schema_is_that_of_this_release() -> None:
    assert SCHEMA.read_text() == json.dumps(benchmark_schema(), indent=2) + "\n", (
        "scripts/write_schemas.py"
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw["results"].append(raw["results"][0]), "each variant of a case once"),
        (lambda raw: raw["results"][0]["blocks"].reverse(), r"in order, got \[1, 0\]"),
        (lambda raw: raw["results"][1].update(failure=None), "blocks or a failure, got neither"),
        (lambda raw: raw["results"][0].update(summary=None), "Expected a summary where there are"),
        (lambda raw: raw["results"][0].update(blocks=[]), "at `\\$.results\\[0\\]`"),
        (lambda raw: raw["results"][0].update(speed=1), "got `speed` at `\\$.results\\[0\\]`"),
        (lambda raw: raw.update(version=2), "made by a newer release"),
    ],
)
def test_refuses_what_is_not_legal(
    tmp_path: pathlib.Path, damage: Callable[[Any], None], message: str
) -> None:
    path = tmp_path / "results.json"
    raw = _raw(path)
    damage(raw)
    path.write_text(json.dumps(raw))
    with pytest.raises(BenchmarkError, match=message):
        load_benchmark(path)


def test_table_has_every_variant_and_says_what_is_missing() -> None:
    text = _shown(BENCHMARK)
    lines = text.splitlines()
    [ours] = [line for line in lines if line.startswith("ours ")]
    assert "6.00 ms" in ours
    assert "2.25 (2.00–2.50)" in ours
    assert ours.split()[-1] == "4"
    assert any("xla: timed out: the process took longer than 60 s" in line for line in lines)
    assert any("ours: not as planned, 3 times: no workspace" in line for line in lines)
    assert "memory: of the whole process (RSS)" in text
    assert "one turn" not in text
    assert "as stock: the plan" not in text


def test_table_of_a_cpu_says_so_and_knows_no_tf32() -> None:
    on_cpu, on_gpu = _shown(BENCHMARK), _shown(dataclasses.replace(BENCHMARK, device=GPU))
    assert "ResNet50, inference, batch 8, float32" in on_cpu
    assert "ResNet50, inference, batch 8, tf32" in on_gpu
    assert "tf32" not in on_cpu
    assert "Measured on a CPU" in on_cpu
    assert "Measured on a CPU" not in on_gpu


def test_one_turn_has_no_range(tmp_path: pathlib.Path) -> None:
    once = _with_blocks_of_ours(BENCHMARK.results[2].blocks[:1])
    text = _shown(once)
    [ours] = [line for line in text.splitlines() if line.startswith("ours ")]
    assert "2.00 (one turn)" in ours
    assert "one turn: no range" in text
    write_csv(once, tmp_path / "once.csv")
    with (tmp_path / "once.csv").open(newline="") as file:
        row = list(csv.DictReader(file))[2]
    assert (row["speedup"], row["lowest_speedup"], row["highest_speedup"]) == ("2.0", "", "")


def test_table_says_where_a_plan_made_no_stage() -> None:
    blocks = BENCHMARK.results[2].blocks
    none = tuple(dataclasses.replace(block, stage_count=0) for block in blocks)
    text = _shown(_with_blocks_of_ours(none))
    [ours] = [line for line in text.splitlines() if line.startswith("ours ")]
    assert "as stock" in ours
    assert "2.25" not in text
    assert "the same program ran" in text
    assert "without a stage" not in text
    text = _shown(_with_blocks_of_ours((none[0], blocks[1])))
    assert "ours: without a stage, as stock, in 1 of 2 turns" in text


def test_csv_has_no_speedup_where_a_plan_made_no_stage(tmp_path: pathlib.Path) -> None:
    blocks = BENCHMARK.results[2].blocks
    none = tuple(dataclasses.replace(block, stage_count=0) for block in blocks)
    write_csv(_with_blocks_of_ours(none), tmp_path / "none.csv")
    with (tmp_path / "none.csv").open(newline="") as file:
        row = list(csv.DictReader(file))[2]
    assert (row["median_ms"], row["speedup"]) == ("6.0", "")


def test_csv_has_a_line_for_each_variant(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "results.csv"
    write_csv(BENCHMARK, path)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert [row["variant"] for row in rows] == ["stock", "xla", "ours"]
    assert float(rows[2]["median_ms"]) == 6.0
    assert float(rows[2]["speedup"]) == 2.25
    assert rows[2]["fallbacks"] == "3"
    assert (rows[1]["median_ms"], rows[1]["failure"][:9]) == ("", "timed out")


def test_plot_is_written_in_the_kind_of_its_suffix(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    write_plot(BENCHMARK, tmp_path / "results.png")
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
    write_plot(BENCHMARK, tmp_path / "results.svg")
    drawn = (tmp_path / "results.svg").read_text()
    assert drawn.count('id="legend') == 1
    with pytest.raises(BenchmarkError, match=r"ends in one of .*\.png.*got '.*results\.unknown'"):
        write_plot(BENCHMARK, tmp_path / "results.unknown")


def test_plot_refuses_where_there_is_nothing(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(BenchmarkError, match="Measure first"):
        write_plot(dataclasses.replace(BENCHMARK, results=()), tmp_path / "results.png")


def test_names_of_cases_tell_them_apart() -> None:
    other = dataclasses.replace(CASE, image_size=(32, 64))
    assert other.name == "ResNet50, inference, batch 8, tf32, 32x64"
    assert Variant.STOCK.needs_plan is False
    assert [each for each in Variant if each.needs_plan] == [
        Variant.OURS,
        Variant.PINNING,
        Variant.CONCURRENCY,
    ]
