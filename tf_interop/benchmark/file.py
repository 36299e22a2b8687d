"""Files of benchmarks: versioned JSON, with every timed step, so that other figures can be made.

{
  "device": {"backend": "cudnn", "name": "NVIDIA H200", …},
  "made_with": {"tensorflow": "2.21.0", …},
  "commands": ["tf-interop benchmark ResNet50 --profile profile.json -o results.json"],
  "options": {"warmup_steps": 5, "steps": 20, …},
  "results": [
    {
      "case": {"model": "ResNet50", "step": "inference", "batch_size": 1, "precision": "tf32", …},
      "variant": "ours",
      "plan": "9f86d081…",
      "summary": {"median_ms": 4.1, "quartile_ms": [4.0, 4.3], …},
      "failure": null,
      "blocks": [{"repetition": 0, "step_ms": [4.2, …], "first_step_ms": 2310.0, …}]
    }
  ],
  "format": "tf_interop.benchmark",
  "version": 1
}
"""

from __future__ import annotations

from typing import Any

from tf_interop.benchmark.result import (
    BENCHMARK_FORMAT,
    BENCHMARK_VERSION,
    Benchmark,
    Case,
    Variant,
    VariantResult,
)
from tf_interop.errors import BenchmarkError
from tf_interop.profile.check import check_device
from tf_interop.versioned_file import (
    PathLike,
    VersionedFormat,
    load_versioned,
    save_versioned,
    versioned_schema,
)


def load_benchmark(path: PathLike) -> Benchmark:
    """Reads a benchmark's file.

    Legal is a file that holds each variant of a case once, each of its repetitions once and in
    order, a failure where there are no blocks, and a summary where there are.

    Raises:
        BenchmarkError: there is no such file, it is not whole, of another format or version, or not
            legal. Says where in the file.
    """
    return load_versioned(path, _BENCHMARK_FILE)


def save_benchmark(benchmark: Benchmark, path: PathLike) -> None:
    """Writes a benchmark's file, atomically.

    Raises:
        BenchmarkError: the benchmark is not legal (see `load_benchmark`), or the file cannot be
            written.
    """
    save_versioned(benchmark, path, _BENCHMARK_FILE)


def benchmark_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of benchmarks' files.

    It states types, fields and bounds. Which of blocks, summary and failure go together is beyond
    it.
    """
    return versioned_schema(_BENCHMARK_FILE)


def _check_benchmark(benchmark: Benchmark) -> None:
    check_device(benchmark.device, "$.device")
    places: dict[tuple[Case, Variant], int] = {}
    for index, result in enumerate(benchmark.results):
        place = f"$.results[{index}]"
        first = places.setdefault((result.case, result.variant), index)
        if first != index:
            raise ValueError(
                f"Expected each variant of a case once, got that of `$.results[{first}]` again at "
                f"`{place}`"
            )
        _check_result(result, place)


def _check_result(result: VariantResult, place: str) -> None:
    repetitions = [block.repetition for block in result.blocks]
    if repetitions != sorted(set(repetitions)):
        raise ValueError(
            f"Expected each repetition once and in order, got {repetitions} at `{place}.blocks`"
        )
    if not result.blocks and result.failure is None:
        raise ValueError(f"Expected blocks or a failure, got neither at `{place}`")
    if (result.summary is None) != (not result.blocks):
        raise ValueError(
            f"Expected a summary where there are blocks, got {len(result.blocks)} blocks and "
            f"{'none' if result.summary is None else 'one'} at `{place}.summary`"
        )


_BENCHMARK_FILE = VersionedFormat(
    noun="benchmark",
    name=BENCHMARK_FORMAT,
    version=BENCHMARK_VERSION,
    value_type=Benchmark,
    check=_check_benchmark,
    error=BenchmarkError,
    remedy="Remove the file and measure anew, or choose another one.",
)
