"""docs/results.md agrees with the result files."""

from __future__ import annotations

import dataclasses
import re

from benchmark_values import BENCHMARK, CASE, make_block, with_ours
from profile_values import CPU, GPU

from scripts import write_results


def test_page_agrees_with_the_result_files() -> None:
    page = write_results.render(write_results.read_results())
    assert write_results.PAGE.read_text() == page, "run scripts/write_results.py"


def _section(result: object) -> str:
    return re.sub(r"\s+", " ", write_results.render({"it.json": result}))


def test_a_benchmark_has_a_section() -> None:
    page = _section(BENCHMARK)
    assert "**No value is from a GPU**" in page
    assert f"[it.json](results/it.json): {CPU.name}, {CPU.sm_count} cores, {CPU.date}" in page
    assert f"`{BENCHMARK.commands[0]}`" in page
    name = CASE.name_on(CPU)
    assert f"| {name} | 15.5 ms | timed out | 2.25 (2.00 to 2.50) |" in page
    assert "Slower than stock" not in page
    on_gpu = _section(dataclasses.replace(BENCHMARK, device=GPU))
    assert "No value is from a GPU" not in on_gpu
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
