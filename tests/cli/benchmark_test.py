"""`tf-interop benchmark` end to end, on the CPU, with tiny networks and programs."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import branched_models
import msgspec
import pytest
import tensorflow as tf
from benchmark_values import make_block
from command_line import end_of, import_path, invoke, run_process, start_process, wait_for, words_of
from plan_values import PLAN, measured_step
from profile_values import GPU

from tf_interop.benchmark import other_runtimes
from tf_interop.benchmark.child import (
    Outcome,
    Request,
    _failure_of,
    _look_at_plan,
    _measure,
    run_child,
)
from tf_interop.benchmark.other_runtimes import missing_packages
from tf_interop.benchmark.result import (
    Case,
    Failure,
    FailureKind,
    MeasuringOptions,
    Mode,
    PlanSource,
    Precision,
    Variant,
    load_benchmark,
)
from tf_interop.cli import benchmark as command
from tf_interop.measure.device import QUEUES_VARIABLE, has_nvidia_gpu
from tf_interop.planning.types import GraphPlan, Plan, load_plan, save_plan
from tf_interop.runtime.plugin import get_plugin

MODELS = """
import os
import tensorflow as tf

def tiny(image_size=(8, 8)):
    image = tf.keras.Input((*image_size, 3))
    branches = [tf.keras.layers.Conv2D(4, side, padding="same")(image) for side in (1, 3)]
    return tf.keras.Model(image, tf.keras.layers.Concatenate()(branches))

def random(image_size=(8, 8)):
    model = tiny(image_size)
    noise = tf.keras.layers.Lambda(lambda x: x + tf.random.normal(tf.shape(x)))
    return tf.keras.Model(model.input, noise(model.output))

def depthwise(image_size=(8, 8)):
    image = tf.keras.Input((*image_size, 3))
    return tf.keras.Model(image, tf.keras.layers.DepthwiseConv2D(3)(image))

def crashes():
    os.abort()
