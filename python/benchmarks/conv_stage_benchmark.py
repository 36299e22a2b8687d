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
import itertools
import json
import os
import pathlib
import re
import statistics
import tempfile
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

import tensorflow as tf

from python.benchmarks.networks import NETWORKS
from tf_interop.benchmark.child import Request, run_child
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

    def _run_and_report(self, method: str, case: Case, variant: Variant) -> None:
        options = self._options
        case = dataclasses.replace(
            case,
            batch_size=options.batch_size,
            precision=Precision(options.precision),
            image_size=options.image_size and (options.image_size, options.image_size),
        )
        measuring = MeasuringOptions(options.warmup_steps, options.steps, options.seconds)
        with tempfile.TemporaryDirectory() as folder:
            plan = options.plan if variant.needs_plan else None
            if variant.needs_plan and plan is None:
                if options.profile is None and options.policy != "always":
                    raise ValueError(
                        "Expected a plan, a profile or the policy 'always' for stages, got none. "
                        f"Pass one in {OPTIONS_VARIABLE} or PerfZero's --constructor_args."
                    )
                plan = f"{folder}/plan.json"
                _run(Request(case, None, plan, options.profile))
            block = _run(Request(case, variant, plan, options=measuring))
        assert block is not None
        median_ms = statistics.median(block.step_ms)
        report = {
            "iters": len(block.step_ms),
            "wall_time": sum(block.step_ms) / 1e3,
            "metrics": [
                {"name": "exp_per_second", "value": case.batch_size / median_ms * 1e3},
                {"name": "startup_time", "value": block.first_step_ms / 1e3},
            ],
            "extras": {
                "median_ms": median_ms,
                "memory_peak_bytes": block.memory_peak_bytes,
                "memory_kind": block.memory_kind.value,
                "stages": block.stage_count,
                "batch_size": case.batch_size,
                "precision": case.precision.value,
            },
        }
        self.report_benchmark(name=method, **report)
        if self._output_dir:
            path = pathlib.Path(self._output_dir, f"{type(self).__name__}.{method}.json")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(report, indent=2) + "\n")


def _run(request: Request) -> Block | None:
    outcome = run_child(request, request.options.timeout_seconds)
    if outcome.failure is not None:
        raise RuntimeError(f"{outcome.failure.kind.value}: {outcome.failure.message}")
    return outcome.block


def _add_method(network: str, mode: Mode, variant: Variant) -> None:
    # "Inception-v3" and "ResNet-50" as names of Python.
    name = re.sub(r"\W+", "_", network).lower()
    method = f"benchmark__{name}__{mode.value}__{variant.value}"

    def benchmark(self: ConvStageBenchmark) -> None:
        self._run_and_report(method, Case(NETWORKS[network], mode, 1, Precision.TF32), variant)

    setattr(ConvStageBenchmark, method, benchmark)


for _network, _mode, _variant in itertools.product(NETWORKS, Mode, Variant):
    _add_method(_network, _mode, _variant)

if __name__ == "__main__":
    tf.test.main()
