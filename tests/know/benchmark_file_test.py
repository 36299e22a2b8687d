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
from rich.console import Console

from tf_interop.errors import BenchmarkError
from tf_interop.know.results.benchmark_file import benchmark_schema, load_benchmark, save_benchmark
from tf_interop.know.results.benchmark_result import Variant
from tf_interop.use.benchmark.benchmark_plot import write_plot
from tf_interop.use.benchmark.benchmark_tables import CSV_COLUMNS, show_benchmark, write_csv

SCHEMA = pathlib.Path(__file__).resolve().parents[2] / "docs" / "schemas" / "benchmark.schema.json"


def _raw(path: pathlib.Path) -> Any:
    save_benchmark(BENCHMARK, path)
    return json.loads(path.read_text())


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
    text = io.StringIO()
    show_benchmark(BENCHMARK, Console(file=text, width=100))
    lines = text.getvalue().splitlines()
    assert "ResNet50, inference, batch 8, tf32" in text.getvalue()
    [ours] = [line for line in lines if line.startswith("ours ")]
    assert "6.00 ms" in ours
    assert "2.25 (2.00–2.50)" in ours
    assert ours.split()[-1] == "4"
    assert any("xla: timed out: the process took longer than 60 s" in line for line in lines)
    assert any("ours: not as planned, 3 times: no workspace" in line for line in lines)
    assert "memory: of the whole process (RSS)" in text.getvalue()


def test_table_says_where_a_plan_made_no_stage() -> None:
    ours = BENCHMARK.results[2]
    blocks = tuple(dataclasses.replace(block, stage_count=0) for block in ours.blocks)
    without = dataclasses.replace(BENCHMARK, results=(dataclasses.replace(ours, blocks=blocks),))
    text = io.StringIO()
    show_benchmark(without, Console(file=text, width=100))
    assert "ours: the plan has no stage for it, so that it ran as stock" in text.getvalue()


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
