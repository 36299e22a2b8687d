"""Which convolutions of a graph are worth measuring together."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tf_interop.convolution import ConvolutionConfiguration, ConvolutionNode, multiply_adds
from tf_interop.graph.independence import Independence
from tf_interop.graph.levels import lanes_by_merge_key, level_groups
from tf_interop.stage import Lane, Stage, Step

ConfigurationStage = Stage[ConvolutionConfiguration]


def stages_of_levels(
    convolutions: Sequence[ConvolutionNode], independence: Independence
) -> list[ConfigurationStage]:
    """The groups that `group_profiled` looks up, each distinct one once, those of one left out.

    Args:
        convolutions: the convolutions of a graph.
        independence: of the same convolutions, in the same order.

    Returns:
        The groups by depth, a lane for each convolution.
    """
    stages: dict[frozenset[tuple[ConvolutionConfiguration, int]], ConfigurationStage] = {}
    for _, group in level_groups(convolutions, independence):
        if len(group) > 1:
            configurations = tuple(node.configuration for node in group)
            # A profile finds a stage by what is in it, in whatever order.
            key = frozenset(collections.Counter(configurations).items())
            stages.setdefault(key, Stage.side_by_side(map(Step, configurations)))
    return list(stages.values())


def stages_of_pairs(
    convolutions: Sequence[ConvolutionNode], independence: Independence, *, at_most: int
) -> list[ConfigurationStage]:
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
        Stage.side_by_side((Step(configurations[first]), Step(configurations[second])))
        for first, second in best
    ]


def stages_of_merges(
    convolutions: Sequence[ConvolutionNode],
    independence: Independence,
    merge_keys: Mapping[str, str],
) -> list[ConfigurationStage]:
    """What could run as wider convolutions: by itself, and in one stage with the rest of its level.

    Args:
        convolutions: the convolutions of a graph.
        independence: of the same convolutions, in the same order.
        merge_keys: of those that have one, by name (see `find_merge_keys`).

    Returns:
        For each level first all of a merge key as a stage of one merged lane, then, where the level
        has others, all of it with every such set merged. Each distinct stage once.
    """
    stages: dict[ConfigurationStage, None] = {}
    for _, group in level_groups(convolutions, independence):
        by_lane = list(lanes_by_merge_key(group, merge_keys))
        sets = [lane for lane in by_lane if len(lane) > 1]
        for lane in sets:
            stages[_with_lanes([lane])] = None
        if sets and len(by_lane) > 1:
            stages[_with_lanes(by_lane)] = None
    return list(stages)


def _with_lanes(lanes: Iterable[Sequence[ConvolutionNode]]) -> ConfigurationStage:
    return Stage(
        tuple(
            Lane(tuple(Step(node.configuration) for node in lane), merged=len(lane) > 1)
            for lane in lanes
        )
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
