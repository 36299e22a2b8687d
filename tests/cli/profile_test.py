"""`tf-interop profile` as users have it: from a model to stages that the pass makes."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import tensorflow as tf
from click.testing import CliRunner, Result
from convolution_values import TINY

import tf_interop
from tf_interop.algorithm import HOST_ALGORITHMS
from tf_interop.cli.main import cli
from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.measure.backend import Backend
from tf_interop.profile.entries import (
    AlgorithmFailure,
    FailureKind,
    entry_key,
)
from tf_interop.profile.file import load_profile
from tf_interop.profile.types import Profile
from tf_interop.profile.worklist import (
    ConfigurationList,
    ListedConvolution,
    ListedStage,
    load_configurations,
    save_configurations,
)
from tf_interop.stage import Stage, Step

ROOT = pathlib.Path(__file__).resolve().parents[2]

MODULE = """
import tensorflow as tf

def build():
    image = tf.keras.Input((8, 8, 3))
    branches = [tf.keras.layers.Conv2D(4, side, padding="same")(image) for side in (3, 5)]
    return tf.keras.Model(image, tf.keras.layers.Concatenate()(branches), name="branches")
"""

# A module of that name that cannot be imported, for the front of the path.
BLOCKER = "raise ImportError('TensorFlow is blocked')"


def _list(count: int) -> ConfigurationList:
    """Distinct convolutions, neighbours of which are pairs."""
    configurations = [
        dataclasses.replace(TINY, filter_shape=(3, 3, 3, filters), output_shape=(1, 8, 8, filters))
        for filters in range(1, count + 1)
    ]
    return ConfigurationList(
        tuple(map(ListedConvolution, configurations)),
        tuple(
            ListedStage(Stage.side_by_side((Step(place), Step(place + 1))))
            for place in range(count - 1)
        ),
    )


@pytest.fixture(autouse=True)
def fixture_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    (tmp_path / "profiled_model.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _profile(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["profile", *arguments])


def _start(folder: pathlib.Path, *arguments: str, path: str = str(ROOT)) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tf_interop", "profile", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait_for_lines(process: subprocess.Popen[str], path: pathlib.Path, lines: int) -> None:
    """Waits until the profile has so many lines."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.001)
    raise AssertionError(f"no {lines} lines in {path}: {process.communicate()}")


@pytest.mark.usefixtures("plugin_as_after_import")
def test_from_a_model_to_stages_that_the_pass_makes(fixture_folder: pathlib.Path) -> None:
    result = _profile(
        "profiled_model:build", "--batch", "2", "--backend", "host", "-o", "profile.json",
        "--repetitions", "2",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    profile = load_profile("profile.json")
    assert len(profile.algorithms) == 6
    assert {each.stage.steps[0].algorithm for each in profile.stages} == set(HOST_ALGORITHMS)

    # On a CPU nothing may win; say that one did.
    stages = tuple(
        dataclasses.replace(each, latency_us=1.0, sequential_us=10.0, spread_us=0.0)
        for each in profile.stages[:1]
    )
    sys.path.insert(0, str(fixture_folder))
    try:
        import profiled_model  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(fixture_folder))
    tf_interop.enable(profile=dataclasses.replace(profile, stages=stages))
    try:
        tf.function(profiled_model.build())(tf.ones((2, 8, 8, 3)))
        [graph] = tf_interop.status().plan.graphs
    finally:
        tf_interop.disable()
    [stage] = graph.stages
    assert [step.algorithm for step in stage.stage.steps] == [
        step.algorithm for step in stages[0].stage.steps
    ]


