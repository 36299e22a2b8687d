"""The rules for files of configurations."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import msgspec
import pytest
from edits import set_at
from profile_values import LIST, TINY_1X1, TINY_5X5

from tf_interop.convolution import ConvolutionKind
from tf_interop.errors import ProfileError
from tf_interop.profile.worklist import (
    ConfigurationList,
    ListedConvolution,
    ListedStage,
    load_configurations,
    save_configurations,
)
from tf_interop.stage import Lane, Stage, Step

LANES = "stages.0.stage.lanes"


def test_merged_lanes_are_saved_and_checked(tmp_path: pathlib.Path) -> None:
    stage = Stage((Lane((Step(0), Step(0)), merged=True), Lane((Step(1),))))
    listed = dataclasses.replace(LIST, stages=(ListedStage(stage),))
    save_configurations(listed, tmp_path / "list.json")
    assert load_configurations(tmp_path / "list.json") == listed
    other = ListedStage(Stage((Lane((Step(0), Step(1)), merged=True),)))
    with pytest.raises(ProfileError, match=r"merged lane.*\$\.stages\[0\]\.stage\.lanes\[0\]"):
        save_configurations(dataclasses.replace(LIST, stages=(other,)), tmp_path / "other.json")


def test_only_steps_whose_images_are_alike_read_one(path: pathlib.Path) -> None:
    gradient = dataclasses.replace(
        TINY_5X5, op="Conv2DBackpropInput", kind=ConvolutionKind.BACKWARD_INPUT
    )
    for second, images in (
        (TINY_5X5, (0,)),
        (TINY_5X5, (1, 1)),
        (TINY_5X5, (0, 2)),
        (gradient, (0, 0)),
        (dataclasses.replace(TINY_5X5, dtype="float16"), (0, 0)),
    ):
        both = (ListedConvolution(TINY_1X1), ListedConvolution(second))
        stage = ListedStage(Stage.side_by_side((Step(0), Step(1))), images=images)
        with pytest.raises(ProfileError, match=r"\$\.stages\[0\]\.images"):
            save_configurations(ConfigurationList(both, (stage,)), path)
    both = (ListedConvolution(TINY_1X1), ListedConvolution(TINY_5X5))
    save_configurations(ConfigurationList(both, (dataclasses.replace(stage, images=(0, 0)),)), path)


@pytest.mark.parametrize(
    ("place", "value", "at"),
    [
        ("convolutions.1.configuration", TINY_1X1, "$.convolutions[1].configuration"),
        ("convolutions.0.configuration.image_shape", None, "$.convolutions[0]"),
        ("convolutions.0.configuration.strides", (0, 0), "configuration.strides"),
        ("convolutions.0.count", 0, "$.convolutions[0].count"),
        (LANES, [], "$.stages[0].stage.lanes"),
        (f"{LANES}.1.steps.0.operation", 2, "$.stages[0].stage"),
        (f"{LANES}.1.steps.0.operation", -1, "stage.lanes[1].steps[0].operation"),
        (f"{LANES}.1.steps.0.algorithm", "FASTEST", "stage.lanes[1].steps[0].algorithm"),
        (f"{LANES}.1.merged", True, "at lane 1"),
    ],
)
def test_refuses_an_invalid_list(place: str, value: Any, at: str, path: pathlib.Path) -> None:
    raw = msgspec.to_builtins(LIST)
    set_at(raw, place, value)
    path.write_bytes(msgspec.json.encode(raw))
    with pytest.raises(ProfileError) as refusal:
        load_configurations(path)
    assert at in str(refusal.value)
    assert str(path) in str(refusal.value)
