"""Profiles: files, the lookup by a set of configurations, and what counts as a win."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from tf_interop.errors import ProfileError
from tf_interop.know.convolution import ConvolutionConfiguration, ConvolutionKind
from tf_interop.know.profile import (
    MeasuredConvolution,
    Profile,
    ProfiledDevice,
    StageMeasurement,
    wins,
)
from tf_interop.know.profile_file import load_profile, profile_schema, save_profile

SMALL = ConvolutionConfiguration(
    op="Conv2D",
    kind=ConvolutionKind.FORWARD,
    depthwise=False,
    dtype="float32",
    layout="NHWC",
    image_shape=(8, 28, 28, 16),
    filter_shape=(1, 1, 16, 32),
    output_shape=(8, 28, 28, 32),
    strides=(1, 1),
    dilations=(1, 1),
    padding="SAME",
    group_count=1,
)
LARGE = dataclasses.replace(SMALL, filter_shape=(5, 5, 16, 32))
BACKWARD = dataclasses.replace(SMALL, op="Conv2DBackpropInput", kind=ConvolutionKind.BACKWARD_INPUT)


def _measurement(
    *pairs: tuple[ConvolutionConfiguration, str | None],
    concurrent_us: float = 20.0,
    sequential_us: float = 30.0,
    spread_us: float = 1.5,
) -> StageMeasurement:
    return StageMeasurement(
        tuple(itertools.starmap(MeasuredConvolution, pairs)),
        concurrent_us,
        sequential_us,
        spread_us,
        "by hand",
    )


def _profile(*stages: StageMeasurement) -> Profile:
    return Profile(ProfiledDevice("NVIDIA H200", {"cudnn": "9.3.0", "driver": "550.54"}), stages)


PROFILE = _profile(_measurement((SMALL, "IMPLICIT_PRECOMP_GEMM"), (LARGE, None)))


@pytest.fixture(name="path")
def fixture_path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "profile.json"


# Files.


def test_reads_back_what_it_wrote(path: pathlib.Path) -> None:
    PROFILE.find_measurement([SMALL])
    save_profile(PROFILE, path)
    assert load_profile(path) == PROFILE
    raw = json.loads(path.read_text())
    assert set(raw) == {"device", "stages", "format", "version"}
    assert raw["format"] == "tf_interop.profile"
    assert raw["version"] == 1
    assert raw["stages"][0]["convolutions"][0]["configuration"]["kind"] == "forward"


def test_equal_profiles_give_equal_bytes(tmp_path: pathlib.Path) -> None:
    device = ProfiledDevice("NVIDIA H200", dict(reversed(PROFILE.device.software.items())))
    save_profile(PROFILE, tmp_path / "one.json")
    save_profile(Profile(device, PROFILE.stages), tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_refuses_missing_file(path: pathlib.Path) -> None:
    with pytest.raises(ProfileError, match=r"Expected a profile file at .*No such file"):
        load_profile(path)


def test_refuses_half_written_file(path: pathlib.Path) -> None:
    save_profile(PROFILE, path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ProfileError, match=r"half written\. Correct the file, or measure anew\."):
        load_profile(path)


def _first(raw: dict[str, Any]) -> dict[str, Any]:
    first: dict[str, Any] = raw["stages"][0]["convolutions"][0]
    return first


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        pytest.param(
            lambda raw: raw.update(format="tf_interop.plan"),
            "Expected format 'tf_interop.profile', got 'tf_interop.plan' at `$.format`",
            id="other_format",
        ),
        pytest.param(
            lambda raw: raw.update(version=2),
            "Expected version 1, got 2 at `$.version` (made by a newer release; update this one)",
            id="newer_version",
        ),
        pytest.param(
            lambda raw: raw["device"].pop("name"),
            "Object missing required field `name` at `$.device`",
            id="no_device_name",
        ),
        pytest.param(
            lambda raw: raw["stages"][0].update(concurrent_us=0),
            "Expected `float` > 0.0 at `$.stages[0].concurrent_us`",
            id="no_time_at_all",
        ),
        pytest.param(
            lambda raw: raw["stages"][0].update(sequential_us=None),
            "Expected `float`, got `null` at `$.stages[0].sequential_us`",
            id="no_number",
        ),
        pytest.param(
            lambda raw: raw["stages"][0].update(spread_us=-1),
            "Expected `float` >= 0.0 at `$.stages[0].spread_us`",
            id="negative_spread",
        ),
        pytest.param(
            lambda raw: raw["stages"][0].update(convolutions=[]),
            "Expected `array` of length >= 1 at `$.stages[0].convolutions`",
            id="stage_without_convolution",
        ),
        pytest.param(
            lambda raw: _first(raw)["configuration"].update(stride=[2, 2]),
            "got `stride` at `$.stages[0].convolutions[0].configuration`",
            id="unknown_field",
        ),
        pytest.param(
            lambda raw: _first(raw)["configuration"].update(strides=[1]),
            "Expected `array` of length 2, got 1 at "
            "`$.stages[0].convolutions[0].configuration.strides`",
            id="one_stride",
        ),
        pytest.param(
            lambda raw: _first(raw)["configuration"].update(kind="backward"),
            "Invalid enum value 'backward' at `$.stages[0].convolutions[0].configuration.kind`",
            id="unknown_kind",
        ),
        pytest.param(
            lambda raw: _first(raw)["configuration"].update(image_shape=[None, 28, 28, 16]),
            "all dimensions known, got (None, 28, 28, 16) at "
            "`$.stages[0].convolutions[0].configuration.image_shape`",
            id="unknown_batch",
        ),
        pytest.param(
            lambda raw: _first(raw)["configuration"].update(filter_shape=None),
            "all dimensions known, got None at "
            "`$.stages[0].convolutions[0].configuration.filter_shape`",
            id="unknown_filter",
        ),
        pytest.param(
            lambda raw: _first(raw).update(algorithm="fastest"),
            "got 'fastest' at `$.stages[0].convolutions[0].algorithm`",
            id="unknown_algorithm",
        ),
        pytest.param(
            lambda raw: _first(raw).update(algorithm="ALGO_1"),
            "got 'ALGO_1' at `$.stages[0].convolutions[0].algorithm`",
            id="algorithm_of_another_kind",
        ),
    ],
)
def test_refuses_with_place_and_reason(
    path: pathlib.Path, edit: Callable[[dict[str, Any]], object], reason: str
) -> None:
    save_profile(PROFILE, path)
    raw = json.loads(path.read_text())
    edit(raw)
    path.write_text(json.dumps(raw))
    with pytest.raises(ProfileError) as raised:
        load_profile(path)
    assert reason in str(raised.value)
    assert f"in profile '{path}'" in str(raised.value)


@pytest.mark.parametrize("time_us", [0.0, -1.0, float("inf"), float("nan")])
def test_refuses_to_write_what_is_no_time(path: pathlib.Path, time_us: float) -> None:
    with pytest.raises(
        ProfileError, match=r"Expected `float`.*at `\$\.stages\[0\]\.concurrent_us`"
    ):
        save_profile(_profile(_measurement((SMALL, None), concurrent_us=time_us)), path)
    assert not path.exists()


def test_schema_states_the_bounds() -> None:
    measurement = profile_schema()["$defs"]["StageMeasurement"]
    assert measurement["properties"]["concurrent_us"]["exclusiveMinimum"] == 0
    assert measurement["properties"]["spread_us"]["minimum"] == 0
    assert measurement["additionalProperties"] is False


# Lookup.


def test_finds_in_any_order() -> None:
    measurement = _measurement((SMALL, None), (LARGE, None), (SMALL, None))
    profile = _profile(measurement)
    for order in set(itertools.permutations([SMALL, LARGE, SMALL])):
        assert profile.find_measurement(order) is measurement


@pytest.mark.parametrize(
    "configurations",
    [
        [],
        [SMALL],
        [SMALL, LARGE, LARGE],
        [SMALL, SMALL, LARGE],
        [SMALL, BACKWARD],
        [SMALL, dataclasses.replace(LARGE, image_shape=(16, 28, 28, 16))],
        [SMALL, dataclasses.replace(LARGE, image_shape=(None, 28, 28, 16))],
        [SMALL, dataclasses.replace(LARGE, fused_ops=("BiasAdd",))],
    ],
    ids=["none", "fewer", "more", "other_twice", "kind", "batch", "unknown_batch", "fused"],
)
def test_does_not_find_another_set(configurations: list[ConvolutionConfiguration]) -> None:
    assert PROFILE.find_measurement([SMALL, LARGE]) is PROFILE.stages[0]
    assert PROFILE.find_measurement(configurations) is None


def test_finds_the_fastest_of_several() -> None:
    slow = _measurement((SMALL, "GEMM"), (LARGE, "FFT"), concurrent_us=25.0)
    fast = _measurement((LARGE, "WINOGRAD"), (SMALL, "GEMM"), concurrent_us=15.0)
    same = _measurement((LARGE, "DIRECT"), (SMALL, "GEMM"), concurrent_us=15.0)
    assert _profile(slow, fast, same).find_measurement([SMALL, LARGE]) is fast
    assert _profile(fast, same, slow).find_measurement([SMALL, LARGE]) is fast


# Winning.


@pytest.mark.parametrize(
    ("concurrent_us", "sequential_us", "spread_us", "expected"),
    [
        (20.0, 30.0, 1.5, True),
        (20.0, 30.0, 9.5, True),
        (20.0, 30.0, 10.0, False),
        (20.0, 30.0, 11.0, False),
        (30.0, 30.0, 0.0, False),
        (31.0, 30.0, 0.5, False),
    ],
)
def test_wins_only_by_more_than_the_spread(
    concurrent_us: float, sequential_us: float, spread_us: float, expected: bool
) -> None:
    measurement = _measurement(
        (SMALL, None),
        concurrent_us=concurrent_us,
        sequential_us=sequential_us,
        spread_us=spread_us,
    )
    assert wins(measurement) is expected