"""
COMMAND = (
    "benchmark tiny_models:tiny tiny_models:crashes --policy always --variants stock,ours "
    "--repetitions 1 --batch 2 --steps 3 --seconds 0 --warmup-steps 1 --image-size 12 "
    "-o results.json"
)


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    folder = tmp_path_factory.mktemp("benchmark")
    (folder / "tiny_models.py").write_text(MODELS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


@pytest.mark.slow
def test_measures_what_runs_after_it_was_stopped_and_reports_crashes(folder: pathlib.Path) -> None:
    library = str(get_plugin().library.build_info.path)

    def start() -> subprocess.Popen[str]:
        return start_process(*COMMAND.split(), folder=folder, TF_INTEROP_LIBRARY=library)

    stopped = start()
    wait_for(folder / "results.json", stopped)
    stopped.send_signal(signal.SIGTERM)
    ended = end_of(stopped)
    assert ended.returncode == 128 + signal.SIGTERM, ended.stderr
    [result] = load_benchmark(folder / "results.json").results
    assert len(result.blocks) == 1
    run = end_of(start())
    assert run.returncode == 3, run.stderr
    assert "tiny_models:tiny, inference, batch 2, float32, 12x12" in run.stdout
    assert "results.json: 2 of 4 blocks (1 measured now, 1 before), 2 failed" in run.stdout
    assert "round 1" in run.stderr and "round 1" not in run.stdout
    benchmark = load_benchmark(folder / "results.json")
    tiny, crashes = benchmark.by_case.values()
    assert (tiny[0].case.model, tiny[0].case.image_size) == ("tiny_models:tiny", (12, 12))
    for result, stage_count in zip(tiny, (0, 1), strict=True):
        [block] = result.blocks
        assert (block.repetition, block.steps >= 3, block.stage_count) == (0, True, stage_count)
        # The first step optimizes the graph and starts its kernels.
        assert block.first_step_ms > block.first_quartile_ms
        assert 50e6 < block.memory_peak_bytes < 8e9
    crashed, unplanned = (each.failure for each in crashes)
    assert crashed.kind is unplanned.kind is FailureKind.CRASHED
    assert "SIGABRT" in crashed.message and "port.cc" not in crashed.message
    assert unplanned.message.startswith("no plan: ") and "SIGABRT" in unplanned.message


def _request(variant: Variant | None, model: str = "tiny_models:tiny", **others: Any) -> Request:
    case = Case(model, Mode.INFERENCE, 2, Precision.TF32, (12, 12))
    case = dataclasses.replace(case, **others.pop("case", {}))
    return Request(case, variant, options=MeasuringOptions(0, 2, 0.0, 120.0), **others)


@pytest.mark.parametrize(("plan", "queues"), [("plan.json", "32"), (None, None)])
def test_plans_are_measured_with_all_hardware_queues_and_stock_with_cudas_default(
    plan: str | None, queues: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(QUEUES_VARIABLE, "")  # so that it is restored
    monkeypatch.delenv(QUEUES_VARIABLE)

    def load(_case: Case) -> None:
        assert os.environ.get(QUEUES_VARIABLE) == queues
        raise InterruptedError  # the rest is slow

    monkeypatch.setattr("tf_interop.benchmark.child._load", load)
    variant = Variant.OURS if plan else Variant.STOCK
    with pytest.raises(InterruptedError):
        _measure(_request(variant, plan_path=plan), variant)


OF_PLANS = ("ours", "pinning", "concurrency")
CHECKED = [each for each in Variant if each.is_checked and not each.needs_plan]
REQUESTS = {
    **{variant.value: _request(variant) for variant in CHECKED},
    "training with XLA": _request(Variant.XLA, case={"mode": Mode.TRAINING}),
    "SavedModel": _request(Variant.ENABLED, "saved", case={"image_size": None}),
    "function": _request(Variant.ENABLED, "branched_models:function", case={"image_size": None}),
    "random outputs": _request(Variant.ENABLED, "tiny_models:random"),
    "GraphDef": _request(Variant.STOCK, "graph.pb"),
    "function in float32": _request(
        Variant.STOCK,
        "branched_models:function",
        case={"image_size": None, "precision": Precision.BFLOAT16},
    ),
    "bfloat16": _request(Variant.STOCK, case={"precision": Precision.BFLOAT16}),
    "training of a function": _request(
        Variant.STOCK, "branched_models:function", case={"mode": Mode.TRAINING}
    ),
    "needs a GPU": _request(Variant.STOCK, needs_gpu=True),
    "plan of another network": _request(Variant.OURS, plan_path="plan.json"),
    "to plan": _request(None, plan_path="planned.json"),
    **{name: _request(Variant(name), plan_path="planned.json") for name in OF_PLANS},
    "plan to look at": _request(None, source=PlanSource("plan.json")),
    # Counters go on, so this is the last one.
    "depthwise": _request(Variant.XLA_ENABLED, "tiny_models:depthwise"),
}
SEVERAL = """
import sys
from tf_interop.benchmark import child
from tf_interop.runtime.plugin import get_plugin
for path in sys.argv[1:]:
    get_plugin().forget_reports()
    sys.argv[1:] = [path, f"{path} outcome"]
    child.main()
