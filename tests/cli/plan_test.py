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
from tf_interop.planning.explain import explain_plan
from tf_interop.planning.file import load_plan, save_plan
from tf_interop.planning.make import make_plan
from tf_interop.planning.types import Plan
from tf_interop.profile.file import load_profile, save_profile

ROOT = pathlib.Path(__file__).resolve().parents[2]

MODEL = "branched_models:build_branches"
BY_PROFILE = ("--profile", "profile.json", "-o", "plan.json")


@pytest.fixture(autouse=True)
def fixture_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *arguments])


def words_of(result: Result) -> str:
    return " ".join(result.output.split())


def save_profile_of_the_model(*options: str, stage_us: float = 1.0) -> None:
    """Measured on this CPU; on it nothing may win, so the stages say what they take."""
    arguments = (
        "profile",
        MODEL,
        "--backend",
        "host",
        "--repetitions",
        "2",
    )
    result = CliRunner().invoke(cli, [*arguments, *options, "-o", "profile.json"])
    assert result.exit_code == 0, result.output
    profile = load_profile("profile.json")
    stages = tuple(
        dataclasses.replace(each, latency_us=stage_us, sequential_us=10.0, spread_us=0.0)
        for each in profile.stages
    )
    slow = tuple(dataclasses.replace(each, latency_us=20.0) for each in profile.algorithms)
    save_profile(dataclasses.replace(profile, algorithms=slow, stages=stages), "profile.json")


def test_from_a_model_and_its_profile_to_a_plan_and_why() -> None:
    save_profile_of_the_model("--batch", "1,4")
    options = (MODEL, "--memory", "1MB", *BY_PROFILE)
    result = plan(*options, "--batch", "1,4,5")
    assert result.exit_code == 0, result.output
    graphs = load_plan("plan.json").graphs
    assert [(each.batch_size, len(each.stages)) for each in graphs] == [(1, 1), (4, 1), (5, 0)]
    [stage] = graphs[0].stages
    assert stage.prediction is not None and graphs[0].prediction is not None
    assert stage.prediction.latency_us == 4.0  # 40 alone, of which the stage saved nine tenths
    assert graphs[0].prediction.memory_budget_bytes == 10**6
    words = words_of(result)
    assert "inference 1 2 1 4.0 40.0 10.00 100 %" in words
    assert words.endswith("plan.json: 2 stages")
    assert re.search("inference 5 2 0 – – – incomplete: – – 0 of 2 convolutions", words)
    assert "inference, batch 5: incomplete: 0 of 2 convolutions." in words
    assert f"lacks batch size 5. Measure: tf-interop profile {MODEL}" in words

    result = plan("explain", "plan.json")
    assert result.exit_code == 0, result.output
    assert "4.0 us measured, may be off by 0.0, against 40.0 us" in words_of(result)
    assert "budget 1.0 MB" in result.output
    assert plan("check", "plan.json").output.endswith("plan.json: legal, for 3 graphs\n")

    summary = json.loads(plan(*options, "--batch", "1,5", "--json").stdout)["graphs"]
    found = [(each["mode"], each["latency_us"]) for each in summary]
    assert found == [("inference", 4.0), ("inference", None)]


def test_refuses_a_profile_of_another_model_or_batch_size() -> None:
    save_profile_of_the_model("--stages", "none")
    result = plan("branched_models:build_other", *BY_PROFILE)
    assert result.exit_code == 1
    assert "got 'profile.json', which holds none" in result.stderr
    assert "inference, batch 1: The profile has convolutions of this batch size" in result.stderr
    command = "tf-interop profile branched_models:build_other --backend host -o profile.json\n"
    assert result.stderr.endswith(command)
    result = plan(MODEL, "--batch", "4,8", *BY_PROFILE)
    assert result.exit_code == 1
    assert "inference, batch 8: The profile lacks batch size 8." in result.stderr
    assert f"profile {MODEL} --batch 4,8 --backend host -o" in result.stderr
    assert not pathlib.Path("plan.json").exists()


def test_says_of_training_that_it_was_measured_in_part() -> None:
    save_profile_of_the_model()
    words = words_of(plan(MODEL, "--training", *BY_PROFILE))
    assert "inference 1 2 1 4.0 40.0 10.00 100 %" in words
    assert "training 1 4 1 4.0 40.0 – incomplete:" in words
    assert "training, batch 1: incomplete: 2 of 4 convolutions." in words
    assert "The profile lacks training (--training)." in words
    assert f"Measure: tf-interop profile {MODEL} --training --backend host" in words
    explained = words_of(plan("explain", "plan.json"))
    assert "4.0 us expected, incomplete: 2 of 4 convolutions, measured; 40.0 us" in explained


def test_says_why_a_plan_has_no_stage() -> None:
    save_profile_of_the_model(stage_us=30.0)
    words = words_of(plan(MODEL, *BY_PROFILE))
    assert "inference, batch 1: no stage: the one measured set does not beat" in words
    assert words.endswith("plan.json: 0 stages")
    assert "no stage: the one measured set" in words_of(plan("check", "plan.json"))


