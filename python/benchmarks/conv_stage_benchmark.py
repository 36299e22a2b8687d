"""Benchmarks of networks in the form of TensorFlow's model garden, which PerfZero can call.

There is a method for each network, step and variant, such as
`benchmark__googlenet__inference__ours`. It runs `tf-interop benchmark` once, and reports
`exp_per_second`, and as `startup_time` the seconds of the first step. If BENCHMARK_OUTPUT_DIR names
a folder, `<class>.<method>.json` is written there, in addition to TensorFlow's own files under
TEST_REPORT_FILE_PREFIX.

The variable CONV_STAGE_BENCHMARK, or `options` in PerfZero's `--constructor_args`, has more options
for that command, such as the plan for variants with stages.

Example, with CONV_STAGE_BENCHMARK="--policy always --image-size 64":

    python -m python.benchmarks.conv_stage_benchmark --benchmark_filter=resnet_50__inference__stock
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported

import tensorflow as tf

from tf_interop.benchmark.result import Mode, Variant, load_benchmark

OPTIONS_VARIABLE = "CONV_STAGE_BENCHMARK"
OUTPUT_VARIABLE = "BENCHMARK_OUTPUT_DIR"
NETWORKS = {
    "GoogLeNet": "python.models.googlenet:googlenet",
    "Inception-v3": "InceptionV3",
    "ResNet-50": "ResNet50",
    "SqueezeNet": "python.models.squeezenet:squeezenet",
    "NASNetMobile": "NASNetMobile",
    "RandWire": "python.models.randwire:randwire",
    "DenseNet-121": "DenseNet121",
    "NASNetLarge": "NASNetLarge",
}
"""The MODEL argument of each network. Networks with published measurements of concurrent
convolutions come first."""
_STEPS = {Mode.INFERENCE: "--inference", Mode.TRAINING: "--no-inference --training"}


class ConvStageBenchmark(tf.test.Benchmark):  # type: ignore[misc]
    """Networks with stock TensorFlow, with XLA and with stages."""

    def __init__(self, output_dir: str | None = None, options: str = "", **_others: Any) -> None:
        """Accepts PerfZero's arguments; `_others` are for other benchmarks.

        Args:
            output_dir: for results, if BENCHMARK_OUTPUT_DIR is not set.
            options: of `tf-interop benchmark`, if CONV_STAGE_BENCHMARK is not set.
        """
        super().__init__()
        self._options = os.environ.get(OPTIONS_VARIABLE) or options
        self._output_dir = os.environ.get(OUTPUT_VARIABLE) or output_dir

    def _run_and_report(self, method: str, model: str, mode: Mode, variant: Variant) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "results.json")
            words = f"{_STEPS[mode]} --variants {variant.value} --repetitions 1 {self._options}"
            arguments = ["benchmark", model, *shlex.split(words), "-o", str(path)]
            folders = os.pathsep.join(map(os.path.abspath, sys.path))
            subprocess.run(
                [sys.executable, "-m", "tf_interop", *arguments],
                env=os.environ | {"PYTHONPATH": folders},
                check=False,
            )
            if not path.exists():
                raise RuntimeError(f"Expected results of {shlex.join(arguments)}, got none.")
            benchmark = load_benchmark(path)
        [result] = benchmark.results
        summary = benchmark.summarize(result)
        if summary is None or result.failure is not None:
            raise RuntimeError(f"Expected steps, got {result.failure}.")
        [block] = result.blocks
        report = {
            "iters": block.steps,
            "wall_time": block.steps * block.median_ms / 1e3,
            "metrics": [
                {"name": "exp_per_second", "value": summary.examples_per_second},
                {"name": "startup_time", "value": block.first_step_ms / 1e3},
            ],
            "extras": {
                "median_ms": summary.median_ms,
                "memory_peak_bytes": block.memory_peak_bytes,
                "stages": block.stage_count,
                "batch_size": result.case.batch_size,
                "precision": result.case.precision.value,
            },
        }
        self.report_benchmark(name=method, **report)
        if self._output_dir:
            output = pathlib.Path(self._output_dir, f"{type(self).__name__}.{method}.json")
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps(report, indent=2) + "\n")


for _network, _mode, _variant in itertools.product(NETWORKS, Mode, Variant):
    # Turns "Inception-v3" and "ResNet-50" into Python names.
    _method = re.sub(r"\W", "_", f"benchmark__{_network}__{_mode.value}__{_variant.value}").lower()
    _run = functools.partialmethod(
        ConvStageBenchmark._run_and_report, _method, NETWORKS[_network], _mode, _variant
    )
    setattr(ConvStageBenchmark, _method, _run)

if __name__ == "__main__":
    tf.test.main()
