"""Medians, spreads and ratios of blocks, against figures by hand."""

from __future__ import annotations

import pytest
from benchmark_values import OURS_BLOCKS, STOCK_BLOCKS, make_block

from tf_interop.benchmark.result import Speedup
from tf_interop.benchmark.statistics import summarize


def test_sums_up_all_steps_of_all_blocks() -> None:
    blocks = (make_block(0, 4.0, 1.0, 3.0), make_block(1, 2.0, 100.0))
    summary = summarize(blocks, 8, ())
    assert summary is not None
    assert summary.median_ms == 3.0
    assert summary.quartile_ms == (2.0, 4.0)
    # The medians of the blocks are 3 and 51.
    assert summary.block_range_ms == (3.0, 51.0)
    assert summary.examples_per_second == pytest.approx(8 / 0.003)
    assert summary.speedup is None


def test_speedup_compares_blocks_of_one_turn() -> None:
    # The second turn is half as fast for all: over all blocks it would look like 15 / 6 = 2.5.
    summary = summarize(OURS_BLOCKS, 8, STOCK_BLOCKS)
    assert summary is not None
    assert summary.speedup == Speedup(median=2.25, lowest=2.0, highest=2.5)


def test_speedup_leaves_out_turns_without_stock() -> None:
    blocks = (make_block(0, 5.0), make_block(7, 0.001))
    summary = summarize(blocks, 8, STOCK_BLOCKS)
    assert summary is not None
    assert summary.speedup == Speedup(2.2, 2.2, 2.2)
    summary = summarize(blocks[1:], 8, STOCK_BLOCKS)
    assert summary is not None
    assert summary.speedup is None


def test_memory_is_the_highest_peak_and_utilization_the_mean_of_those_known() -> None:
    blocks = (
        make_block(0, 1.0, memory_peak_bytes=7, gpu_utilization=0.5, first_step_ms=100.0),
        make_block(1, 1.0, memory_peak_bytes=9, gpu_utilization=None, first_step_ms=300.0),
        make_block(2, 1.0, memory_peak_bytes=8, gpu_utilization=0.7, first_step_ms=200.0),
    )
    summary = summarize(blocks, 1, ())
    assert summary is not None
    assert summary.memory_peak_bytes == 9
    assert summary.gpu_utilization == pytest.approx(0.6)
    assert summary.first_step_ms == 200.0
    summary = summarize(blocks[1:2], 1, ())
    assert summary is not None
    assert summary.gpu_utilization is None


def test_nothing_measured_has_no_summary() -> None:
    assert summarize((), 8, STOCK_BLOCKS) is None