"""


@pytest.fixture(scope="module", name="outcomes")
def fixture_outcomes(folder: pathlib.Path) -> dict[str, Outcome]:
    """The outcomes of `REQUESTS`, in one process, which saves time."""
    save_plan(PLAN, folder / "plan.json")
    graph = branched_models.function.get_concrete_function().graph.as_graph_def()
    (folder / "graph.pb").write_bytes(graph.SerializeToString())
    branched_models.build().export(str(folder / "saved"), verbose=False)
    for name, request in REQUESTS.items():
        (folder / name).write_bytes(msgspec.json.encode(request))
    ended = run_process(
        *("-c", SEVERAL, *REQUESTS), program=(), folder=folder, CUDA_VISIBLE_DEVICES=""
    )
    assert ended.returncode == 0, ended.stderr
    return {
        name: msgspec.json.decode((folder / f"{name} outcome").read_bytes(), type=Outcome)
        for name in REQUESTS
    }


@pytest.mark.parametrize(
    ("request_", "stage_count"),
    [
        *((variant.value, 0) for variant in CHECKED),
        *(("training with XLA", 0), ("SavedModel", 0), ("function", 0), ("bfloat16", 0)),
        *((name, 1) for name in OF_PLANS),
        # Calls of TensorFlow's kernels in compiled functions count as units.
        ("depthwise", 1),
    ],
)
def test_child_measures(outcomes: dict[str, Outcome], request_: str, stage_count: int) -> None:
    variant = REQUESTS[request_].variant
    if missing := missing_packages(variant):
        pytest.skip(f"needs {', '.join(missing)}")
    outcome = outcomes[request_]
    assert outcome.failure is None, outcome
    assert (outcome.block.steps, outcome.block.stage_count) == (2, stage_count)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("random outputs", "The outputs differ from stock TensorFlow's by"),
        ("GraphDef", "'graph.pb' is a GraphDef, which cannot be called"),
        ("function in float32", "computes nothing in bfloat16, because it does not follow Keras'"),
        ("training of a function", "--training needs a Keras model"),
        ("needs a GPU", "GPU"),
        ("plan of another network", "no stages: The plan is for another network"),
    ],
)
def test_child_reports_why_it_cannot_measure(
    outcomes: dict[str, Outcome], request_: str, message: str
) -> None:
    failure = outcomes[request_].failure
    assert (failure.kind, outcomes[request_].block) == (FailureKind.ERROR, None)
    assert message in failure.message


@pytest.mark.parametrize(
    ("case", "plan_of", "refusal", "note"),
    [
        ({"batch_size": 4}, {}, "", "batch size 4: its stages run as planned for 2"),
        ({"mode": Mode.TRAINING}, {"mode": "inference"}, "--training", ""),
    ],
)
def test_child_compares_a_plan_with_the_model(
    folder: pathlib.Path,
    outcomes: dict[str, Outcome],
    tmp_path: pathlib.Path,
    case: dict[str, Any],
    plan_of: dict[str, Any],
    refusal: str,
    note: str,
) -> None:
    assert "for another network" in outcomes["plan to look at"].refusal
    [planned] = load_plan(folder / "planned.json").graphs
    graph = dataclasses.replace(planned, batch_size=2, **plan_of)
    path = str(tmp_path / "plan.json")
    save_plan(Plan((graph,)), path)
    outcome = _look_at_plan(_request(None, case=case).case, path)
    assert (refusal in outcome.refusal, bool(outcome.refusal)) == (True, bool(refusal))
    assert (note in outcome.note, bool(outcome.note)) == (True, bool(note))


PROGRAM = """
import json, os, sys
if "--fail" in sys.argv:
    raise ValueError("the last line")
import branched_models, tensorflow as tf

