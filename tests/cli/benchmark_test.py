"""The benchmark end to end on the CPU, in processes as users have them, with tiny networks."""

from __future__ import annotations

import csv
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import jsonschema
import pytest
import tensorflow as tf
from benchmark_values import BENCHMARK
from click.testing import CliRunner
from plan_values import PLAN

from tf_interop.benchmark.child import (
    BlockRequest,
    PlanRequest,
    Request,
    _failure_of,
)
from tf_interop.benchmark.file import benchmark_schema, load_benchmark, save_benchmark
from tf_interop.benchmark.process import run_child
from tf_interop.benchmark.result import (
    Case,
    FailureKind,
    MeasuringOptions,
    MemoryKind,
    Precision,
    Step,
    Variant,
)
from tf_interop.cli.main import cli
from tf_interop.plan.file import save_plan
from tf_interop.runtime.plugin import get_plugin

ROOT = pathlib.Path(__file__).resolve().parents[2]

MODELS = """
import os
import tensorflow as tf

def tiny(image_size=(8, 8)):
    image = tf.keras.Input((*image_size, 3))
    branches = [tf.keras.layers.Conv2D(4, side, padding="same")(image) for side in (1, 3)]
    pooled = tf.keras.layers.GlobalAveragePooling2D()(tf.keras.layers.Concatenate()(branches))
    return tf.keras.Model(image, tf.keras.layers.Dense(2, "softmax")(pooled))

def crashes():
    os.abort()

def function():
    return tf.function(tf.sin, input_signature=[tf.TensorSpec([2])])
"""
OPTIONS = (
    "--policy", "always", "--variants", "stock,ours", "--repetitions", "2", "--batch", "2",
    "--steps", "3", "--seconds", "0", "--warmup-steps", "1", "--image-size", "12",
)  # fmt: skip


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("benchmark")
    (folder / "tiny_models.py").write_text(MODELS)
    return folder


