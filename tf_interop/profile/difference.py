"""Two profiles compared."""

from __future__ import annotations

import dataclasses

from tf_interop.profile.entries import (
    AlgorithmMeasurement,
    Entry,
    EntryKey,
    StageMeasurement,
    entry_key,
)
from tf_interop.profile.foreign import why_foreign
from tf_interop.profile.types import Profile

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
        if isinstance(one, Measurement) and isinstance(other, Measurement):
            if abs(one.latency_us - other.latency_us) > one.spread_us + other.spread_us:
                ratio = other.latency_us / one.latency_us
                latency_changes.append(LatencyChange(one, other, ratio))
        elif isinstance(one, Measurement) or isinstance(other, Measurement):
            outcome_changes.append(OutcomeChange(one, other))
    return ProfileDifference(
        other_device=why_foreign(second.device, first.device),
        only_first=tuple(entry for key, entry in ours.items() if key not in theirs),
        only_second=tuple(entry for key, entry in theirs.items() if key not in ours),
        latency_changes=tuple(latency_changes),
        outcome_changes=tuple(outcome_changes),
        same_count=len(common) - len(latency_changes) - len(outcome_changes),
    )


def _by_key(profile: Profile) -> dict[EntryKey, Entry]:
    return {entry_key(entry): entry for entry in profile.entries}
