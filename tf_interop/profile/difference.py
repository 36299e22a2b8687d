"""Two profiles compared."""

from __future__ import annotations

import dataclasses

from tf_interop.profile.entries import AlgorithmMeasurement, Entry, StageMeasurement, entry_key
from tf_interop.profile.types import Profile, why_foreign


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """An entry that two profiles tell differently.

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
        latency_changes: measurements whose latencies are further apart than both spreads together.
        outcome_changes: entries of which one is a measurement and one a failure.
        same_count: entries that are in both and tell the same.
    """

    other_device: str | None
    only_first: tuple[Entry, ...]
    only_second: tuple[Entry, ...]
    latency_changes: tuple[Change, ...]
    outcome_changes: tuple[Change, ...]
    same_count: int


def diff_profiles(first: Profile, second: Profile) -> ProfileDifference:
    """Compares two profiles, of one device or of two."""
    ours, theirs = ({entry_key(each): each for each in of.entries} for of in (first, second))
    latency_changes, outcome_changes = [], []
    common = [Change(entry, theirs[key]) for key, entry in ours.items() if key in theirs]
    for change in common:
        measured = [
            each
            for each in (change.first, change.second)
            if isinstance(each, AlgorithmMeasurement | StageMeasurement)
        ]
        if len(measured) == 1:
            outcome_changes.append(change)
        elif measured:
            one, other = measured
            if abs(one.latency_us - other.latency_us) > one.spread_us + other.spread_us:
                latency_changes.append(change)
    return ProfileDifference(
        other_device=why_foreign(second.device, first.device),
        only_first=tuple(entry for key, entry in ours.items() if key not in theirs),
        only_second=tuple(entry for key, entry in theirs.items() if key not in ours),
        latency_changes=tuple(latency_changes),
        outcome_changes=tuple(outcome_changes),
        same_count=len(common) - len(latency_changes) - len(outcome_changes),
    )
