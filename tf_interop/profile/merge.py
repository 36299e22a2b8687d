"""Profiles of one device put together, and two profiles compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import msgspec

from tf_interop.errors import ProfileError
from tf_interop.profile.entries import (
    AlgorithmMeasurement,
    Entry,
    EntryKey,
    StageMeasurement,
    entry_key,
)
from tf_interop.profile.foreign import why_foreign
from tf_interop.profile.types import Profile, profile_of

Measurement = AlgorithmMeasurement | StageMeasurement


@dataclasses.dataclass(frozen=True, slots=True)
class LatencyChange:
    """What was measured in both profiles, with latencies further apart than their spreads.

    Attributes:
        first: the measurement in the first profile.
        second: the one in the second.
        ratio: the second latency over the first.
    """

    first: Measurement
    second: Measurement
    ratio: float


@dataclasses.dataclass(frozen=True, slots=True)
class OutcomeChange:
    """What was measured in one profile and failed in the other.

    Attributes:
        first: the entry in the first profile.
        second: the one in the second.
    """

    first: Entry
    second: Entry


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileDifference:
    """How a second profile differs from a first one.

    Attributes:
        other_device: how the second one's device differs, as a sentence; None where it does not.
        only_first: entries that the second one lacks.
        only_second: entries that the first one lacks.
        latency_changes: measurements that differ by more than both spreads together.
        outcome_changes: entries of which one is a measurement and one a failure.
        same_count: entries that are in both and tell the same.
    """

    other_device: str | None
    only_first: tuple[Entry, ...]
    only_second: tuple[Entry, ...]
    latency_changes: tuple[LatencyChange, ...]
    outcome_changes: tuple[OutcomeChange, ...]
    same_count: int

    def to_json(self) -> dict[str, Any]:
        """The same as plain values that `json.dumps` takes."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def merge_profiles(profiles: Iterable[Profile]) -> Profile:
    """Puts profiles of one device and one cuDNN into one.

    Of entries with one key, that of the profile with the later date counts, measurement or failure;
    of profiles of one day the one that comes later. Drivers and clocks may differ: the result says
    those of the latest profile, and its date.

    Args:
        profiles: at least one.

    Raises:
        ProfileError: they are of different devices or cuDNN versions, or there is none.
    """
    # The sort is stable: profiles of one day stay in the order given.
    ordered = sorted(profiles, key=lambda profile: profile.device.date)
    if not ordered:
        raise ProfileError("Expected at least one profile to merge, got none.")
    latest = ordered[-1].device
    for profile in ordered:
        difference = why_foreign(profile.device, latest)
        if difference is not None:
            raise ProfileError(
                f"Expected profiles of one device, got others: {difference}. Keep a profile for "
                "each device and cuDNN version."
            )
    return profile_of(latest, (entry for profile in ordered for entry in profile.entries))


def diff_profiles(first: Profile, second: Profile) -> ProfileDifference:
    """Compares two profiles, of one device or of two.

    Args:
        first: what is compared with.
        second: what is compared.
    """
    ours, theirs = _by_key(first), _by_key(second)
    latency_changes = []
    outcome_changes = []
    common = [(entry, theirs[key]) for key, entry in ours.items() if key in theirs]
    for one, other in common:
        if _is_measurement(one) != _is_measurement(other):
            outcome_changes.append(OutcomeChange(one, other))
        elif isinstance(one, Measurement) and isinstance(other, Measurement):
            one_us, other_us = latency_us(one), latency_us(other)
            if abs(one_us - other_us) > one.spread_us + other.spread_us:
                latency_changes.append(LatencyChange(one, other, other_us / one_us))
    return ProfileDifference(
        other_device=why_foreign(second.device, first.device),
        only_first=tuple(entry for key, entry in ours.items() if key not in theirs),
        only_second=tuple(entry for key, entry in theirs.items() if key not in ours),
        latency_changes=tuple(latency_changes),
        outcome_changes=tuple(outcome_changes),
        same_count=len(common) - len(latency_changes) - len(outcome_changes),
    )


def latency_us(measurement: Measurement) -> float:
    """The time of an algorithm, or of a stage from fork to join."""
    if isinstance(measurement, StageMeasurement):
        return measurement.concurrent_us
    return measurement.latency_us


def _by_key(profile: Profile) -> dict[EntryKey, Entry]:
    return {entry_key(entry): entry for entry in profile.entries}


def _is_measurement(entry: Entry) -> bool:
    return isinstance(entry, (AlgorithmMeasurement, StageMeasurement))
