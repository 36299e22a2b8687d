"""Medians, spreads and ratios of what a benchmark measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from tf_interop.benchmark.result import Block, Speedup, Summary


def summarize(blocks: Sequence[Block], batch_size: int, stock: Sequence[Block]) -> Summary | None:
    """Sums up the blocks of one variant of one case.

    Args:
        blocks: of the variant.
        batch_size: images of one step.
        stock: the blocks of stock TensorFlow for the same case.

    Returns:
        None where there are no blocks.
    """
    if not blocks:
        return None
    steps = np.concatenate([block.step_ms for block in blocks])
    first, median, third = (float(value) for value in np.quantile(steps, (0.25, 0.5, 0.75)))
    medians = [statistics.median(block.step_ms) for block in blocks]
    utilizations = [each.gpu_utilization for each in blocks if each.gpu_utilization is not None]
    return Summary(
        median_ms=median,
        quartile_ms=(first, third),
        block_range_ms=(min(medians), max(medians)),
        first_step_ms=statistics.median(block.first_step_ms for block in blocks),
        memory_peak_bytes=max(block.memory_peak_bytes for block in blocks),
        gpu_utilization=statistics.fmean(utilizations) if utilizations else None,
        examples_per_second=batch_size / median * 1e3,
        speedup=_speedup(blocks, stock),
    )


def _speedup(blocks: Sequence[Block], stock: Sequence[Block]) -> Speedup | None:
    # Of one turn: the two processes ran minutes apart at most, so that clocks, temperature and
    # other users of the machine have changed the least between them.
    stock_ms = {block.repetition: statistics.median(block.step_ms) for block in stock}
    ratios = [
        stock_ms[block.repetition] / statistics.median(block.step_ms)
        for block in blocks
        if block.repetition in stock_ms
    ]
    if not ratios:
        return None
    return Speedup(statistics.median(ratios), min(ratios), max(ratios))
