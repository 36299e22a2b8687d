"""The benchmarks in the model garden's form, as tf.test.main and as PerfZero run them."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from benchmark_values import make_block
from tensorflow.core.util import test_log_pb2

from python.benchmarks import conv_stage_benchmark
from python.benchmarks.conv_stage_benchmark import ConvStageBenchmark
from tf_interop.benchmark.child import Outcome, Request
from tf_interop.benchmark.result import Failure, FailureKind

ROOT = pathlib.Path(__file__).resolve().parents[2]
METHOD = "benchmark__squeezenet__inference__stock"
BLOCK = make_block(0, 10.0, 20.0, 30.0, first_step_ms=1500.0)


def _entry(prefix: pathlib.Path, method: str) -> test_log_pb2.BenchmarkEntry:
    entries = test_log_pb2.BenchmarkEntries()
    entries.ParseFromString(pathlib.Path(f"{prefix}ConvStageBenchmark.{method}").read_bytes())
    [entry] = entries.entry
    return entry


def test_runs_as_a_module_and_writes_what_model_garden_benchmarks_write(
    tmp_path: pathlib.Path,
) -> None:
    options = {"batch_size": 2, "image_size": 32, "steps": 2, "seconds": 0, "warmup_steps": 0}
    process = subprocess.run(
        [
            *(sys.executable, "-m", "python.benchmarks.conv_stage_benchmark"),
            f"--benchmark_filter=ConvStageBenchmark.{METHOD}$",
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "CONV_STAGE_BENCHMARK": json.dumps(options),
            "BENCHMARK_OUTPUT_DIR": str(tmp_path / "output"),
            "TEST_REPORT_FILE_PREFIX": str(tmp_path / "proto_"),
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    entry = _entry(tmp_path / "proto_", METHOD)
    assert entry.name == f"ConvStageBenchmark.{METHOD}"
    assert entry.iters == 2
    assert {metric.name for metric in entry.metrics} == {"exp_per_second", "startup_time"}
    assert all(metric.value > 0 for metric in entry.metrics)
    [path] = (tmp_path / "output").iterdir()
    assert path.name == f"ConvStageBenchmark.{METHOD}.json"
    assert json.loads(path.read_text())["extras"]["batch_size"] == 2


def test_a_method_called_as_perfzero_does(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[Request] = []

    def run_child(request: Request, _timeout_seconds: float) -> Outcome:
        requests.append(request)
        return Outcome() if request.variant is None else Outcome(BLOCK)

    monkeypatch.setattr(conv_stage_benchmark, "run_child", run_child)
    monkeypatch.setenv("TEST_REPORT_FILE_PREFIX", str(tmp_path / "proto_"))
    monkeypatch.delenv("BENCHMARK_OUTPUT_DIR", raising=False)
    # PerfZero's own arguments, and those of --constructor_args.
    benchmark = ConvStageBenchmark(
        output_dir=str(tmp_path), root_data_dir="/data", tpu=None, batch_size=4, profile="p.json"
    )
    benchmark.benchmark__nasnetlarge__training__ours()
    planned, measured = requests
    assert planned.profile_path == "p.json"
    assert measured.plan_path == planned.plan_path
    assert measured.case.model == "NASNetLarge"
    entry = _entry(tmp_path / "proto_", "benchmark__nasnetlarge__training__ours")
    assert (entry.iters, entry.wall_time) == (3, pytest.approx(0.06))
    values = {metric.name: metric.value for metric in entry.metrics}
    # Four images in the median of 20 ms.
    assert values == {"exp_per_second": pytest.approx(200.0), "startup_time": pytest.approx(1.5)}
    assert (tmp_path / "ConvStageBenchmark.benchmark__nasnetlarge__training__ours.json").exists()


def test_there_is_a_method_for_every_network_step_and_variant() -> None:
    methods = [name for name in dir(ConvStageBenchmark) if name.startswith("benchmark__")]
    assert len(methods) == 8 * 2 * 5
    assert "benchmark__inception_v3__training__concurrency" in methods


def test_a_failure_fails_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = Failure(FailureKind.OUT_OF_MEMORY, "OOM when allocating")
    monkeypatch.setattr(
        conv_stage_benchmark, "run_child", lambda request, seconds: Outcome(failure=failure)
    )
    with pytest.raises(RuntimeError, match="out of memory"):
        ConvStageBenchmark().benchmark__googlenet__inference__stock()
    with pytest.raises(ValueError, match="policy"):
        ConvStageBenchmark().benchmark__googlenet__inference__ours()
    monkeypatch.setenv("CONV_STAGE_BENCHMARK", '{"batchsize": 4}')
    with pytest.raises(TypeError, match="batchsize"):
        ConvStageBenchmark()
