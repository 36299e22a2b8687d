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

from tf_interop.profile.difference import Change, ProfileDifference, diff_profiles
from tf_interop.profile.entries import Entry


def test_equal_profiles_do_not_differ() -> None:
    profile = make_profile(*EVERY_KIND_OF_ENTRY)
    count = len(EVERY_KIND_OF_ENTRY)
    assert diff_profiles(profile, profile) == ProfileDifference(None, (), (), (), (), count)


def test_tells_entries_of_one_profile_only() -> None:
    both, ours, theirs = make_algorithm(), make_algorithm(LARGE), make_stage((LARGE, "FFT"))
    difference = diff_profiles(make_profile(both, ours), make_profile(both, theirs))
    assert difference == ProfileDifference(None, (ours,), (theirs,), (), (), 1)


def stage_in(latency_us: float) -> Entry:
    return make_stage((SMALL, None), latency_us=latency_us, spread_us=0.75)


def algorithm_in(latency_us: float) -> Entry:
    return make_algorithm(latency_us=latency_us, spread_us=0.75)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        *((algorithm_in(10), algorithm_in(us), "") for us in (10.0, 11.5, 8.5)),
        *((algorithm_in(10), algorithm_in(us), "latency_changes") for us in (11.51, 8.49)),
        (stage_in(20), stage_in(30), "latency_changes"),
        (make_algorithm(), make_algorithm_failure(algorithm="eng4_k2=1"), "outcome_changes"),
        (make_algorithm_failure(algorithm="eng4_k2=1"), make_algorithm(), "outcome_changes"),
    ],
)
def test_tells_what_differs_by_more_than_both_spreads(
    first: Entry, second: Entry, expected: str
) -> None:
    difference = diff_profiles(make_profile(first), make_profile(second))
    changes = {expected: (Change(first, second),)} if expected else {"same_count": 1}
    nothing = ProfileDifference(None, (), (), (), (), 0)
    assert difference == dataclasses.replace(nothing, **changes)  # type: ignore[arg-type]


def test_compares_profiles_of_two_devices_and_says_so() -> None:
    other = dataclasses.replace(GPU, cudnn="9.3.0")
    difference = diff_profiles(make_profile(), make_profile(device=other))
    assert difference.other_device is not None
    assert "cudnn" in difference.other_device
