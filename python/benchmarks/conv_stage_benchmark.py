"""The networks as benchmarks in the form of TensorFlow's model garden, which PerfZero can call.

A method for each network, step and variant, such as `benchmark__googlenet__inference__ours`. Each
reports `exp_per_second` and `startup_time`, the seconds of the first step, and measures in a
process of its own as `tf-interop benchmark` does. Results go to the folder BENCHMARK_OUTPUT_DIR,
where it is set, as `<class>.<method>.json`, beside what TensorFlow itself writes to
TEST_REPORT_FILE_PREFIX.

Options are the fields of `Options`: as arguments of the constructor, which PerfZero passes on, or
as JSON in the variable CONV_STAGE_BENCHMARK, which goes before them.

Example, with CONV_STAGE_BENCHMARK={"policy": "always", "image_size": 64}:

    python -m python.benchmarks.conv_stage_benchmark --benchmark_filter=resnet_50__inference__stock
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import statistics
import tempfile
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

import tensorflow as tf

from python.benchmarks.networks import NETWORKS, Network
from tf_interop.benchmark.child import Outcome, Request, run_child
from tf_interop.benchmark.result import (
    Block,
    Case,
    MeasuringOptions,
    Mode,
    Precision,
    Variant,
)

OPTIONS_VARIABLE = "CONV_STAGE_BENCHMARK"
OUTPUT_VARIABLE = "BENCHMARK_OUTPUT_DIR"


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What is measured, and with which plan.

    Attributes:
        plan: a plan's file, for variants with stages.
        profile: a profile's file to plan by, in its place.
        policy: `always`, in place of both.
        batch_size: images of one step.
        image_size: height and width; None for the network's own.
        precision: `tf32`, `float32`, `float16` or `bfloat16`.
        steps: the fewest steps to time.
        seconds: the shortest time to go on timing.
        warmup_steps: run before and not timed.
    """

    plan: str | None = None
    profile: str | None = None
    policy: str | None = None
    batch_size: int = 32
    image_size: int | None = None
    precision: str = "tf32"
    steps: int = MeasuringOptions().steps
    seconds: float = MeasuringOptions().seconds
    warmup_steps: int = MeasuringOptions().warmup_steps


class ConvStageBenchmark(tf.test.Benchmark):  # type: ignore[misc]
    """Networks with stock TensorFlow, with XLA and with stages."""

    def __init__(self, output_dir: str | None = None, **arguments: Any) -> None:
        """Takes what PerfZero passes.

        Args:
            output_dir: for results, where BENCHMARK_OUTPUT_DIR is not set.
            **arguments: fields of `Options`; others, which PerfZero passes to every benchmark, are
                not looked at.
        """
        super().__init__()
        known = {field.name for field in dataclasses.fields(Options)}
        given = {name: value for name, value in arguments.items() if name in known}
        self._options = Options(**given | json.loads(os.environ.get(OPTIONS_VARIABLE, "{}")))
        self._output_dir = os.environ.get(OUTPUT_VARIABLE) or output_dir
        self._measuring = MeasuringOptions(
            self._options.warmup_steps, self._options.steps, self._options.seconds
        )

    def _run_and_report(self, method: str, network: Network, mode: Mode, variant: Variant) -> None:
        batch_size, side = self._options.batch_size, self._options.image_size
        case = Case(
            network.model,
            mode,
            batch_size,
            Precision(self._options.precision),
            None if side is None else (side, side),
        )
        with tempfile.TemporaryDirectory() as folder:
            plan = self._plan_of(case, pathlib.Path(folder)) if variant.needs_plan else None
            block = self._run(Request(case, variant, plan, options=self._measuring))
        assert block is not None
        median_ms = statistics.median(block.step_ms)
        metrics = [
            {"name": "exp_per_second", "value": batch_size / median_ms * 1e3},
            {"name": "startup_time", "value": block.first_step_ms / 1e3},
        ]
        report = {
            "iters": len(block.step_ms),
            "wall_time": sum(block.step_ms) / 1e3,
            "metrics": metrics,
            "extras": {
                "median_ms": median_ms,
                "memory_peak_bytes": block.memory_peak_bytes,
                "memory_kind": block.memory_kind.value,
                "stages": block.stage_count,
                "batch_size": batch_size,
                "precision": case.precision.value,
            },
        }
        self.report_benchmark(name=method, **report)
        if self._output_dir:
            path = pathlib.Path(self._output_dir, f"{type(self).__name__}.{method}.json")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(report, indent=2) + "\n")

    def _plan_of(self, case: Case, folder: pathlib.Path) -> str:
        if self._options.plan is not None:
            return self._options.plan
        if self._options.profile is None and self._options.policy != "always":
            raise ValueError(
                "Expected a plan, a profile or the policy 'always' for stages, got none. Pass one "
                f"in {OPTIONS_VARIABLE} or PerfZero's --constructor_args."
            )
        path = str(folder / "plan.json")
        self._run(Request(case, None, path, self._options.profile))
        return path

    def _run(self, request: Request) -> Block | None:
        outcome: Outcome = run_child(request, self._measuring.timeout_seconds)
        if outcome.failure is not None:
            raise RuntimeError(f"{outcome.failure.kind.value}: {outcome.failure.message}")
        return outcome.block


def _add_methods() -> None:
    for network in NETWORKS:
        # "Inception-v3" and "ResNet-50" as names of Python.
        name = re.sub(r"\W+", "_", network.name).lower()
        for mode in Mode:
            for variant in Variant:
                method = f"benchmark__{name}__{mode.value}__{variant.value}"
                setattr(ConvStageBenchmark, method, _method(method, network, mode, variant))


def _method(
    name: str, network: Network, mode: Mode, variant: Variant
) -> Callable[[ConvStageBenchmark], None]:
    def benchmark(self: ConvStageBenchmark) -> None:
        self._run_and_report(name, network, mode, variant)

    benchmark.__name__ = name
    benchmark.__doc__ = f"{network.name}, {mode.value}, {variant.value}."
    return benchmark


_add_methods()

if __name__ == "__main__":
    tf.test.main()
