"""What a run has measured already, what failed, and what is fastest alone."""

from __future__ import annotations

from collections.abc import Iterable

from tf_interop.algorithm import names_engine
from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.measure.backend import ResolvedAlgorithm
from tf_interop.profile.entries import (
    AlgorithmKey,
    AlgorithmMeasurement,
    Entry,
    EntryKey,
    StageKey,
    StageMeasurement,
    as_with_tf32,
    entry_key,
    fastest_first,
)


class Measurements:
    """What has been measured, and what failed.

    Attributes:
        last_measured: an algorithm that the device can run; None where there is none yet.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        """Starts with entries of before."""
        self.last_measured: AlgorithmMeasurement | None = None
        self._entries: dict[object, Entry] = {}
        self._alone: dict[ConvolutionConfiguration, dict[AlgorithmKey, AlgorithmMeasurement]] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Adds what was measured."""
        key = entry_key(entry)
        self._entries[key] = entry
        if isinstance(entry, AlgorithmMeasurement):
            assert isinstance(key, AlgorithmKey)
            self._alone.setdefault(entry.configuration, {})[key] = entry
            self.last_measured = entry

    def add_name(self, key: EntryKey, entry: Entry) -> None:
        """Has an entry stand for another key, too."""
        self._entries[key] = entry

    def has_algorithm(
        self, configuration: ConvolutionConfiguration, algorithm: str, *, allow_tf32: bool
    ) -> bool:
        """Whether an algorithm was measured, or failed, by this name."""
        if AlgorithmKey(configuration, algorithm, allow_tf32) in self._entries:
            return True
        # An engine rounds or does not, whatever is allowed. Other algorithms round where they may,
        # so one that was measured without TF32 says nothing of how it runs with it.
        if configuration.dtype == "float32" and not names_engine(algorithm):
            return False
        exact = self._entries.get(AlgorithmKey(configuration, algorithm, False))
        return isinstance(exact, AlgorithmMeasurement)

    def find_resolved(
        self,
        configuration: ConvolutionConfiguration,
        resolved: ResolvedAlgorithm,
        *,
        allow_tf32: bool,
    ) -> Entry | None:
        """The measurement of what an algorithm was resolved to, or its failure."""
        # A measurement says whether it rounds, a failure whether it was allowed to.
        for tf32 in (resolved.tf32, allow_tf32):
            entry = self._entries.get(AlgorithmKey(configuration, resolved.algorithm, tf32))
            if entry is not None and (
                tf32 == allow_tf32 or isinstance(entry, AlgorithmMeasurement)
            ):
                return entry
        return None

    def has_stage(self, key: StageKey, sequential_algorithms: tuple[str | None, ...]) -> bool:
        """Whether a stage failed, or was measured beside a sequence with these algorithms."""
        entry = self._entries.get(key)
        if not isinstance(entry, StageMeasurement):
            return entry is not None
        return entry.sequential_algorithms == sequential_algorithms

    def fastest(
        self, configuration: ConvolutionConfiguration, *, allow_tf32: bool
    ) -> tuple[AlgorithmMeasurement, ...]:
        """The measured algorithms, each once, fastest first."""
        measured = fastest_first(self._alone.get(configuration, {}).values())
        return as_with_tf32(measured, allow_tf32=allow_tf32)
