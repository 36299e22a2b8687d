"""docs/results.md is what the result files say, and has no value that is in none of them."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from typing import Any

import msgspec
import pytest
from benchmark_values import BENCHMARK, CASE, make_block, with_ours
from profile_values import CPU, GPU

from scripts import write_results
from tf_interop.benchmark.result import Benchmark

RESULTS = write_results.read_results()
BENCHMARKS = {name for name, each in RESULTS.items() if each["format"] == "tf_interop.benchmark"}


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
        if name in BENCHMARKS:
            origin = (result["device"]["name"], result["device"]["date"], *result["commands"])
        else:
            origin = (result["machine"], result["date"], result["command"])
        for text in (f"(results/{name})", *origin):
            assert text in page


@pytest.mark.parametrize("name", sorted(RESULTS.keys() - BENCHMARKS))  # they hold no ratios
def test_every_value_is_in_the_file(name: str) -> None:
    page = write_results.PAGE.read_text()
    (section,) = [each for each in page.split("\n## ") if f"](results/{name})" in each]
    leaves = scalars(RESULTS[name])
    numbers = [leaf for leaf in leaves if isinstance(leaf, int | float)]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    # Without the two lines at the head of each table.
    heads = {place for place, line in enumerate(lines) if line.startswith("| ---")}
    heads |= {place - 1 for place in heads}
    rows = [line for place, line in enumerate(lines) if place not in heads]
    cells = [cell for line in rows for cell in line.strip("| ").split(" | ")[1:]]
    values = [value for cell in cells for value in re.findall(r"[-\d.]+(?:e[-+]\d+)?", cell)]
    assert values
    for value in values:
        assert any(is_rounding_of(value, number) for number in numbers), value


def test_introduction_has_no_value() -> None:
    introduction = write_results.PAGE.read_text().split("\n## ")[0]
    assert not re.search(r"\d", introduction)


@pytest.mark.parametrize("key", ["date", "machine", "command"])
def test_refuses_a_result_that_does_not_say_how_it_was_made(key: str) -> None:
    results = copy.deepcopy(RESULTS)
    del results["pass_time.json"][key]
    with pytest.raises(ValueError, match=rf"pass_time\.json.* {key}\."):
        write_results.render(results)


def test_refuses_a_result_of_a_kind_that_it_does_not_know() -> None:
    results = {"new.json": {**RESULTS["pass_time.json"], "format": "tf_interop.new"}}
    with pytest.raises(ValueError, match=r"'tf_interop\.new'"):
        write_results.render(results)


def test_page_follows_the_files() -> None:
    results = json.loads(json.dumps(RESULTS))
    results["pass_time.json"]["networks"][0]["median_ms"] = 987654.0
    assert "| 987654 ms |" in write_results.render(results)


def _section(benchmark: Benchmark) -> str:
    page = write_results.render({"it.json": msgspec.to_builtins(benchmark)})
    return re.sub(r"\s+", " ", page)


def test_a_benchmark_has_a_section() -> None:
    page = _section(BENCHMARK)
    assert "**None is of a GPU**" in page
    assert f"[it.json](results/it.json): {CPU.name}, {CPU.sm_count} cores, {CPU.date}" in page
    assert f"`{BENCHMARK.commands[0]}`" in page
    name = CASE.name_on(CPU)
    assert f"| {name} | 15.5 ms | timed out | 2.25 (2.00 to 2.50) |" in page
    assert "Slower than stock" not in page
    on_gpu = _section(dataclasses.replace(BENCHMARK, device=GPU))
    assert "None is of a GPU" not in on_gpu
    assert f"{GPU.name}, {GPU.sm_count} SMs, {GPU.date}" in on_gpu
    assert f"cudnn {GPU.cudnn}" in on_gpu


def test_a_benchmark_says_where_stages_are_slower_and_why() -> None:
    slower = tuple(make_block(number, 30.0, stage_count=1) for number in (0, 1))
    name = CASE.name_on(CPU)
    assert f"in every turn: {name} (as planned" in _section(with_ours(*slower))
    left = _section(with_ours(*(dataclasses.replace(each, stage_count=0) for each in slower)))
    assert "as stock |" in left
    assert "Slower than stock" not in left
    assert "(one turn) |" in _section(with_ours(slower[0]))
    fallen = (dataclasses.replace(block, fallbacks={"no workspace": 2}) for block in slower)
    assert f"{name} (no workspace)" in _section(with_ours(*fallen))
