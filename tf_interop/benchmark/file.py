"""Files of benchmarks: versioned JSON, with every timed step, so that any value can be made of it.

{
  "device": {"backend": "cudnn", "name": "NVIDIA H200", …},
  "made_with": {"tensorflow": "2.21.0", …},
  "commands": ["tf-interop benchmark ResNet50 --profile profile.json -o results.json"],
  "options": {"warmup_steps": 5, "steps": 20, …},
  "results": [
    {
      "case": {"model": "ResNet50", "mode": "inference", "batch_size": 1, "precision": "tf32", …},
      "variants": [
        {
          "variant": "ours",
          "plan": "9f86d081…",
          "failure": null,
          "blocks": [{"repetition": 0, "step_ms": [4.2, …], "first_step_ms": 2310.0, …}]
        }
      ]
    }
  ],
  "format": "tf_interop.benchmark",
  "version": 1
}
"""

from __future__ import annotations

from typing import Any

from tf_interop.benchmark.result import Benchmark, Case
from tf_interop.errors import BenchmarkError
from tf_interop.versioned_file import PathLike, VersionedFormat


def load_benchmark(path: PathLike) -> Benchmark:
    """Reads a benchmark's file.

    Legal is a file that holds each case once, of it each variant once, of this each repetition once
    and in order, and a failure where there are no blocks.

    Raises:
        BenchmarkError: there is no such file, it is not whole, of another format or version, or not
            legal. Says where in the file.
    """
    return _BENCHMARK_FILE.load(path)


def save_benchmark(benchmark: Benchmark, path: PathLike) -> None:
    """Writes a benchmark's file, atomically.

    Raises:
        BenchmarkError: the benchmark is not legal (see `load_benchmark`), or the file cannot be
            written.
    """
    _BENCHMARK_FILE.save(benchmark, path)


def benchmark_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of benchmarks' files: types, fields and bounds."""
    return _BENCHMARK_FILE.schema()


def _check_benchmark(benchmark: Benchmark) -> None:
    places: dict[Case, int] = {}
    for index, result in enumerate(benchmark.results):
        place = f"$.results[{index}]"
        first = places.setdefault(result.case, index)
        if first != index:
            raise ValueError(
                f"Expected each case once, got that of `$.results[{first}]` again at `{place}`"
            )
        variants = [measured.variant for measured in result.variants]
        if len(set(variants)) < len(variants):
            raise ValueError(f"Expected each variant once, got one again at `{place}.variants`")
        for number, measured in enumerate(result.variants):
            of_variant = f"{place}.variants[{number}]"
            repetitions = [block.repetition for block in measured.blocks]
            if repetitions != sorted(set(repetitions)):
                raise ValueError(
                    f"Expected each repetition once and in order, got {repetitions} at "
                    f"`{of_variant}.blocks`"
                )
            if not measured.blocks and measured.failure is None:
                raise ValueError(f"Expected blocks or a failure, got neither at `{of_variant}`")


_BENCHMARK_FILE = VersionedFormat(
    noun="benchmark",
    value_type=Benchmark,
    check=_check_benchmark,
    error=BenchmarkError,
    remedy="Remove the file and measure anew, or choose another one.",
)
