"""`tf-interop profile`: interrupted, continued and finished."""

from __future__ import annotations

import dataclasses
import pathlib
import signal

import pytest
from command_line import end_of, invoke, start_process, wait_for, words_of
from convolution_values import TINY

from tf_interop.measure.core import Backend
from tf_interop.profile.entries import AlgorithmFailure, FailureKind
from tf_interop.profile.file import load_profile
from tf_interop.profile.worklist import (
    ConfigurationList,
    ListedConvolution,
    ListedStage,
    load_configurations,
    save_configurations,
)
from tf_interop.stage import Stage, Step

HOST = "--backend host --repetitions 2"
SLOW = "profile list.json --backend host --repetitions 60 -o profile.json"


def _list(count: int) -> ConfigurationList:
    """Distinct convolutions, and pairs of neighbours."""
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


def test_ctrl_c_ends_it_and_keeps_the_measurements() -> None:
    save_configurations(_list(20), "list.json")
    process = start_process(*SLOW.split())
    wait_for(pathlib.Path("profile.json"), process, 4)
    process.send_signal(signal.SIGINT)
    ended = end_of(process)
    assert ended.returncode == 130, ended.stderr
    assert "Ended because it was stopped. Left: " in ended.stdout
    assert "The same command continues from here." in ended.stdout
    assert 3 <= len(load_profile("profile.json").algorithms) < 40


def test_ends_when_the_device_fails_and_continues_after_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save_configurations(_list(1), "list.json")
    command = f"profile list.json {HOST} -o profile.json"
    failure = AlgorithmFailure(TINY, "eng0", True, FailureKind.FAILED, "no", "test")
    with monkeypatch.context() as patch:
        patch.setattr(Backend, "measure_algorithm", lambda *_: failure)
        assert "Ended because the device failed" in invoke(command, exit_code=3).output
    invoke(command)
    profile = load_profile("profile.json")
    assert profile.algorithms and profile.algorithm_failures


def test_exports_a_list_and_measures_nothing() -> None:
    model = "branched_models:build_branches"
    result = invoke(f"profile {model} --batch 1,4 --export-configurations list.json")
    assert result.stdout == "list.json: 4 convolutions and 2 stages\n"
    listed = load_configurations("list.json").convolutions
    shapes = [each.configuration.image_shape for each in listed]
    assert [shape and shape[0] for shape in shapes] == [1, 1, 4, 4]
    invoke("profile list.json --stages none --export-configurations none.json")
    assert load_configurations("none.json").stages == ()
    for option in ("--stages levels", "--max-pairs 3", "--batch 2", "--for cpu"):
        ended = invoke(f"profile list.json {option} -o profile.json", exit_code=2)
        assert f"already fixes {option.split()[0]}." in words_of(ended)


def test_ends_with_a_summary() -> None:
    save_configurations(_list(3), "list.json")
    command = f"profile list.json {HOST} -o profile.json"
    short = invoke(command)
    assert "Measured: 3 convolutions, with 6 algorithms in all, and " in short.stdout
    assert "Next: tf-interop plan MODEL --profile profile.json -o plan.json" in short.stdout
    assert "stages: 0 of 8 done" in short.stderr
    assert "stages: 8 of 8 done" in short.stderr
    assert "same µs" in invoke("show profile.json").stdout
