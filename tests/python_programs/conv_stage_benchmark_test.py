"""Benchmarks in the model garden's form, run by tf.test.main and as PerfZero does."""

from __future__ import annotations

import json
import pathlib

import pytest
from command_line import python_output
from tensorflow.core.util import test_log_pb2

from python.benchmarks.conv_stage_benchmark import NETWORKS, ConvStageBenchmark
from tf_interop.benchmark.result import Mode, Variant

QUICK = "--batch 2 --image-size 32 --steps 2 --seconds 0 --warmup-steps 0"


def check_written(folder: pathlib.Path, method: str) -> None:
    """Checks TensorFlow's file and our own."""
    entries = test_log_pb2.BenchmarkEntries()
    entries.ParseFromString((folder / f"proto_ConvStageBenchmark.{method}").read_bytes())
    [entry] = entries.entry
    assert entry.name == f"ConvStageBenchmark.{method}"
    assert entry.iters == 2
    output = json.loads((folder / f"ConvStageBenchmark.{method}.json").read_text())
    assert output["wall_time"] == pytest.approx(entry.wall_time)
    assert output["extras"]["batch_size"] == 2
    values = {metric.name: metric.value for metric in entry.metrics}
    assert values["exp_per_second"] == pytest.approx(2e3 / output["extras"]["median_ms"])
    assert values["startup_time"] > 0
    assert bool(output["extras"]["stages"]) == method.endswith("__ours")


@pytest.mark.slow
def test_runs_as_a_module(tmp_path: pathlib.Path) -> None:
    method = "benchmark__squeezenet__inference__stock"
    python_output(
        *("-m", "python.benchmarks.conv_stage_benchmark"),
        f"--benchmark_filter=ConvStageBenchmark.{method}$",
        CONV_STAGE_BENCHMARK=QUICK,
        BENCHMARK_OUTPUT_DIR=str(tmp_path),
        TEST_REPORT_FILE_PREFIX=str(tmp_path / "proto_"),
    )
    check_written(tmp_path, method)


@pytest.mark.slow
def test_runs_as_perfzero_does(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_REPORT_FILE_PREFIX", str(tmp_path / "proto_"))
    # PerfZero's own arguments, and those of --constructor_args.
    arguments = {"output_dir": str(tmp_path), "root_data_dir": "/data", "tpu": None}
    benchmark = ConvStageBenchmark(**arguments, options=f"{QUICK} --policy always")
    benchmark.benchmark__squeezenet__training__ours()
    check_written(tmp_path, "benchmark__squeezenet__training__ours")
    methods = [name for name in dir(benchmark) if name.startswith("benchmark__")]
    assert len(methods) == len(NETWORKS) * len(Mode) * len(Variant)
    assert "benchmark__inception_v3__training__concurrency" in methods


@pytest.mark.parametrize(
    ("options", "message"),
    [("--no-such-option", "got none"), (f"{QUICK} --timeout 0.1s", "TIMED_OUT")],
)
def test_a_failure_fails_the_benchmark(options: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        ConvStageBenchmark(options=options).benchmark__googlenet__inference__stock()