def test_measures_a_list_where_tensorflow_cannot_be_imported(tmp_path: pathlib.Path) -> None:
    (tmp_path / "blocked" / "tensorflow").mkdir(parents=True)
    (tmp_path / "blocked" / "tensorflow" / "__init__.py").write_text(BLOCKER)
    for name in ("keras", "google", "absl"):
        (tmp_path / "blocked" / f"{name}.py").write_text(BLOCKER)
    save_configurations(_list(2), "list.json")
    path = f"{tmp_path / 'blocked'}{os.pathsep}{ROOT}"
    options = ("--backend", "host", "--repetitions", "2", "-o", "profile.json")
    for arguments in (("list.json", *options), ("show", "profile.json"), ("check", "profile.json")):
        process = _start(tmp_path, *arguments, path=path)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert output
    assert len(load_profile("profile.json").algorithms) == 6

    process = _start(tmp_path, "ResNet50", "-o", "profile.json", path=path)
    error = process.communicate(timeout=60)[1].splitlines()[-1]
    assert error.startswith("Error: Expected to import TensorFlow for 'ResNet50', got")
    assert process.returncode == 1


def test_goes_on_after_it_was_killed(tmp_path: pathlib.Path) -> None:
    save_configurations(_list(8), "list.json")
    command = ("list.json", "--backend", "host", "--repetitions", "60", "-o", "profile.json")
    process = _start(tmp_path, *command)
    _wait_for_lines(process, tmp_path / "profile.json", 6)
    process.kill()
    process.communicate()
    finished = load_profile("profile.json").entries
    assert len(finished) >= 5
    # As if it had been killed while writing.
    with (tmp_path / "profile.json").open("ab") as file:
        file.write(b'{"algorithm":{"configura')

    process = _start(tmp_path, *command)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert f"Going on with {len(finished)} measurements of before." in errors
    resumed = load_profile("profile.json")
    # What was finished is there as it was, and nothing was measured twice.
    by_key = {entry_key(entry): entry for entry in resumed.entries}
    assert all(by_key[entry_key(entry)] == entry for entry in finished)
    assert f"{len(resumed.entries) - len(finished)} measured now, 0 failed" in output

    result = _profile("list.json", "--backend", "host", "--repetitions", "2", "-o", "whole.json")
    assert result.exit_code == 0, result.output
    assert _covered(resumed) == _covered(load_profile("whole.json"))


def _covered(profile: Profile) -> tuple[set[object], list[object]]:
    """Algorithms, and stages apart from their algorithms: those depend on what was fastest."""
    algorithms = {(each.configuration, each.algorithm) for each in profile.algorithms}
    stages = [frozenset(each.stage.operations) for each in profile.stages]
    return algorithms, sorted(stages, key=repr)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl_c", "sigterm"])
def test_a_signal_ends_it_with_what_was_measured(
    number: signal.Signals, tmp_path: pathlib.Path
) -> None:
    save_configurations(_list(20), "list.json")
    process = _start(
        tmp_path, "list.json", "--backend", "host", "--repetitions", "60", "-o", "profile.json"
    )
    _wait_for_lines(process, tmp_path / "profile.json", 4)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert "Ended because it was stopped. Left: " in output
    assert "The same command goes on from here." in output
    assert 3 <= len(load_profile("profile.json").algorithms) < 40


def test_ends_when_the_budget_is_over() -> None:
    save_configurations(_list(8), "list.json")
    result = _profile("list.json", "--backend", "host", "--budget", "0.02s", "-o", "profile.json")
    assert result.exit_code == 0, result.output
    assert "Ended because the time is over. Left: " in result.output
    before = load_profile("profile.json")
    assert 0 < len(before.entries) < 44

    result = _profile("list.json", "--backend", "host", "--repetitions", "2", "-o", "profile.json")
    assert result.exit_code == 0, result.output
    assert "Ended" not in result.output
    after = load_profile("profile.json")
    assert set(before.algorithms) <= set(after.algorithms)
    assert len(after.algorithms) == 24


def test_ends_where_the_device_fails_and_goes_on_behind_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save_configurations(_list(1), "list.json")
    options = ("--backend", "host", "--repetitions", "2", "-o", "profile.json")

    def fail(
        _backend: Backend,
        configuration: ConvolutionConfiguration,
        algorithm: str,
        _options: object,
    ) -> AlgorithmFailure:
        return AlgorithmFailure(configuration, algorithm, True, FailureKind.FAILED, "no", "test")

    with monkeypatch.context() as patch:
        patch.setattr(Backend, "measure_algorithm", fail)
        result = _profile("list.json", *options)
    assert result.exit_code == 3
    assert "Ended because the device failed" in result.output
    result = _profile("list.json", *options)
    assert result.exit_code == 0, result.output
    profile = load_profile("profile.json")
    assert (len(profile.algorithms), len(profile.algorithm_failures)) == (2, 1)


