"""`tf-interop plan`: from a model and a profile to a plan and its explanation."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re

from command_line import invoke, words_of
from profile_values import make_algorithm, make_profile

from tf_interop.planning.types import load_plan
from tf_interop.profile.file import load_profile, save_profile

MODEL = "branched_models:build_branches"
BY_PROFILE = "--profile profile.json -o plan.json"


def save_profile_of_the_model(options: str) -> None:
    """A profile of this CPU with made-up times, because stages may gain nothing here."""
    invoke(f"profile {MODEL} --backend host --repetitions 2 {options} -o profile.json")
    profile = load_profile("profile.json")
    stages = tuple(
        dataclasses.replace(each, latency_us=1.0, sequential_us=10.0, spread_us=0.0)
        for each in profile.stages
    )
    slow = tuple(dataclasses.replace(each, latency_us=20.0) for each in profile.algorithms)
    save_profile(dataclasses.replace(profile, algorithms=slow, stages=stages), "profile.json")


def test_plans_and_explains() -> None:
    save_profile_of_the_model("--batch 1,4")
    command = f"plan {MODEL} --memory 1MB {BY_PROFILE}"
    words = words_of(invoke(f"{command} --batch 1,4,5"))
    graphs = load_plan("plan.json").graphs
    assert [(each.batch_size, len(each.stages)) for each in graphs] == [(1, 1), (4, 1), (5, 0)]
    [stage] = graphs[0].stages
    assert stage.prediction.latency_us == 4.0  # 40 alone; the stage saved nine tenths of that
    assert graphs[0].prediction.memory_budget_bytes == 10**6
    assert "inference 1 2 1 4.0 40.0 10.00 100 %" in words
    assert words.endswith("plan.json: 2 stages")
    assert re.search("inference 5 2 0 – – – incomplete: – – 0 of 2 convolutions", words)
    assert "inference, batch 5: incomplete: 0 of 2 convolutions." in words

    words = words_of(invoke("show plan.json"))
    assert "4.0 ± 0.0 µs measured, against 40.0 µs" in words
    assert "budget 1.0 MB" in words

    summary = json.loads(invoke(f"{command} --batch 1,5 --json").stdout)["graphs"]
    found = [(each["mode"], each["latency_us"]) for each in summary]
    assert found == [("inference", 4.0), ("inference", None)]


def test_refuses_a_profile_of_another_model_batch_size_or_device() -> None:
    save_profile_of_the_model("--stages none")
    said = invoke(f"plan branched_models:build_other {BY_PROFILE}", exit_code=1).stderr
    assert "The profile 'profile.json' has no convolution" in said
    assert "tf-interop profile" in said
    said = invoke(f"plan {MODEL} --batch 4,8 {BY_PROFILE}", exit_code=1).stderr
    assert "has no convolution" in said
    save_profile(make_profile(make_algorithm()), "profile.json")
    for target in ("", "--for 8.0"):
        said = invoke(f"plan {MODEL} {BY_PROFILE} {target}", exit_code=1).stderr
        assert "--allow-foreign-profile" in said
    assert not pathlib.Path("plan.json").exists()


def test_plans_a_training_step_alone() -> None:
    save_profile_of_the_model("--training --no-inference")
    invoke(f"plan {MODEL} --training --no-inference {BY_PROFILE}")
    assert [each.mode for each in load_plan("plan.json").graphs] == ["training"]
