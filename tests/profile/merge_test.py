"""Profiles put together and compared."""

from __future__ import annotations

import dataclasses
import json

import pytest
from profile_values import (
    BACKWARD,
    EVERY_KIND_OF_ENTRY,
    GPU,
    LARGE,
    SMALL,
    make_algorithm,
    make_algorithm_failure,
    make_profile,
    make_stage,
    make_stage_failure,
)

from tf_interop.errors import ProfileError
from tf_interop.profile.merge import LatencyChange, diff_profiles, merge_profiles

LATER = dataclasses.replace(GPU, date="2026-11-21", driver="580.1")


def test_merges_what_is_in_either() -> None:
    first = make_profile(make_algorithm(), make_stage((SMALL, None)))
    second = make_profile(make_algorithm(LARGE), make_stage((LARGE, None)))
    merged = merge_profiles([first, second])
    assert merged == make_profile(
        *first.algorithms, *second.algorithms, *first.stages, *second.stages
    )


@pytest.mark.parametrize("later_first", [False, True])
def test_the_profile_of_the_later_day_counts(later_first: bool) -> None:
    old = make_profile(make_algorithm(latency_us=10.0), make_stage_failure((SMALL, None)))
    new = make_profile(
        make_algorithm(latency_us=20.0),
        make_stage((SMALL, None)),
        make_algorithm_failure(BACKWARD),
        device=LATER,
    )
    assert merge_profiles([new, old] if later_first else [old, new]) == new


def test_of_one_day_the_last_one_counts() -> None:
    profiles = [make_profile(make_algorithm(latency_us=latency)) for latency in (10.0, 30.0, 20.0)]
    assert merge_profiles(profiles) == profiles[2]


def test_merging_with_nothing_new_changes_nothing() -> None:
    profile = make_profile(*EVERY_KIND_OF_ENTRY)
    assert merge_profiles([profile]) == profile
    assert merge_profiles([profile, profile]) == profile
    assert merge_profiles([profile, make_profile()]) == profile


def test_keeps_devices_apart_by_name() -> None:
    other = dataclasses.replace(GPU, name="NVIDIA A100", compute_capability="8.0")
    with pytest.raises(ProfileError) as raised:
        merge_profiles([make_profile(), make_profile(device=other)])
    assert "name: expected 'NVIDIA A100', got 'NVIDIA H200'" in str(raised.value)
    assert "compute_capability: expected '8.0', got '9.0'" in str(raised.value)


def test_refuses_to_merge_nothing() -> None:
    with pytest.raises(ProfileError, match="at least one profile"):
        merge_profiles([])


def test_equal_profiles_do_not_differ() -> None:
    profile = make_profile(*EVERY_KIND_OF_ENTRY)
    difference = diff_profiles(profile, profile)
    assert difference.same_count == len(EVERY_KIND_OF_ENTRY)
    assert difference.other_device is None
    assert not difference.only_first
    assert not difference.only_second
    assert not difference.latency_changes
    assert not difference.outcome_changes


def test_tells_entries_of_one_profile_only() -> None:
    both, ours, theirs = make_algorithm(), make_algorithm(LARGE), make_stage((LARGE, "FFT"))
    difference = diff_profiles(make_profile(both, ours), make_profile(both, theirs))
    assert difference.only_first == (ours,)
    assert difference.only_second == (theirs,)
    assert difference.same_count == 1


@pytest.mark.parametrize(
    ("second_us", "differs"),
    [(10.0, False), (11.5, False), (11.51, True), (8.5, False), (8.49, True)],
)
def test_latencies_differ_by_more_than_both_spreads(second_us: float, differs: bool) -> None:
    first = make_algorithm(latency_us=10.0, spread_us=1.0)
    second = make_algorithm(latency_us=second_us, spread_us=0.5)
    difference = diff_profiles(make_profile(first), make_profile(second))
    expected = (LatencyChange(first, second, second_us / 10.0),) if differs else ()
    assert difference.latency_changes == expected
    assert difference.same_count == (not differs)


def test_compares_the_time_of_stages_from_fork_to_join() -> None:
    first = make_stage((SMALL, None), concurrent_us=20.0, spread_us=0.5)
    second = make_stage((SMALL, None), concurrent_us=30.0, spread_us=0.5)
    (change,) = diff_profiles(make_profile(first), make_profile(second)).latency_changes
    assert change.ratio == 1.5


def test_tells_what_failed_in_one_and_not_in_the_other() -> None:
    measured = make_algorithm(algorithm="FFT")
    failed = make_algorithm_failure(algorithm="FFT")
    difference = diff_profiles(make_profile(measured), make_profile(failed))
    (change,) = difference.outcome_changes
    assert (change.first, change.second) == (measured, failed)
    assert difference.same_count == 0


def test_compares_profiles_of_two_devices_and_says_so() -> None:
    other = dataclasses.replace(GPU, cudnn="9.3.0")
    difference = diff_profiles(make_profile(), make_profile(device=other))
    assert difference.other_device == "cudnn: expected '9.10.2', got '9.3.0'"


def test_a_difference_is_plain_json() -> None:
    first = make_profile(make_algorithm(latency_us=10.0), make_stage((SMALL, "FFT")))
    second = make_profile(make_algorithm(latency_us=20.0), make_stage_failure((SMALL, "FFT")))
    plain = json.loads(json.dumps(diff_profiles(first, second).to_json()))
    assert plain["latency_changes"][0]["ratio"] == 2.0
    assert plain["latency_changes"][0]["first"]["configuration"]["filter_shape"] == [1, 1, 16, 32]
    assert plain["outcome_changes"][0]["second"]["kind"] == "failed"
