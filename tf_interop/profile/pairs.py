"""How often the algorithms that are fastest alone are not those that are fastest together."""

from __future__ import annotations

import dataclasses

from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.profile.entries import StageMeasurement, wins
from tf_interop.profile.types import Profile

_Pair = tuple[frozenset[ConvolutionConfiguration], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class PairCounts:
    """Counts of pairs: two convolutions on lanes of their own that share all SMs alike.

    Attributes:
        pair_count: pairs measured with several combinations of algorithms, one of them of what is
            fastest alone for both.
        other_count: of these, how many are fastest with an algorithm that is not the fastest alone
            for its convolution.
        other_beyond_spread_count: of these, how many are faster than with the algorithms that are
            fastest alone by more than the spread of both measurements.
        winning_count: how many of all pairs beat their sequence by more than the spread.
    """

    pair_count: int
    other_count: int
    other_beyond_spread_count: int
    winning_count: int

    def __str__(self) -> str:
        """One sentence."""
        if not self.pair_count:
            return "No pair was measured with several combinations of algorithms."
        return (
            f"Of {self.pair_count} pairs {self.other_count} are fastest with an algorithm that is "
            f"not the fastest alone ({self.other_beyond_spread_count} by more than the spread); "
            f"{self.winning_count} beat their sequence."
        )


def count_pairs(profile: Profile) -> PairCounts:
    """Compares, for each pair, the fastest combination of algorithms with what is fastest alone."""
    measured: dict[_Pair, list[StageMeasurement]] = {}
    for stage in profile.stages:
        if [len(lane.steps) for lane in stage.stage.lanes] == [1, 1] and not (
            stage.stage.has_lane_options
        ):
            pair = frozenset(stage.stage.operations)
            measured.setdefault((pair, stage.tf32), []).append(stage)
    pairs = others = beyond_spread = winning = 0
    for stages in measured.values():
        alone = [stage for stage in stages if _is_of_fastest_alone(stage, profile)]
        if not alone or len(stages) == 1:
            continue
        fastest = min(stages, key=lambda stage: stage.latency_us)
        fastest_alone = min(alone, key=lambda stage: stage.latency_us)
        pairs += 1
        winning += wins(fastest)
        if not _is_of_fastest_alone(fastest, profile):
            others += 1
            difference = fastest_alone.latency_us - fastest.latency_us
            beyond_spread += difference > fastest.spread_us + fastest_alone.spread_us
    return PairCounts(pairs, others, beyond_spread, winning)


def _is_of_fastest_alone(stage: StageMeasurement, profile: Profile) -> bool:
    for step in stage.stage.steps:
        alone = profile.find_algorithms(step.operation, allow_tf32=stage.tf32)
        if not alone or alone[0].algorithm != step.algorithm:
            return False
    return True