tf.function(branched_models.build_branches())(tf.ones((2, 8, 8, 3)))
seen = {name: os.environ.get(name) for name in ("PYTHONPATH", "TF_CPP_MIN_LOG_LEVEL")}
print(json.dumps([sys.argv, seen]), file=open("seen.txt", "a"))
"""


def test_compares_a_program_as_it_is_with_the_plugin_on(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    # Options of Python and of the program stay.
    program = (sys.executable, "-X", "utf8", "train.py", "--batch", "8", "--", "-o")
    command = ("benchmark", "--policy", "always", "--repetitions", "1", "-o", "r.json", "--")
    env = {"TF_INTEROP_LIBRARY": str(get_plugin().library.build_info.path)}
    ended = run_process(*command, *program, folder=tmp_path, TF_CPP_MIN_LOG_LEVEL="1", **env)
    assert ended.returncode == 0, ended.stderr
    seen = [json.loads(line) for line in (tmp_path / "seen.txt").read_text().splitlines()]
    path = import_path(tmp_path)
    assert seen == [[list(program[3:]), {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "1"}]] * 2
    assert ": 2 of 2 blocks, 0 failed" in ended.stdout and "whole run" in ended.stdout
    assert "quartiles" not in ended.stdout and "round 1: 1 of 2 done" in ended.stderr
    benchmark = load_benchmark(tmp_path / "r.json")
    stock, ours = benchmark.results
    assert stock.case == Case(shlex.join(program)) and stock.case.is_program
    [[stock_block], [ours_block]] = stock.blocks, ours.blocks
    assert (stock_block.stage_count, bool(ours_block.stage_count)) == (0, True)
    # Importing TensorFlow alone takes that much time and memory.
    assert stock_block.median_ms > 500 and ours_block.memory_peak_bytes > 50e6
    assert benchmark.summarize(ours).speedup is not None


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (PROGRAM, "exit code 1.*ValueError: the last line$"),
        ("import tensorflow", "TensorFlow optimized no graph with a convolution"),
    ],
)
def test_a_program_that_fails_or_gets_no_stage_is_a_failure_with_the_reason(
    program: str, message: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(program)
    case = Case(shlex.join([sys.executable, str(path), "--fail"]))
    failure = run_child(Request(case, Variant.OURS), 120.0).failure
    assert failure.kind is FailureKind.CRASHED
    assert re.search(message, failure.message, re.DOTALL)


def test_a_plan_that_changes_nothing_here_is_refused_for_a_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_INTEROP_HOST_STAGES", "0")
    pathlib.Path("train.py").touch()
    as_stock = GraphPlan("f", (), measured=measured_step(0.5), as_stock=True)
    plans = {
        "empty": (Plan(()), "it leaves every graph as it is"),
        "stock": (Plan((as_stock,)), "it leaves every graph as it is"),
        "stages": (PLAN, "stages run on GPUs"),
    }
    for plan, (content, why) in plans.items():
        save_plan(content, f"{plan}.json")
        command = f"benchmark --plan {plan}.json -o r.json -- {sys.executable} train.py"
        said = words_of(invoke(command, exit_code=1))
        assert f"Error: '{plan}.json' changes nothing: {why}" in said


@pytest.mark.parametrize(
    ("options", "missing", "message"),
    [
        (
            "--variants stock,onnxruntime",
            ("onnxruntime", "tf2onnx"),
            "packages that are not installed. Install them: pip install onnxruntime tf2onnx",
        ),
        ("--variants frozen,tflite --no-inference --training", (), "cannot run any of these cases"),
    ],
)
def test_refuses_variants_that_can_run_nothing_before_it_measures(
    options: str, missing: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_runtimes, "missing_packages", lambda variant: missing)
    said = words_of(invoke(f"benchmark ResNet50 {options} -o r.json", exit_code=2))
    assert message in said
    assert not pathlib.Path("r.json").exists()


@pytest.fixture(name="measured")
def fixture_measured(monkeypatch: pytest.MonkeyPatch) -> list[Variant | None]:
    """The variants that a stand-in for processes has measured."""
    measured: list[Variant | None] = []

    def measure(request: Request, *_: Any, **__: Any) -> Outcome:
        measured.append(request.variant)
        return Outcome(make_block(request.repetition, 1.0))

    monkeypatch.setattr(command, "run_child", measure)
    return measured


@pytest.mark.skipif(has_nvidia_gpu(), reason="is about machines without a GPU")
def test_compares_on_a_cpu_what_makes_sense_there(
    units_on_cpus: None, measured: list[Variant | None]
) -> None:
    invoke("benchmark ResNet50 --repetitions 1 -o r.json")
    assert measured == [Variant.STOCK, Variant.FROZEN, Variant.ENABLED, Variant.XLA]
    save_plan(Plan(()), "p.json")
    invoke("benchmark ResNet50 --repetitions 1 --plan p.json -o r.json")
    assert measured[4:] == [None, Variant.OURS]  # None looks at the plan
    ended = invoke("benchmark ResNet50 --variants stock,pinning --tune 1s -o r.json", exit_code=2)
    assert "got pinning: stages run on GPUs" in words_of(ended)


def test_a_failure_of_an_earlier_command_is_no_failure_of_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = Outcome(failure=Failure(FailureKind.ERROR, "Model not found: 'ResNet5'."))
    measured = Outcome(make_block(0, 1.0))
    for model, outcome, exit_code in ("ResNet5", failed, 3), ("ResNet50", measured, 0):
        monkeypatch.setattr(command, "run_child", lambda *_, _outcome=outcome, **__: _outcome)
        options = "--variants stock --repetitions 1 -o r.json"
        invoke(f"benchmark {model} {options}", exit_code=exit_code)


@pytest.mark.usefixtures("measured")
def test_says_once_what_is_left_out() -> None:
    options = "--variants stock,frozen,tflite --training --batch 1,2 --repetitions 1 -o r.json"
    ended = invoke(f"benchmark ResNet50 VGG16 {options}")
    assert ended.stderr.count("frozen, tflite cannot run some of these cases") == 1
    assert "r.json: 16 of 16 blocks, 0 failed" in words_of(ended)


def test_refuses_other_runtimes_where_stock_runs_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_environment", lambda models: (GPU, {}))
    ended = invoke("benchmark ResNet50 --variants stock,tflite -o r.json", exit_code=2)
    assert "tflite would run on the CPU" in words_of(ended)


def test_out_of_memory_is_its_own_kind_of_failure() -> None:
    error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating " + "x" * 5000)
    failure = _failure_of(error)
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert "OOM when allocating" in failure.message
    assert len(failure.message) < 1000
