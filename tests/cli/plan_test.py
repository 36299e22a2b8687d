"""`tf-interop plan` as users have it: from a model and a profile to a plan, and why."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result
from paper_problem import FFT, FFT_KERNEL, GEMM, GEMM_KERNEL, SM, paper_problem
from profile_values import GPU, LARGE, SMALL, make_algorithm, make_profile, make_stage

from tf_interop.cli.main import cli
from tf_interop.plan.explain import explain_plan
from tf_interop.plan.file import load_plan, save_plan
from tf_interop.plan.make import make_plan
from tf_interop.plan.types import Plan
from tf_interop.profile.file import load_profile, save_profile

ROOT = pathlib.Path(__file__).resolve().parents[2]

MODULE = """
import tensorflow as tf

def build():
    image = tf.keras.Input((8, 8, 3))
    branches = [
        tf.keras.layers.Conv2D(4, side, padding="same", name=f"branch_{side}")(image)
        for side in (3, 5)
    ]
    return tf.keras.Model(image, tf.keras.layers.Concatenate()(branches), name="branches")

def build_other():
    image = tf.keras.Input((8, 8, 3))
    return tf.keras.Model(image, tf.keras.layers.Conv2D(4, 7, name="seven")(image), name="other")

@tf.function(input_signature=[tf.TensorSpec((None, 8, 8, 3))])
def function(image):
    return tf.nn.conv2d(image, tf.ones((3, 3, 3, 4)), 1, "SAME")
