"""docs/results.md is what the result files say, and has no figure that is in none of them."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from typing import Any

import msgspec
import pytest
from benchmark_values import BENCHMARK, CASE, STOCK_BLOCKS, make_block
from profile_values import CPU, GPU

from scripts import write_results
from tf_interop.benchmark.result import Block, Variant, VariantResult
from tf_interop.benchmark.statistics import summarize

RESULTS = write_results.read_results()


def scalars(value: Any) -> list[Any]:
    """Every number and string in a result, at any depth, keys included."""
    if isinstance(value, dict):
        return [*value, *(leaf for each in value.values() for leaf in scalars(each))]
    if isinstance(value, list):
        return [leaf for each in value for leaf in scalars(each)] + [len(value)]
    return [value]


def is_rounding_of(shown: str, value: float) -> bool:
    if "e" in shown:
        return f"{value:.1e}" == shown
    decimals = len(shown.partition(".")[2])
    return f"{value:.{decimals}f}" == shown


def test_page_is_what_the_result_files_say() -> None:
    assert write_results.PAGE.read_text() == write_results.render(RESULTS), (
        "run scripts/write_results.py"
    )


def test_every_result_file_has_a_section_with_its_origin() -> None:
    page = re.sub(r"\s+", " ", write_results.PAGE.read_text())
    assert RESULTS
    for name, result in RESULTS.items():
        for text in (f"(results/{name})", result["machine"], result["date"], result["command"]):
            assert text in page


@pytest.mark.parametrize("name", RESULTS)
def test_every_figure_is_in_the_file(name: str) -> None:
    page = write_results.PAGE.read_text()
    (section,) = [each for each in page.split("\n## ") if f"](results/{name})" in each]
    leaves = scalars(RESULTS[name])
    numbers = [leaf for leaf in leaves if isinstance(leaf, int | float)]
    tables = [line for line in section.splitlines() if line.startswith("| ")]
    cells = [cell for line in tables[2:] for cell in line.strip("| ").split(" | ")[1:]]
    figures = [figure for cell in cells for figure in re.findall(r"[-\d.]+(?:e[-+]\d+)?", cell)]
    assert figures
    for figure in figures:
        assert any(is_rounding_of(figure, number) for number in numbers), figure


def test_introduction_has_no_figure() -> None:
    introduction = write_results.PAGE.read_text().split("\n## ")[0]
    assert not re.search(r"\d", introduction)


@pytest.mark.parametrize("key", ["date", "machine", "command"])
def test_refuses_a_result_that_does_not_say_how_it_was_made(key: str) -> None:
    results = copy.deepcopy(RESULTS)
    del results["pass_time.json"][key]
    with pytest.raises(ValueError, match=rf"docs/results/pass_time\.json, got none of {key}\."):
        write_results.render(results)


def test_refuses_a_result_of_a_kind_that_it_does_not_know() -> None:
    results = {"new.json": {**RESULTS["pass_time.json"], "format": "tf_interop.new"}}
    with pytest.raises(ValueError, match=r"'tf_interop\.new' in docs/results/new\.json"):
        write_results.render(results)


def test_page_follows_the_files() -> None:
    results = json.loads(json.dumps(RESULTS))
    results["pass_time.json"]["networks"][0]["median_ms"] = 987654.0
    assert "| 987654 ms |" in write_results.render(results)


def test_a_benchmark_has_a_section(monkeypatch: pytest.MonkeyPatch) -> None:
    result = msgspec.to_builtins(BENCHMARK)
    page = write_results.render({"cpu.json": result})
    assert "**None is of a GPU**" in page
    assert (
        f"[cpu.json](results/cpu.json): {CPU.name}, {CPU.sm_count} cores, {CPU.date}, tensorflow"
        in page
    )
    assert f"`{BENCHMARK.commands[0]}`" in re.sub(r"\s+", " ", page)
    stock, ours = BENCHMARK.results[0].summary, BENCHMARK.results[2].summary
    assert stock and ours and ours.speedup
    assert (
        f"| {CASE.name_on(CPU)} | {stock.median_ms:.1f} ms | timed out | {ours.speedup.median:.2f} "
        f"({ours.speedup.lowest:.2f} to {ours.speedup.highest:.2f}) | – | – |"
    ) in page
    assert "Slower than stock" not in page


def test_a_benchmark_says_where_stages_are_slower_and_why() -> None:
    slower = tuple(make_block(number, 30.0, stage_count=1) for number in (0, 1))
    lost = VariantResult(
        CASE, Variant.OURS, "ab12", summarize(slower, 8, STOCK_BLOCKS), None, slower
    )
    results = (BENCHMARK.results[0], lost)

    def page_of(*blocks: Block) -> str:
        summary = summarize(blocks, 8, STOCK_BLOCKS)
        changed = dataclasses.replace(lost, blocks=blocks, summary=summary)
        benchmark = dataclasses.replace(BENCHMARK, results=(results[0], changed))
        return re.sub(
            r"\s+", " ", write_results.render({"cpu.json": msgspec.to_builtins(benchmark)})
        )

    name = CASE.name_on(CPU)
    assert f"in every turn: {name} (as planned: what the profile promised" in page_of(*slower)
    left = tuple(dataclasses.replace(block, stage_count=0) for block in slower)
    assert "as stock | – | – |" in page_of(*left)
    assert "Slower than stock" not in page_of(*left)
    assert "(one turn) | – | – |" in page_of(slower[0])
    fallen = tuple(dataclasses.replace(block, fallbacks={"no workspace": 2}) for block in slower)
    assert f"{name} (no workspace)" in page_of(*fallen)


def test_a_benchmark_on_a_gpu_is_one() -> None:
    result = msgspec.to_builtins(dataclasses.replace(BENCHMARK, device=GPU))
    page = write_results.render({"gpu.json": result})
    assert "None is of a GPU" not in page
    assert f"{GPU.name}, {GPU.sm_count} SMs, {GPU.date}" in page
    assert f"cudnn {GPU.cudnn}" in page