def test_exports_a_list_and_measures_nothing() -> None:
    result = _profile(
        "profiled_model:build", "--batch", "1,4", "--export-configurations", "list.json"
    )
    assert result.exit_code == 0, result.output
    assert result.stdout == "list.json: 4 convolutions and 2 stages\n"
    listed = load_configurations("list.json").convolutions
    shapes = [each.configuration.image_shape for each in listed]
    assert [shape and shape[0] for shape in shapes] == [1, 1, 4, 4]
    result = _profile("list.json", "--stages", "none", "--export-configurations", "none.json")
    assert load_configurations("none.json").stages == ()


def test_merges_compares_and_checks_profiles() -> None:
    for count, name in ((1, "one"), (2, "two")):
        save_configurations(_list(count), "list.json")
        result = _profile("list.json", "--backend", "host", "--repetitions", "2", "-o", name)
        assert result.exit_code == 0, result.output
    result = _profile("merge", "one", "two", "-o", "both")
    assert result.exit_code == 0
    assert "Merged 2 profiles of 3 + 15 entries into 15." in result.stdout
    assert len(load_profile("both").algorithms) == 6
    assert "6 measurements of algorithms" in _profile("check", "both").output
    assert json.loads(_profile("diff", "one", "both", "--json").output)
    assert _profile("diff", "one", "both").exit_code == 0
    pathlib.Path("both").write_text("{")
    result = _profile("check", "both")
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert "'both'" in result.output


def test_prints_the_schema() -> None:
    assert {"Header", "Line"} <= json.loads(_profile("schema").output)["$defs"].keys()


def test_a_model_may_be_named_like_a_command() -> None:
    result = _profile("measure", "schema", "--export-configurations", "list.json")
    assert result.exit_code == 2
    assert "got 'schema'" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ResNet50"], "--export-configurations"),
        (["ResNet5", "-o", "p.json"], "'ResNet50'"),
        (["ResNet50", "-o", "no/p.json"], "'no/p.json'"),
        (["ResNet50", "-o", "p.json", "--batch", "0"], "--batch"),
        (["ResNet50", "-o", "p.json", "--budget", "ten"], "--budget"),
        (["ResNet50", "-o", "p.json", "--stages", "all"], "--stages"),
        (["ResNet50", "-o", "p.json", "--for", "gpu"], "--for"),
        (["ResNet50", "-o", "p.json", "--algorithms", ","], "--algorithms"),
        (["list.json", "-o", "p.json", "--batch", "8"], "--batch"),
        (["list.json", "-o", "p.json", "--stages", "x.json"], "--stages"),
    ],
)
def test_refuses_wrong_usage(arguments: list[str], words: str) -> None:
    result = _profile(*arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_says_how_it_is_used() -> None:
    for command in ([], ["measure"]):
        text = _profile(*command, "--help").output
        assert "\n    tf-interop profile " in text
        assert "Exit codes:" in text


def test_ends_with_what_came_of_it_and_shows_all_where_asked_for() -> None:
    save_configurations(_list(3), "list.json")
    options = ("--backend", "host", "--repetitions", "2", "-o", "profile.json")
    short = _profile("list.json", *options)
    assert short.exit_code == 0, short.output
    assert "Measured: 3 convolutions, with 9 algorithms in all, and " in short.stdout
    assert "Next: tf-interop plan MODEL --profile profile.json -o plan.json" in short.stdout
    assert "same us" not in short.stdout
    assert "stages: 0 of 18 done" in short.stderr
    assert "stages: 18 of 18 done" in short.stderr
    whole = _profile("list.json", *options, "--tables")
    assert "same us" in whole.stdout
    assert "same us" in _profile("show", "profile.json").stdout
