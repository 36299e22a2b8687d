"""docs/results.md agrees with the result files."""

from __future__ import annotations

import dataclasses
import re

from benchmark_values import BENCHMARK, CASE, make_block, with_ours
from profile_values import CPU, GPU

from scripts import write_results
from tf_interop.benchmark.result import Mode, Result, Variant


def test_page_agrees_with_the_result_files() -> None:
    page = write_results.render(write_results.read_results())
    assert write_results.PAGE.read_text() == page, "run scripts/write_results.py"


def _section(result: object) -> str:
    return re.sub(r"\s+", " ", write_results.render({"it.json": result}))


def test_a_benchmark_has_a_section() -> None:
    page = _section(BENCHMARK)
    assert f"[it.json](results/it.json): {CPU.name}, {CPU.sm_count} cores, {CPU.date}" in page
    assert f"`{BENCHMARK.commands[0]}`" in page
    name = CASE.name_on(CPU)
    assert f"| {name} | 15.5 ms | 2.25 (2.00 to 2.50) | timed out |" in page
    on_gpu = _section(dataclasses.replace(BENCHMARK, device=GPU))
    assert f"{GPU.name}, {GPU.sm_count} SMs, {GPU.date}" in on_gpu
    assert f"cudnn {GPU.cudnn}" in on_gpu


def test_a_variant_that_changed_nothing_and_one_round_are_named() -> None:
    slower = tuple(make_block(number, 30.0, stage_count=1) for number in (0, 1))
    unchanged = (dataclasses.replace(each, stage_count=0) for each in slower)
    assert "same as stock |" in _section(with_ours(*unchanged))
    assert "(one round) |" in _section(with_ours(slower[0]))


def test_means_are_over_the_rows_of_a_variant_and_by_mode() -> None:
    larger = dataclasses.replace(CASE, batch_size=32)
    training = dataclasses.replace(CASE, mode=Mode.TRAINING)
    # Milliseconds of each variant in turn.
    times = {
        CASE: {"stock": 16.0, "enabled": 2.0, "onnxruntime": 4.0, "openvino": 8.0},
        larger: {"stock": 16.0, "enabled": 8.0, "onnxruntime": 4.0, "openvino": 2.0},
        training: {"stock": 9.0, "enabled": 3.0},
    }
    results = tuple(
        Result(case, Variant(name), blocks=(make_block(0, time_ms),))
        for case, of_case in times.items()
        for name, time_ms in of_case.items()
    )
    frozen = Result(larger, Variant.FROZEN, blocks=(make_block(0, 8.0),))
    page = _section(dataclasses.replace(BENCHMARK, results=(*results, frozen)))
    assert f"| {training.name_on(CPU)} | 9.0 ms | – | 3.00 (one round) | – | – |" in page
    assert "| frozen | enabled | onnxruntime | openvino |" in page
    assert "| inference, against stock | 2.00 (1) | 4.00 (2) | 4.00 (2) | 4.00 (2) |" in page
    assert "| training, against stock | – | 3.00 (1) | – | – |" in page
    faster = "| inference, against the faster of onnxruntime and openvino"
    # Twice as fast as one, a quarter as fast as the other.
    assert f"{faster} | – | 0.71 (2) | – | – |" in page