def _start(folder: pathlib.Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tf_interop", "benchmark", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}",
            "TF_INTEROP_LIBRARY": str(get_plugin().library.build_info.path),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module", name="run")
def fixture_run(folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """A run that is stopped after its first block, and gone on with by the same command."""
    command = (
        "tiny_models:tiny", "tiny_models:crashes", *OPTIONS,
        "-o", "results.json", "--csv", "results.csv", "--plot", "results.svg",
    )  # fmt: skip
    stopped = _start(folder, *command)
    deadline = time.monotonic() + 120
    while not (folder / "results.json").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    stopped.send_signal(signal.SIGTERM)
    _, errors = stopped.communicate(timeout=60)
    assert stopped.returncode == 128 + signal.SIGTERM, errors
    [result] = load_benchmark(folder / "results.json").results
    assert len(result.blocks) == 1

    process = _start(folder, *command)
    output, errors = process.communicate(timeout=280)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def test_measures_what_runs_and_says_what_crashed(
    run: subprocess.CompletedProcess[str], folder: pathlib.Path
) -> None:
    assert run.returncode == 3, run.stderr
    results = {
        (result.case.model, result.variant): result
        for result in load_benchmark(folder / "results.json").results
    }
    stock = results["tiny_models:tiny", Variant.STOCK]
    ours = results["tiny_models:tiny", Variant.OURS]
    for result in (stock, ours):
        assert [block.repetition for block in result.blocks] == [0, 1]
        for block in result.blocks:
            assert len(block.step_ms) == 3
            # Optimizing the graph and starting its kernels takes longer than running them.
            assert block.first_step_ms > min(block.step_ms)
            assert block.memory_kind is MemoryKind.PROCESS_RSS
            assert 50e6 < block.memory_peak_bytes < 8e9
            assert block.gpu_utilization is None
            assert block.fallbacks == {}
        assert result.case.image_size == (12, 12)
    # The graph handed over is that of one device and has one stage; stock has none.
    assert [block.stage_count for block in stock.blocks + ours.blocks] == [0, 0, 1, 1]
    assert ours.summary is not None
    assert ours.summary.speedup is not None
    crashed = results["tiny_models:crashes", Variant.STOCK].failure
    assert crashed is not None
    assert crashed.kind is FailureKind.CRASHED
    assert crashed.message.startswith("the process was ended by SIGABRT")
    assert "port.cc" not in crashed.message
    unplanned = results["tiny_models:crashes", Variant.OURS].failure
    assert unplanned is not None
    assert unplanned.message.startswith("no plan: the process was ended by SIGABRT")


def test_files_have_their_schema_and_the_same_figures(
    run: subprocess.CompletedProcess[str], folder: pathlib.Path
) -> None:
    raw = json.loads((folder / "results.json").read_text())
    jsonschema.validate(raw, benchmark_schema())
    with (folder / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["variant"] for row in rows] == [each["variant"] for each in raw["results"]]
    for row, each in zip(rows, raw["results"], strict=True):
        median = "" if each["summary"] is None else str(each["summary"]["median_ms"])
        assert row["median_ms"] == median
    assert "<svg" in (folder / "results.svg").read_text()
    assert "tiny_models:tiny, inference, batch 2, float32, 12x12" in run.stdout
    assert "xla" not in run.stdout
    assert "results.json: 4 of 8 blocks, 2 failed" in run.stdout
    # Progress is not among the results.
    assert "turn 2" in run.stderr
    assert "turn 2" not in run.stdout


def _case(step: Step, precision: Precision, model: str = "tiny_models:tiny") -> Case:
    return Case(model, step, 2, precision, (12, 12))


@pytest.mark.parametrize(
    ("step", "precision", "variant"),
    [
        (Step.TRAINING, Precision.FLOAT32, Variant.PINNING),
        (Step.INFERENCE, Precision.FLOAT16, Variant.CONCURRENCY),
        (Step.TRAINING, Precision.TF32, Variant.XLA),
    ],
)
def test_child_measures_each_kind(
    folder: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    step: Step,
    precision: Precision,
    variant: Variant,
) -> None:
    monkeypatch.syspath_prepend(folder)
    case = _case(step, precision)
    plan = str(tmp_path / "plan.json") if variant.needs_plan else None
    if plan is not None:
        request = PlanRequest(case, plan, None, allow_foreign_profile=False)
        assert run_child(Request(plan=request), 120.0).failure is None
        algorithm_lanes = json.loads(pathlib.Path(plan).read_text())["graphs"][0]["stages"]
        assert max(len(stage["lanes"]) for stage in algorithm_lanes) == 2
    measuring = MeasuringOptions(0, 2, 0.0, 120.0)
    answer = run_child(Request(block=BlockRequest(case, variant, 0, measuring, plan)), 120.0)
    assert answer.failure is None
    assert answer.block is not None
    assert len(answer.block.step_ms) == 2
    assert bool(answer.block.stage_count) == variant.needs_plan


@pytest.mark.parametrize(
    ("case", "needs_gpu", "message"),
    [
        (_case(Step.INFERENCE, Precision.TF32, "tiny_models:function"), False, "a Keras model"),
        (_case(Step.INFERENCE, Precision.TF32), True, "TensorFlow to run on this machine's GPU"),
    ],
)
def test_child_says_what_it_cannot_measure(
    folder: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    case: Case,
    needs_gpu: bool,
    message: str,
) -> None:
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    request = BlockRequest(
        case, Variant.STOCK, 0, MeasuringOptions(0, 1, 0.0, 120.0), None, needs_gpu=needs_gpu
    )
    failure = run_child(Request(block=request), 120.0).failure
    assert failure is not None
    assert failure.kind is FailureKind.ERROR
    assert message in failure.message


def test_child_does_not_take_stock_for_a_plan_of_another_model(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    save_plan(PLAN, tmp_path / "plan.json")
    case = _case(Step.INFERENCE, Precision.TF32)
    request = BlockRequest(
        case, Variant.OURS, 0, MeasuringOptions(0, 1, 0.0, 120.0), str(tmp_path / "plan.json")
    )
    failure = run_child(Request(block=request), 120.0).failure
    assert failure is not None
    assert "Expected stages, got none: PlanError: Expected a plan for this graph" in failure.message


def test_memory_that_is_used_up_is_a_kind_of_its_own() -> None:
    error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating " + "x" * 5000)
    failure = _failure_of(error)
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert "OOM when allocating" in failure.message
    assert len(failure.message) < 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ResNet50"], "Expected a plan for 'ResNet50, inference, batch 1, tf32', got none"),
        (["ResNet50", "--plan", "float16=p.json"], "Expected a plan for 'ResNet50, inference"),
        (["ResNet50", "--plan", "p.json", "--profile", "q.json"], "got several"),
        (["ResNet50", "--plan", "p.json", "--plan", "q.json"], "one plan for each precision"),
        (["ResNet50", "--variants", "stock,fast"], "Expected some of stock, xla, ours"),
        (["ResNet50", "--precision", "half"], "Expected some of float32, tf32, float16"),
        (["ResNet50", "--no-inference"], "Expected --inference or --training"),
        (["ResNet50", "--budget", "soon"], "Expected a time such as"),
    ],
)
def test_refuses_wrong_usage(arguments: list[str], message: str, tmp_path: pathlib.Path) -> None:
    result = CliRunner().invoke(cli, ["benchmark", *arguments, "-o", str(tmp_path / "r.json")])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_refuses_a_plan_that_cannot_be_read_before_it_measures(tmp_path: pathlib.Path) -> None:
    result = CliRunner().invoke(
        cli,
        ["benchmark", "ResNet50", "--plan", "tf32=none.json", "-o", str(tmp_path / "r.json")],
    )
    assert result.exit_code == 1
    assert "Expected a plan file at 'none.json'" in result.output
    assert not (tmp_path / "r.json").exists()


def test_shows_a_file_and_its_schema(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "results.json"
    save_benchmark(BENCHMARK, path)
    shown = CliRunner().invoke(cli, ["benchmark", "show", str(path), "--csv", f"{path}.csv"])
    assert shown.exit_code == 0, shown.output
    assert "2.25 (2.00–2.50)" in shown.stdout
    assert pathlib.Path(f"{path}.csv").read_text().count("\n") == 4
    as_json: Any = json.loads(
        CliRunner().invoke(cli, ["benchmark", "show", str(path), "--json"]).stdout
    )
    assert as_json == json.loads(path.read_text())
    schema = json.loads(CliRunner().invoke(cli, ["benchmark", "schema"]).stdout)
    assert schema == json.loads(json.dumps(benchmark_schema()))


def test_help_has_examples_and_exit_codes() -> None:
    for arguments in (["benchmark"], ["benchmark", "measure"]):
        text = CliRunner().invoke(cli, [*arguments, "--help"]).output
        assert "\n    tf-interop benchmark ResNet50 --profile profile.json" in text
        assert "Exit codes:" in text
