"""Profiles compared."""

from __future__ import annotations

import dataclasses

import pytest
from profile_values import (
    EVERY_KIND_OF_ENTRY,
    GPU,
    LARGE,
    SMALL,
    make_algorithm,
    make_algorithm_failure,
    make_profile,
    make_stage,
)

from tf_interop.profile.difference import LatencyChange, diff_profiles


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
    first = make_stage((SMALL, None), latency_us=20.0, spread_us=0.5)
    second = make_stage((SMALL, None), latency_us=30.0, spread_us=0.5)
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
    assert difference.other_device is not None
    assert "cudnn" in difference.other_device
