"""Made-up benchmarks for tests."""

from __future__ import annotations

import dataclasses

import numpy as np
from profile_values import CPU

from tf_interop.benchmark.result import (
    Benchmark,
    Block,
    Case,
    Failure,
    FailureKind,
    MeasuringOptions,
    Mode,
    Precision,
    Result,
    Variant,
)

CASE = Case("ResNet50", Mode.INFERENCE, 8, Precision.TF32)
OPTIONS = MeasuringOptions(warmup_steps=1, steps=2, seconds=0.0, timeout_seconds=60.0)


def make_block(repetition: int, *step_ms: float, **others: object) -> Block:
    """A block with these steps."""
    block = Block(
        repetition=repetition,
        steps=len(step_ms),
        median_ms=float(np.median(step_ms)),
        first_quartile_ms=float(np.quantile(step_ms, 0.25)),
        third_quartile_ms=float(np.quantile(step_ms, 0.75)),
        first_step_ms=500.0,
        memory_peak_bytes=1_000_000,
        stage_count=0,
        fallbacks={},
    )
    return dataclasses.replace(block, **others)  # type: ignore[arg-type]


STOCK_BLOCKS = (make_block(0, 10.0, 12.0), make_block(1, 20.0, 20.0))
OURS_BLOCKS = (
    make_block(0, 5.0, 6.0, stage_count=4),
    make_block(1, 8.0, stage_count=4, fallbacks={"no workspace": 3}),
)
BENCHMARK = Benchmark(
    device=CPU,
    made_with={"tensorflow": "2.21.0"},
    commands=("tf-interop benchmark ResNet50 --plan plan.json -o results.json",),
    options=OPTIONS,
    results=(
        Result(CASE, Variant.STOCK, blocks=STOCK_BLOCKS),
        Result(
            CASE,
            Variant.XLA,
            failure=Failure(FailureKind.TIMED_OUT, "the process took longer than 60 s"),
        ),
        Result(CASE, Variant.OURS, "ab12", blocks=OURS_BLOCKS),
    ),
)


def with_ours(*blocks: Block) -> Benchmark:
    """The benchmark with stock TensorFlow and other blocks of the plan."""
    ours = Result(CASE, Variant.OURS, "ab12", blocks=blocks)
    return dataclasses.replace(BENCHMARK, results=(BENCHMARK.results[0], ours))