"""


@pytest.fixture(autouse=True)
def fixture_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planned_model.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)


def _plan(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *arguments])


def _words(result: Result) -> str:
    return " ".join(result.output.split())


def _save_profile_of_the_model(*options: str) -> None:
    """Measured on this CPU; on it nothing may win, so the stages say that they do."""
    arguments = ("profile", "planned_model:build", "--backend", "host", "--repetitions", "2")
    result = CliRunner().invoke(cli, [*arguments, *options, "-o", "profile.json"])
    assert result.exit_code == 0, result.output
    profile = load_profile("profile.json")
    stages = tuple(
        dataclasses.replace(each, concurrent_us=1.0, sequential_us=10.0, spread_us=0.0)
        for each in profile.stages
    )
    slow = tuple(dataclasses.replace(each, latency_us=20.0) for each in profile.algorithms)
    save_profile(dataclasses.replace(profile, algorithms=slow, stages=stages), "profile.json")


def _save_paper_plan() -> None:
    problem = paper_problem()
    save_plan(Plan((explain_plan(problem, make_plan(problem)),)), "plan.json")


def test_from_a_model_and_its_profile_to_a_plan_and_why(tmp_path: pathlib.Path) -> None:
    _save_profile_of_the_model("--batch", "1,4")
    result = _plan(
        "planned_model:build", "--profile", "profile.json", "--batch", "1,4,5",
        "--memory", "1MB", "-o", "plan.json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    plan = load_plan("plan.json")
    assert [(graph.batch_size, len(graph.stages)) for graph in plan.graphs] == [
        (1, 1), (4, 1), (5, 0)
    ]  # fmt: skip
    [stage] = plan.graphs[0].stages
    assert stage.prediction is not None
    assert stage.prediction.latency_us == 4.0  # 40 alone, of which the stage saved nine tenths
    assert plan.graphs[0].prediction is not None
    assert plan.graphs[0].prediction.memory_budget_bytes == 10**6
    words = _words(result)
    assert "inference 1 2 1 4.0 40.0 10.00 100 %" in words
    assert words.endswith("plan.json: 2 stages")

    assert re.search("inference 5 2 0 – – – incomplete: – – 0 of 2 convolutions", words)
    assert "inference, batch 5: incomplete: 0 of 2 convolutions." in words
    assert (
        "The profile lacks batch size 5. Measure: tf-interop profile planned_model:build" in words
    )
    assert [each["latency_us"] for each in json.loads(_make_json())["graphs"]] == [4.0, None]

    result = _plan("explain", "plan.json")
    assert result.exit_code == 0, result.output
    assert "4.0 us measured, may be off by 0.0, against 40.0 us one after another" in _words(result)
    assert "budget 1.0 MB" in result.output

    result = _plan("check", "plan.json")
    assert result.exit_code == 0, result.output
    assert result.output.endswith("plan.json: legal, for 3 graphs\n")


def _make_json() -> str:
    options = ("--profile", "profile.json", "--batch", "1,5", "-o", "other.json", "--json")
    return _plan("planned_model:build", *options).stdout


def test_refuses_a_profile_of_another_model_or_batch_size() -> None:
    _save_profile_of_the_model("--stages", "none")
    options = ("--profile", "profile.json", "-o", "plan.json")
    result = _plan("planned_model:build_other", *options)
    assert result.exit_code == 1
    assert result.stderr.endswith(
        "Error: Expected a profile of 'planned_model:build_other', got 'profile.json', which holds "
        "none of its convolutions. The profile has 2 convolutions, batch size 1, none of a "
        "training step's backward half.\n"
        "inference, batch 1: The profile has convolutions of this batch size, so it is of another "
        "model, image size or dtype.\n"
        "Measure: tf-interop profile planned_model:build_other --backend host -o profile.json\n"
    )
    result = _plan("planned_model:build", "--batch", "4,8", *options)
    assert result.exit_code == 1
    assert "inference, batch 8: The profile lacks batch size 8." in result.stderr
    assert "profile planned_model:build --batch 4,8 --backend host -o" in result.stderr
    assert not pathlib.Path("plan.json").exists()


def test_says_of_a_training_step_that_it_was_measured_in_part() -> None:
    _save_profile_of_the_model()
    options = ("--profile", "profile.json", "-o", "plan.json")
    words = _words(_plan("planned_model:build", "--training", *options))
    assert "inference 1 2 1 4.0 40.0 10.00 100 %" in words
    assert "training step 1 4 1 4.0 40.0 – incomplete:" in words
    assert "training step, batch 1: incomplete: 2 of 4 convolutions. What is not" in words
    assert "The profile lacks the training step (--training)." in words
    assert "lacks batch" not in words
    assert "Measure: tf-interop profile planned_model:build --training --backend host" in words
    explained = _words(_plan("explain", "plan.json"))
    assert "4.0 us expected, incomplete: 2 of 4 convolutions, measured; 40.0 us" in explained


def test_says_why_a_plan_has_no_stage() -> None:
    _save_profile_of_the_model()
    profile = load_profile("profile.json")
    slow = tuple(dataclasses.replace(each, concurrent_us=30.0) for each in profile.stages)
    save_profile(dataclasses.replace(profile, stages=slow), "profile.json")
    result = _plan("planned_model:build", "--profile", "profile.json", "-o", "plan.json")
    why = "no stage: the one measured set does not beat its convolutions one after another by more"
    assert f"inference, batch 1: {why} than the spread plan.json: 0 stages" in _words(result)
    assert why in _words(_plan("check", "plan.json"))


def test_speaks_of_options_and_not_of_python() -> None:
    save_profile(make_profile(make_algorithm()), "profile.json")
    options = ("--profile", "profile.json", "-o", "plan.json")
    result = _plan("planned_model:function", "--training", "--allow-foreign-profile", *options)
    assert result.exit_code == 2
    assert "Expected --training with a Keras model, got 'planned_model:function'" in _words(result)
    for arguments in ((), ("--for", "8.0")):
        result = _plan("planned_model:build", *options, *arguments)
        assert result.exit_code == 1
        assert "or pass --allow-foreign-profile to go by this one" in _words(result)
        assert "allow_foreign_profile" not in result.output


def test_says_how_to_make_the_profile_that_is_missing() -> None:
    result = _plan("My Net.keras", "--batch", "1,8", "--training", "-o", "plan.json")
    assert result.exit_code == 2
    assert (
        "Missing option '--profile'. Make one with: tf-interop profile 'My Net.keras' --batch 1,8 "
        "--training -o profile.json"
    ) in _words(result)


def test_plans_inference_and_training_like_the_profile_was_made() -> None:
    _save_profile_of_the_model("--training", "--stages", "none")
    options = ("--profile", "profile.json", "-o", "plan.json")
    assert _plan("planned_model:build", *options, "--training").exit_code == 0
    both = load_plan("plan.json").graphs
    assert [graph.convolution_count for graph in both] == [2, 4]
    assert all(graph.prediction and not graph.prediction.unmeasured_count for graph in both)
    assert _plan("planned_model:build", *options, "--training", "--no-inference").exit_code == 0
    assert [graph.convolution_count for graph in load_plan("plan.json").graphs] == [4]


def test_needs_no_tensorflow_where_no_model_is_planned(tmp_path: pathlib.Path) -> None:
    _save_paper_plan()
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for name in ("tensorflow", "keras", "google"):
        (blocked / f"{name}.py").write_text("raise ImportError('blocked')")
    environment = {**os.environ, "PYTHONPATH": f"{blocked}{os.pathsep}{ROOT}"}
    for arguments in (("explain", "plan.json"), ("check", "plan.json"), ("schema",)):
        subprocess.run(
            [sys.executable, "-m", "tf_interop", "plan", *arguments],
            env=environment,
            check=True,
            capture_output=True,
            timeout=60,
        )


def test_explains_the_example_of_the_paper() -> None:
    _save_paper_plan()
    words = _words(_plan("explain", "plan.json"))
    assert f"Not {GEMM}, {GEMM} (190.0 us measured" in words
    assert "184 % of the registers (chosen: 130 %), 140 % of the ALU time (chosen: 100 %)" in words
    assert "lane 0 most of the registers (92 %), lane 1 most of the shared memory (75 %)" in words
    assert "waits for memory in 15 % of its stalls" in words


def test_compares_the_model_with_every_measured_stage() -> None:
    kernels = {GEMM: GEMM_KERNEL, FFT: FFT_KERNEL}
    profile = make_profile(
        *(
            make_algorithm(configuration, algorithm, latency_us=100.0, kernels=(kernel,))
            for configuration in (SMALL, LARGE)
            for algorithm, kernel in kernels.items()
        ),
        make_algorithm(LARGE, "GEMM", kernels=()),
        make_stage((SMALL, GEMM), (LARGE, GEMM), concurrent_us=160.0),
        make_stage((SMALL, GEMM), (LARGE, FFT), concurrent_us=100.0),
        make_stage((SMALL, GEMM), (LARGE, "GEMM"), concurrent_us=100.0),
        device=dataclasses.replace(GPU, sm_count=60, sm_limits=SM),
    )
    save_profile(profile, "profile.json")
    result = _plan("compare-model", "profile.json")
    assert result.exit_code == 0, result.output
    words = _words(result)
    # Two kernels that each fill the device take twice as long, as far as the model goes.
    assert f"{GEMM} 160.0 200.0 +25 %" in words.replace("float32, ", "")
    assert "2 of 3 measured stages could be modelled" in words
    assert "Too few to correct the model by" in words


def test_says_why_there_is_nothing_to_compare() -> None:
    save_profile(make_profile(make_algorithm()), "profile.json")
    result = _plan("compare-model", "profile.json")
    assert result.exit_code == 1
    assert "got 0 stages, none of them so. Measure with --stages" in _words(result)
    profile = make_profile(device=dataclasses.replace(GPU, sm_limits=None))
    save_profile(profile, "profile.json")
    assert "which has no SMs to model" in _words(_plan("compare-model", "profile.json"))


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["M", "-o", "p.json"], 2, "Missing option '--profile'"),
        (["M", "--profile", "p.json"], 2, "Missing option '-o'"),
        (["M", "--profile", "x", "-o", "p", "--memory", "much"], 2, "Expected a size such as 8GB"),
        (["M", "--profile", "x", "-o", "p", "--memory", "0"], 2, "Expected a size such as 8GB"),
        (["M", "--profile", "x", "-o", "p", "--no-inference"], 2, "or --training, got neither"),
        (["M", "--profile", "x", "-o", "none/p"], 2, "Expected a folder that exists, got 'none/p'"),
        (["M", "--profile", "x", "-o", "p"], 1, "Expected a profile file at 'x'"),
        (["explain", "x"], 1, "Expected a plan file at 'x'"),
        (["check", "planned_model.py"], 1, "Expected JSON in plan 'planned_model.py'"),
        (["compare-model", "x"], 1, "Expected a profile file at 'x'"),
    ],
)
def test_says_what_is_wrong(arguments: list[str], exit_code: int, message: str) -> None:
    result = _plan(*arguments)
    assert result.exit_code == exit_code
    assert message in _words(result)


def test_refuses_what_is_no_model() -> None:
    save_profile(make_profile(), "profile.json")
    result = _plan("nothing", "--profile", "profile.json", "-o", "plan.json")
    assert result.exit_code == 2
    assert "got 'nothing'" in result.output
    assert not pathlib.Path("plan.json").exists()


def test_prints_the_schema_and_examples() -> None:
    assert json.loads(_plan("schema").output)["$ref"] == "#/$defs/Plan"
    for arguments in (("--help",), ("make", "--help")):
        help_text = _plan(*arguments).output
        assert "Examples:" in help_text
        assert "Exit codes:" in help_text
