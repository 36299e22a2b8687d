"""Files of profiles: what is written reads back, what is not legal is refused."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from profile_values import (
    CPU,
    EVERY_KIND_OF_ENTRY,
    GPU,
    KERNEL,
    LARGE,
    MERGED,
    SMALL,
    make_algorithm,
    make_algorithm_failure,
    make_large_profile,
    make_profile,
    make_stage,
)

from tf_interop.errors import ProfileError
from tf_interop.profile.entries import Entry
from tf_interop.profile.file import load_profile, profile_schema, save_profile
from tf_interop.profile.types import Profile

SCHEMA = pathlib.Path(__file__).resolve().parents[2] / "docs" / "schemas" / "profile.schema.json"

STAGE = make_stage((SMALL, "IMPLICIT_PRECOMP_GEMM"), (LARGE, None))
PROFILE = make_profile(*EVERY_KIND_OF_ENTRY)


@pytest.fixture(name="path")
def fixture_path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "profile.json"


@pytest.mark.parametrize("profile", [PROFILE, make_profile(device=CPU)], ids=["full", "empty"])
def test_reads_back_what_it_wrote(path: pathlib.Path, profile: Profile) -> None:
    profile.find_stages([SMALL])
    save_profile(profile, path)
    assert load_profile(path) == profile


def test_holds_once_what_entries_share(path: pathlib.Path) -> None:
    save_profile(PROFILE, path)
    raw = json.loads(path.read_text())
    assert list(raw)[:3] == ["format", "version", "device"]
    assert (raw["format"], raw["version"]) == ("tf_interop.profile", 2)
    shapes = [each["filter_shape"] for each in raw["configurations"]]
    assert shapes == [[1, 1, 16, 32], [5, 5, 16, 32]]
    assert raw["sources"] == ["by hand"]
    assert raw["kernel_names"] == [KERNEL.name]
    assert [each["configuration"] for each in raw["algorithms"]] == [0, 1]
    assert raw["stages"][0]["convolutions"][1] == {"configuration": 1, "algorithm": None}


def test_a_new_measurement_is_a_new_line(path: pathlib.Path) -> None:
    save_profile(make_profile(make_algorithm(algorithm="eng1"), STAGE), path)
    before = path.read_text().splitlines()
    one, two = make_algorithm(algorithm="eng1"), make_algorithm(LARGE, "eng2")
    save_profile(make_profile(one, two, STAGE), path)
    after = path.read_text().splitlines()
    assert len(after) == len(before) + 1
    # One that is new, and one that ends with a comma now.
    assert len(set(after) - set(before)) == 2


def test_equal_profiles_give_equal_bytes(tmp_path: pathlib.Path) -> None:
    reversed_clocks = dict(reversed(GPU.clocks_mhz.items()))
    device = dataclasses.replace(GPU, clocks_mhz=reversed_clocks)
    save_profile(PROFILE, tmp_path / "one.json")
    save_profile(make_profile(*EVERY_KIND_OF_ENTRY, device=device), tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_large_profiles_are_small_and_load_fast(path: pathlib.Path) -> None:
    profile = make_large_profile(5000)
    save_profile(profile, path)
    assert path.stat().st_size < 4e6
    start = time.perf_counter()
    assert load_profile(path) == profile
    # 0.3 s on two cores at 2.6 GHz.
    assert time.perf_counter() - start < 3


def test_refuses_missing_file(path: pathlib.Path) -> None:
    with pytest.raises(ProfileError, match=r"Expected a profile file at .*No such file"):
        load_profile(path)


def test_refuses_half_written_file(path: pathlib.Path) -> None:
    save_profile(PROFILE, path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ProfileError, match=r"half written\. Correct the file, or measure anew\."):
        load_profile(path)


def _kernel(raw: dict[str, Any]) -> dict[str, Any]:
    kernel: dict[str, Any] = raw["algorithms"][0]["kernels"][0]
    return kernel


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        pytest.param(
            lambda raw: raw.update(format="tf_interop.plan"),
            "Expected format 'tf_interop.profile', got 'tf_interop.plan' at `$.format`",
            id="other_format",
        ),
        pytest.param(
            lambda raw: raw.update(version=3),
            "Expected version 2, got 3 at `$.version` (made by a newer release; update this one)",
            id="newer_version",
        ),
        pytest.param(
            lambda raw: raw.update(version=1),
            "Expected version 2, got 1 at `$.version` (made by an older release; this one does not "
            "read it)",
            id="older_version",
        ),
        pytest.param(
            lambda raw: raw["device"].pop("name"),
            "Object missing required field `name` at `$.device`",
            id="no_device_name",
        ),
        pytest.param(
            lambda raw: raw["device"].update(backend="cuda"),
            "Expected one of cudnn, host, got 'cuda' at `$.device.backend`",
            id="unknown_backend",
        ),
        pytest.param(
            lambda raw: raw["device"].update(date="21.11.2026"),
            "at `$.device.date`",
            id="no_date",
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
            lambda raw: raw["configurations"][0].update(stride=[2, 2]),
            "got `stride` at `$.configurations[0]`",
            id="unknown_field",
        ),
        pytest.param(
            lambda raw: raw["configurations"][0].update(strides=[1]),
            "Expected `array` of length >= 2 at `$.configurations[0].strides`",
            id="one_stride",
        ),
        pytest.param(
            lambda raw: raw["configurations"][0].update(strides=[1, 1, 1]),
            "Expected as many dilations as strides, 3, got (1, 1) at "
            "`$.configurations[0].dilations`",
            id="strides_of_a_volume",
        ),
        pytest.param(
            lambda raw: raw["configurations"][0].update(layout="NDHWC"),
            "Expected a layout of 4 dimensions, as the strides have it, got 'NDHWC' at "
            "`$.configurations[0].layout`",
            id="layout_of_a_volume",
        ),
        pytest.param(
            lambda raw: raw["configurations"][0]["image_shape"].append(3),
            "Expected 4 dimensions, as the strides have it, got",
            id="image_of_a_volume",
        ),
        pytest.param(
            lambda raw: raw["configurations"][0].update(kind="backward"),
            "Invalid enum value 'backward' at `$.configurations[0].kind`",
            id="unknown_kind",
        ),
        pytest.param(
            lambda raw: raw["configurations"][1].update(image_shape=[None, 28, 28, 16]),
            "positive, got (None, 28, 28, 16) at `$.configurations[1].image_shape`",
            id="unknown_batch",
        ),
        pytest.param(
            lambda raw: raw["configurations"][1].update(image_shape=[-1, 28, 28, 16]),
            "positive, got (-1, 28, 28, 16) at `$.configurations[1].image_shape`",
            id="negative_batch",
        ),
        pytest.param(
            lambda raw: raw["configurations"][0].update(filter_shape=None),
            "positive, got None at `$.configurations[0].filter_shape`",
            id="unknown_filter",
        ),
        pytest.param(
            lambda raw: raw["algorithms"][1].update(configuration=2),
            "Expected a place in `$.configurations`, which holds 2, got 2 at "
            "`$.algorithms[1].configuration`",
            id="configuration_not_there",
        ),
        pytest.param(
            lambda raw: raw["stages"][0]["convolutions"][1].update(configuration=7),
            "which holds 2, got 7 at `$.stages[0].convolutions[1].configuration`",
            id="configuration_of_a_stage_not_there",
        ),
        pytest.param(
            lambda raw: raw["algorithm_failures"][0].update(source=1),
            "Expected a place in `$.sources`, which holds 1, got 1 at "
            "`$.algorithm_failures[0].source`",
            id="source_not_there",
        ),
        pytest.param(
            lambda raw: _kernel(raw).update(name=1),
            "Expected a place in `$.kernel_names`, which holds 1, got 1 at "
            "`$.algorithms[0].kernels[0].name`",
            id="kernel_name_not_there",
        ),
        pytest.param(
            lambda raw: _kernel(raw).update(time_share=0.9),
            "Expected the time shares of all kernels to add up to 1, got 0.9000 at "
            "`$.algorithms[0].kernels`",
            id="shares_of_part_of_the_time",
        ),
        pytest.param(
            lambda raw: _kernel(raw).update(grid=[1, 0, 1]),
            "Expected `int` >= 1 at `$.algorithms[0].kernels[0].grid[1]`",
            id="empty_grid",
        ),
        pytest.param(
            lambda raw: _kernel(raw).update(alu_utilization=70),
            "Expected `float` <= 1.0 at `$.algorithms[0].kernels[0].alu_utilization`",
            id="percent_for_a_share",
        ),
        pytest.param(
            lambda raw: raw["algorithms"][0].update(algorithm="fastest"),
            "got 'fastest' at `$.algorithms[0].algorithm`",
            id="unknown_algorithm",
        ),
        pytest.param(
            lambda raw: raw["stages"][0]["convolutions"][0].update(algorithm="ALGO_1"),
            "got 'ALGO_1' at `$.stages[0].convolutions[0].algorithm`",
            id="algorithm_of_another_kind",
        ),
        pytest.param(
            lambda raw: raw["stages"][0].update(sequential_algorithms=["GEMM", "ALGO_1"]),
            "got 'ALGO_1' at `$.stages[0].sequential_algorithms[1]`",
            id="sequential_algorithm_of_another_kind",
        ),
        pytest.param(
            lambda raw: raw["stages"][0].update(sequential_algorithms=["GEMM"]),
            "Expected one for each of 2 convolutions, or none at all, got 1 at "
            "`$.stages[0].sequential_algorithms`",
            id="one_sequential_algorithm",
        ),
        pytest.param(
            lambda raw: raw["stages"][0].update(lanes=[0]),
            "Expected a lane for each of 2 convolutions, got 1 at `$.stages[0].lanes`",
            id="convolution_without_lane",
        ),
        pytest.param(
            lambda raw: raw["stages"][0].update(lanes=[1, 0]),
            "Expected lanes numbered 0, 1, 2, … in the order in which they appear, at most 0, got "
            "1 at `$.stages[0].lanes[0]`",
            id="lanes_out_of_order",
        ),
        pytest.param(
            lambda raw: raw["stage_failures"][0].update(lanes=[0, 2]),
            "at most 1, got 2 at `$.stage_failures[0].lanes[1]`",
            id="lane_left_out",
        ),
        pytest.param(
            lambda raw: raw["stages"][0].update(sm_counts=[66, 66, 66]),
            "Expected one for each of 2 lanes, or none at all, got 3 at `$.stages[0].sm_counts`",
            id="more_partitions_than_lanes",
        ),
        pytest.param(
            lambda raw: raw["stages"][0].update(lanes=[0, 0], priorities=[0, -1]),
            "Expected one for each of 1 lanes, or none at all, got 2 at `$.stages[0].priorities`",
            id="more_priorities_than_lanes",
        ),
        pytest.param(
            lambda raw: raw["stages"][0].update(merged=[True]),
            "Expected one for each of 2 lanes, or none at all, got 1 at `$.stages[0].merged`",
            id="merged_for_some_lanes",
        ),
        pytest.param(
            lambda raw: raw["stages"][0].update(merged=[False, True]),
            "Expected convolutions in a merged lane that differ in filters and output channels "
            "alone, two or more, got 1 others at `$.stages[0].merged[1]`",
            id="merged_lane_of_one_convolution",
        ),
        pytest.param(
            lambda raw: raw["stage_failures"][0].update(lanes=[0, 0], merged=[True]),
            "that differ in filters and output channels alone, two or more, got 2 others at "
            "`$.stage_failures[0].merged[0]`",
            id="merged_lane_of_different_filter_sizes",
        ),
        pytest.param(
            lambda raw: raw["algorithms"].append(raw["algorithms"][0]),
            "Expected one entry for each configuration, algorithm and tf32, got that of "
            "`$.algorithms[0]` again at `$.algorithms[2]`",
            id="measured_twice",
        ),
        pytest.param(
            lambda raw: raw["algorithm_failures"][0].update(algorithm="eng4_k2=1"),
            "got that of `$.algorithms[0]` again at `$.algorithm_failures[0]`",
            id="measured_and_failed",
        ),
        pytest.param(
            lambda raw: raw["stages"].append(raw["stages"][0]),
            "Expected one entry for each stage, got that of `$.stages[0]` again at `$.stages[1]`",
            id="stage_measured_twice",
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
    assert f"in profile '{path}'. Correct the file, or measure anew." in str(raised.value)


@pytest.mark.parametrize("figure", [0.0, -1.0, float("inf"), float("nan")])
def test_refuses_to_write_what_is_no_time(path: pathlib.Path, figure: float) -> None:
    with pytest.raises(ProfileError, match=r"at `\$\.stages\[0\]\.concurrent_us`"):
        save_profile(make_profile(make_stage((SMALL, None), concurrent_us=figure)), path)
    assert not path.exists()


@pytest.mark.parametrize("figure", [float("inf"), float("nan")])
def test_refuses_to_write_null_for_what_is_not_finite(path: pathlib.Path, figure: float) -> None:
    busy = dataclasses.replace(KERNEL, alu_utilization=figure)
    for entry, field in [
        (make_algorithm(relative_error=figure), "relative_error"),
        (make_algorithm(kernels=(busy,)), r"kernels\[0\]\.alu_utilization"),
    ]:
        place = rf"Expected a finite figure, got \w+ at `\$\.algorithms\[0\]\.{field}`"
        with pytest.raises(ProfileError, match=place):
            save_profile(make_profile(entry), path)


def test_published_schema_is_the_one_of_this_release() -> None:
    published = SCHEMA.read_text()
    assert published == json.dumps(profile_schema(), indent=2) + "\n", "scripts/write_schemas.py"


def test_files_follow_the_published_schema(path: pathlib.Path) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    validator.check_schema(validator.schema)
    save_profile(PROFILE, path)
    raw = json.loads(path.read_text())
    validator.validate(raw)
    for edit in (
        lambda damaged: damaged.update(version=1),
        lambda damaged: damaged.update(comment="fast"),
        lambda damaged: damaged["algorithms"][0].update(latency_us=0),
        lambda damaged: damaged["stages"][0].update(convolutions=[]),
        lambda damaged: damaged["algorithms"][0]["kernels"][0].pop("grid"),
    ):
        damaged = json.loads(path.read_text())
        edit(damaged)
        assert not validator.is_valid(damaged)


@pytest.mark.parametrize(
    "other",
    [
        make_algorithm(LARGE),
        make_algorithm(algorithm="eng5_k2=1"),
        make_algorithm(tf32=False),
        make_algorithm_failure(tf32=False),
        STAGE,
    ],
)
def test_entries_of_different_keys_stand_side_by_side(other: Entry, path: pathlib.Path) -> None:
    assert len(make_profile(make_algorithm(), other).entries) == 2
    save_profile(make_profile(make_algorithm(), other), path)


def test_reads_back_what_was_merged(path: pathlib.Path) -> None:
    profile = make_profile(*MERGED)
    save_profile(profile, path)
    assert load_profile(path) == profile
    raw = json.loads(path.read_text())
    raw["stages"][0]["convolutions"][0]["algorithm"] = "GEMM"
    path.write_text(json.dumps(raw))
    reason = r"one algorithm in a merged lane, .* got \['GEMM', 'WINOGRAD'\] at `.*merged\[0\]`"
    with pytest.raises(ProfileError, match=reason):
        load_profile(path)
