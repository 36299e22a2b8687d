"""Which convolutions of a graph are worth measuring together."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tf_interop.convolution import ConvolutionConfiguration, ConvolutionNode, multiply_adds
from tf_interop.graph.independence import Independence
from tf_interop.plan.from_profile import lanes_by_merge_key, level_groups
from tf_interop.plan.types import PlannedStage


@dataclasses.dataclass(frozen=True, slots=True)
class StageConfigurations:
    """What is to be measured at the same time.

    Attributes:
        configurations: in launch order.
        lanes: the lane of each, numbered in the order in which they appear.
        algorithms: the pinned algorithm of each; empty where none is pinned.
        sm_counts: the SMs that each lane is to have for itself; empty where lanes share all.
        priorities: the priority of each lane's stream; empty where all are 0.
        merged: of each lane whether its convolutions run as one wider convolution; empty where none
            do. An algorithm pinned for them is one of the wider convolution.
    """

    configurations: tuple[ConvolutionConfiguration, ...]
    lanes: tuple[int, ...]
    algorithms: tuple[str | None, ...] = ()
    sm_counts: tuple[int, ...] = ()
    priorities: tuple[int, ...] = ()
    merged: tuple[bool, ...] = ()


def stages_of_levels(
    convolutions: Sequence[ConvolutionNode], independence: Independence
) -> list[StageConfigurations]:
    """The groups that `group_profiled` looks up, each distinct one once, those of one left out.

    Args:
        convolutions: the convolutions of a graph.
        independence: of the same convolutions, in the same order.

    Returns:
        The groups by depth, a lane for each convolution.
    """
    stages: dict[frozenset[tuple[ConvolutionConfiguration, int]], StageConfigurations] = {}
    for _, group in level_groups(convolutions, independence):
        if len(group) > 1:
            configurations = tuple(node.configuration for node in group)
            # A profile finds a stage by what is in it, in whatever order.
            key = frozenset(collections.Counter(configurations).items())
            stages.setdefault(key, _with_a_lane_for_each(configurations))
    return list(stages.values())


def stages_of_pairs(
    convolutions: Sequence[ConvolutionNode], independence: Independence, *, at_most: int
) -> list[StageConfigurations]:
    """Distinct pairs of configurations that are independent somewhere in the graph.

    Args:
        convolutions: the convolutions of a graph; all their shapes are known.
        independence: of the same convolutions, in the same order.
        at_most: how many to give.

    Returns:
        Those with the most to gain: a pair saves at most the time of its smaller convolution, as
        often as it occurs.
    """
    counts: collections.Counter[tuple[int, int]] = collections.Counter()
    numbers: dict[ConvolutionConfiguration, int] = {}
    kinds = [numbers.setdefault(node.configuration, len(numbers)) for node in convolutions]
    for first, second in _independent_pairs(convolutions, independence):
        low, high = sorted((kinds[first], kinds[second]))
        counts[low, high] += 1
    configurations = list(numbers)
    sizes = [multiply_adds(configuration) for configuration in configurations]

    def gain(pair: tuple[int, int]) -> int:
        return counts[pair] * min(sizes[pair[0]], sizes[pair[1]])

    best = sorted(counts, key=lambda pair: (-gain(pair), pair))[:at_most]
    return [
        _with_a_lane_for_each((configurations[first], configurations[second]))
        for first, second in best
    ]


def stages_of_merges(
    convolutions: Sequence[ConvolutionNode],
    independence: Independence,
    merge_keys: Mapping[str, str],
) -> list[StageConfigurations]:
    """What could run as wider convolutions: by itself, and in one stage with the rest of its level.

    Args:
        convolutions: the convolutions of a graph.
        independence: of the same convolutions, in the same order.
        merge_keys: of those that have one, by name (see `find_merge_keys`).

    Returns:
        For each level first all of a merge key as a stage of one merged lane, then, where the level
        has others, all of it with every such set merged. Each distinct stage once.
    """
    stages: dict[StageConfigurations, None] = {}
    for _, group in level_groups(convolutions, independence):
        by_lane = list(lanes_by_merge_key(group, merge_keys))
        sets = [lane for lane in by_lane if len(lane) > 1]
        for lane in sets:
            stages[_with_lanes([lane])] = None
        if sets and len(by_lane) > 1:
            stages[_with_lanes(by_lane)] = None
    return list(stages)


def stages_of_plan(
    stages: Sequence[PlannedStage], convolutions: Sequence[ConvolutionNode]
) -> list[StageConfigurations]:
    """The stages of a plan, with the algorithms and lane options that it pins.

    Args:
        stages: a plan's stages for this graph.
        convolutions: the convolutions of the graph.
    """
    configuration_of = {node.name: node.configuration for node in convolutions}
    distinct: dict[StageConfigurations, None] = {}
    for stage in stages:
        lanes = [number for number, lane in enumerate(stage.lanes) for _ in lane]
        algorithms = tuple(pinned.algorithm for pinned in stage.convolutions)
        measured = StageConfigurations(
            configurations=tuple(configuration_of[pinned.node] for pinned in stage.convolutions),
            lanes=tuple(lanes),
            algorithms=algorithms if any(algorithms) else (),
            sm_counts=_unless_all_0(options.sm_count for options in stage.lane_options),
            priorities=_unless_all_0(options.priority for options in stage.lane_options),
            merged=_unless_none(options.merged for options in stage.lane_options),
        )
        distinct[measured] = None
    return list(distinct)


def _unless_all_0(values: Iterable[int]) -> tuple[int, ...]:
    each = tuple(values)
    return each if any(each) else ()


def _unless_none(flags: Iterable[bool]) -> tuple[bool, ...]:
    each = tuple(flags)
    return each if any(each) else ()


def _with_lanes(lanes: Sequence[Sequence[ConvolutionNode]]) -> StageConfigurations:
    return StageConfigurations(
        configurations=tuple(node.configuration for lane in lanes for node in lane),
        lanes=tuple(number for number, lane in enumerate(lanes) for _ in lane),
        merged=tuple(len(lane) > 1 for lane in lanes),
    )


def _independent_pairs(
    convolutions: Sequence[ConvolutionNode], independence: Independence
) -> Iterator[tuple[int, int]]:
    """Pairs that could share a stage: independent, on one device, in one region."""
    places: dict[tuple[str, str], int] = {}
    for index, node in enumerate(convolutions):
        key = (node.device, node.region)
        places[key] = places.get(key, 0) | 1 << index
    for second, node in enumerate(convolutions):
        earlier = (1 << second) - 1
        candidates = places[node.device, node.region] & earlier & ~independence.ancestors[second]
        while candidates:
            first = candidates.bit_length() - 1
            candidates ^= 1 << first
            if not independence.ancestors[first] >> second & 1:
                yield first, second


def _with_a_lane_for_each(
    configurations: tuple[ConvolutionConfiguration, ...],
) -> StageConfigurations:
    return StageConfigurations(configurations, tuple(range(len(configurations))))
