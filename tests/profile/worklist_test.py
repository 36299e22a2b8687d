"""Lists of configurations: what is legal in a file, and several put into one."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import msgspec
import pytest
from configuration_values import LARGE, LIST, SMALL

from tf_interop.errors import ProfileError
from tf_interop.profile.worklist import (
    ConfigurationList,
    ListedConvolution,
    ListedStage,
    merge_lists,
)
from tf_interop.profile.worklist_file import (
    configurations_schema,
    load_configurations,
    save_configurations,
)

SCHEMA = pathlib.Path(__file__).resolve().parents[2] / "docs/schemas/configurations.schema.json"


def test_what_is_saved_is_loaded(tmp_path: pathlib.Path) -> None:
    save_configurations(LIST, tmp_path / "list.json")
    assert load_configurations(tmp_path / "list.json") == LIST


def test_what_is_to_be_merged_is_saved(tmp_path: pathlib.Path) -> None:
    stage = ListedStage((0, 0, 1), (0, 0, 1), merged=(True, False))
    listed = dataclasses.replace(LIST, stages=(stage,))
    save_configurations(listed, tmp_path / "list.json")
    assert load_configurations(tmp_path / "list.json") == listed
    other = dataclasses.replace(stage, convolutions=(0, 1, 0))
    with pytest.raises(ProfileError, match=r"alone, two or more, got 2 others at .*merged\[0\]"):
        save_configurations(dataclasses.replace(LIST, stages=(other,)), tmp_path / "other.json")


def test_published_schema_is_that_of_this_version() -> None:
    assert json.loads(SCHEMA.read_text()) == json.loads(json.dumps(configurations_schema()))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("convolutions", 1, "configuration"), SMALL, "each configuration once"),
        (("convolutions", 0, "configuration", "image_shape"), None, "known shapes"),
        (("convolutions", 0, "count"), 0, r"at `\$.convolutions\[0\].count`"),
        (("stages", 0, "convolutions"), [0, 2], "one of 2 convolutions, got 2"),
        (("stages", 0, "lanes"), [0], "2 lanes, one for each convolution, got 1"),
        (("stages", 0, "lanes"), [1, 0], r"a lane up to 0, got 1 at `\$.stages\[0\].lanes\[0\]`"),
        (("stages", 0, "algorithms"), ["DIRECT"], "none or 2 values, got 1"),
        (("stages", 0, "algorithms"), ["DIRECT", "FASTEST"], "an algorithm that a runner knows"),
        (("stages", 0, "sm_counts"), [8, 8, 8], "none or 2 values, got 3"),
        (("stages", 0, "merged"), [True], r"none or 2 values, got 1 at `\$.stages\[0\].merged`"),
        (("stages", 0, "merged"), [False, True], r"got 1 others at `\$.stages\[0\].merged\[1\]`"),
        (("version",), 2, "made by a newer release"),
        (("stages", 0, "lane"), [0], "Expected only the fields"),
    ],
)
def test_refuses_what_is_not_legal(
    place: tuple[str | int, ...], value: Any, message: str, tmp_path: pathlib.Path
) -> None:
    raw = msgspec.to_builtins(LIST)
    inner = raw
    for key in place[:-1]:
        inner[key] = list(inner[key]) if isinstance(inner[key], tuple) else inner[key]
        inner = inner[key]
    inner[place[-1]] = msgspec.to_builtins(value)
    path = tmp_path / "list.json"
    path.write_bytes(msgspec.json.encode(raw))
    with pytest.raises(ProfileError, match=message) as refusal:
        load_configurations(path)
    assert str(path) in str(refusal.value)


def test_merges_what_is_equal() -> None:
    other = ConfigurationList(
        (ListedConvolution(LARGE, 3, ("b", "c")), ListedConvolution(SMALL, 1, ("c",))),
        (ListedStage((1, 0), (0, 1), origins=("c, level",)), ListedStage((0, 0), (0, 1))),
    )
    merged = merge_lists([LIST, other])
    assert merged == ConfigurationList(
        (ListedConvolution(SMALL, 3, ("a", "c")), ListedConvolution(LARGE, 4, ("a", "b", "c"))),
        (
            ListedStage((0, 1), (0, 1), origins=("a, level", "c, level")),
            ListedStage((1, 1), (0, 1)),
        ),
        made_with={"tensorflow": "2.21.0"},
    )
