"""Convolutions of equal depth: those that a stage may hold without looking further.

Depth is the number of convolutions on the longest chain that ends with one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tf_interop.convolution import ConvolutionNode
from tf_interop.graph.independence import Independence


def lanes_by_merge_key(
    group: Sequence[ConvolutionNode], merge_keys: Mapping[str, str]
) -> Iterable[list[ConvolutionNode]]:
    """Convolutions of a level in lanes: those of one merge key in one, every other by itself."""
    lanes: dict[str | int, list[ConvolutionNode]] = {}
    for node in group:
        lanes.setdefault(merge_keys.get(node.name, node.index), []).append(node)
    return lanes.values()


def level_groups(
    convolutions: Sequence[ConvolutionNode], independence: Independence
) -> list[tuple[int, list[ConvolutionNode]]]:
    """Depth and convolutions of each group of equal depth, device and region."""
    groups: dict[tuple[int, str, str], list[ConvolutionNode]] = {}
    for node, depth in zip(convolutions, independence.depths, strict=True):
        groups.setdefault((depth, node.device, node.region), []).append(node)
    # The sort is stable: groups of one depth stay in the order of their first convolution.
    return sorted(
        ((depth, group) for (depth, _, _), group in groups.items()), key=lambda each: each[0]
    )