def test_speaks_of_options_and_not_of_python() -> None:
    save_profile(make_profile(make_algorithm()), "profile.json")
    arguments = ("branched_models:function", "--training", "--allow-foreign-profile", *BY_PROFILE)
    result = plan(*arguments)
    assert result.exit_code == 2
    assert "Expected --training with a Keras model" in words_of(result)
    for arguments in ((), ("--for", "8.0")):
        result = plan(MODEL, *BY_PROFILE, *arguments)
        assert result.exit_code == 1
        assert "--allow-foreign-profile" in result.output
        assert "allow_foreign_profile" not in result.output


def test_plans_inference_and_training_like_the_profile_was_made() -> None:
    save_profile_of_the_model("--training", "--stages", "none")
    for options, counts in (((), [2, 4]), (("--no-inference",), [4])):
        result = plan(MODEL, *BY_PROFILE, "--training", *options)
        assert result.exit_code == 0
        graphs = load_plan("plan.json").graphs
        assert [graph.convolution_count for graph in graphs] == counts
        assert all(each.prediction and not each.prediction.unmeasured_count for each in graphs)


def test_needs_no_tensorflow_where_no_model_is_planned(tmp_path: pathlib.Path) -> None:
    problem = paper_problem()
    save_plan(Plan((explain_plan(problem, make_plan(problem)),)), "plan.json")
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for name in ("tensorflow", "keras", "google"):
        (blocked / f"{name}.py").write_text("raise ImportError('blocked')")
    environment = {**os.environ, "PYTHONPATH": f"{blocked}{os.pathsep}{ROOT}"}
    for arguments, words in (
        (("explain", "plan.json"), f"Not {GEMM}, {GEMM} (190.0 us measured"),
        (("check", "plan.json"), "legal, for 1 graphs"),
        (("schema",), "#/$defs/Plan"),
    ):
        command = [sys.executable, "-m", "tf_interop", "plan", *arguments]
        printed = subprocess.check_output(command, env=environment, timeout=60, text=True)
        assert words in printed


def test_compares_the_model_with_every_measured_stage() -> None:
    kernels = {GEMM: GEMM_KERNEL, FFT: FFT_KERNEL}
    profile = make_profile(
        *(
            make_algorithm(configuration, algorithm, latency_us=100.0, kernels=(kernel,))
            for configuration in (SMALL, LARGE)
            for algorithm, kernel in kernels.items()
        ),
        make_algorithm(LARGE, "GEMM", kernels=()),
        make_stage((SMALL, GEMM), (LARGE, GEMM), latency_us=160.0),
        make_stage((SMALL, GEMM), (LARGE, FFT), latency_us=100.0),
        make_stage((SMALL, GEMM), (LARGE, "GEMM"), latency_us=100.0),
        device=dataclasses.replace(GPU, sm_count=60, sm_limits=SM),
    )
    save_profile(profile, "profile.json")
    result = plan("compare-model", "profile.json")
    assert result.exit_code == 0, result.output
    words = words_of(result)
    # Two kernels that each fill the device take twice as long, as far as the model goes.
    assert f"{GEMM} 160.0 200.0 +25 %" in words.replace("float32, ", "")
    assert "2 of 3 measured stages could be modelled" in words
    assert "Too few to correct the model by" in words
    document = json.loads(plan("compare-model", "profile.json", "--json").stdout)
    assert [each["measured_us"] for each in document["compared"]] == [160.0, 100.0]
    assert len(document["compared"][0]["stage"]["lanes"]) == 2


def test_says_why_there_is_nothing_to_compare() -> None:
    for device, why in (
        (GPU, "--trace-kernels"),
        (dataclasses.replace(GPU, sm_limits=None), "no SMs to model"),
    ):
        save_profile(make_profile(make_algorithm(), device=device), "profile.json")
        result = plan("compare-model", "profile.json")
        assert result.exit_code == 1
        assert why in words_of(result)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (["My Net.keras", "--batch", "1,8", "--training", "-o", "p.json"], 2,
         "'--profile'. Make one with: tf-interop profile 'My Net.keras' --batch 1,8 --training"),
        (["M", "--profile", "p.json"], 2, "'-o'"),
        (["M", "--profile", "x", "-o", "p", "--memory", "much"], 2, "8GB"),
        (["M", "--profile", "x", "-o", "p", "--memory", "0"], 2, "8GB"),
        (["M", "--profile", "x", "-o", "p", "--no-inference"], 2, "--training, got neither"),
        (["M", "--profile", "x", "-o", "none/p"], 2, "'none/p'"),
        (["M", "--profile", "x", "-o", "p"], 1, "'x'"),
        (["nothing", "--profile", "empty.json", "-o", "p"], 2, "'nothing'"),
        (["explain", "x"], 1, "'x'"),
        (["check", "planned.txt"], 1, "'planned.txt'"),
        (["compare-model", "x"], 1, "'x'"),
    ],
)  # fmt: skip
def test_says_what_is_wrong(arguments: list[str], exit_code: int, words: str) -> None:
    save_profile(make_profile(), "empty.json")
    pathlib.Path("planned.txt").write_text("none")
    result = plan(*arguments)
    assert result.exit_code == exit_code
    assert words in words_of(result)
    assert not pathlib.Path("p").exists()
