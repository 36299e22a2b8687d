"""Finds which convolutions depend on each other, and so which may share a stage or a lane.

Two convolutions are independent if neither is an ancestor of the other, through tensors or control
dependencies. Back edges of loops do not count: they carry values of the previous iteration.

- Convolutions of equal *depth* may share a stage. A convolution's depth is the number of
  convolutions on the longest chain that ends with it.
- Convolutions with the same *merge key* read one image, and could run as one wider convolution.
- A convolution may *follow* another in its lane if it reads it and no other path connects the two:

      a --> b            b may follow a.

      a ------> b        b may not: one op for a and b would wait for Pool, and Pool for that op.
      a -> Pool -> b
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence

from tf_interop.convolution import ConvolutionNode, merge_form
from tf_interop.graph.time_limit import check_time_limit
from tf_interop.graph.view import GraphView


class NodeIndependence:
    """Ancestors of given nodes of a graph among the given nodes, as bit sets.

    Bit `i` of a set is given node `i`. Time and memory are linear in the nodes of the graph if a
    set counts as one word (134 bytes for the 1,067 convolutions of a NASNetMobile training step).

    Attributes:
        ancestors: for each given node, the given nodes that it depends on.
        depths: for each given node, the length of the longest chain of given nodes that ends there.
    """

    def __init__(self, view: GraphView, indices: Sequence[int]) -> None:
        """Finds the ancestors; raises GraphError if the graph has a cycle."""
        position_of = {index: position for position, index in enumerate(indices)}
        ancestors = [0] * len(indices)
        depths = [0] * len(indices)
        # For each node, the nodes of `indices` that it depends on or is, and their longest chain.
        reaching = [0] * len(view)
        chains = [0] * len(view)
        for index in view.topological_order():
            reached, chain = reaching[index], chains[index]
            position = position_of.get(index)
            if position is not None:
                check_time_limit()
                ancestors[position] = reached
                reached |= 1 << position
                chain += 1
                depths[position] = chain
            for reader in view.readers[index]:
                reaching[reader] |= reached
                if chains[reader] < chain:
                    chains[reader] = chain
            reaching[index] = 0  # its readers have the set; keeping all takes quadratic memory
        self.ancestors = tuple(ancestors)
        self.depths = tuple(depths)

    def direct_predecessors(self, chosen: Sequence[int]) -> list[tuple[int, ...]]:
        """For each chosen node, its nearest ancestors among the chosen, by place in `chosen`.

        Dependencies through nodes that are not chosen count. `chosen` has positions in a possible
        running order. The results ascend.
        """
        place_of = {position: place for place, position in enumerate(chosen)}
        ancestors: list[int] = []
        direct: list[tuple[int, ...]] = []
        for position in chosen:
            reaching = 0
            found = self.ancestors[position]
            while found:
                lowest = found & -found
                found ^= lowest
                place = place_of.get(lowest.bit_length() - 1)
                if place is not None:
                    reaching |= 1 << place
            ancestors.append(reaching)
            # The last of a set in running order is an ancestor of no other in it.
            nearest = []
            while reaching:
                last = reaching.bit_length() - 1
                nearest.append(last)
                reaching &= ~(ancestors[last] | 1 << last)
            direct.append(tuple(reversed(nearest)))
        return direct

    @property
    def independent_pair_count(self) -> int:
        """How many pairs of nodes are independent."""
        count = len(self.ancestors)
        dependent = sum(ancestors.bit_count() for ancestors in self.ancestors)
        return count * (count - 1) // 2 - dependent


class Independence(NodeIndependence):
    """Independence of the convolutions of a graph, by their position."""

    def __init__(self, view: GraphView, convolutions: Sequence[ConvolutionNode]) -> None:
        """Finds the ancestors; raises GraphError if the graph has a cycle."""
        super().__init__(view, [node.index for node in convolutions])


def lanes_by_merge_key(
    group: Sequence[ConvolutionNode], merge_keys: Mapping[str, str]
) -> Iterable[list[ConvolutionNode]]:
    """Puts a level's convolutions into lanes: those with one merge key together, others alone."""
    lanes: dict[str | int, list[ConvolutionNode]] = {}
    for node in group:
        lanes.setdefault(merge_keys.get(node.name, node.index), []).append(node)
    return lanes.values()


def level_groups(
    convolutions: Sequence[ConvolutionNode], independence: Independence
) -> list[tuple[int, list[ConvolutionNode]]]:
    """Groups convolutions of equal depth, device and region; returns the depth of each group."""
    groups: dict[tuple[int, str, str], list[ConvolutionNode]] = {}
    for node, depth in zip(convolutions, independence.depths, strict=True):
        groups.setdefault((depth, node.device, node.region), []).append(node)
    # The sort is stable: groups of one depth keep the order of their first convolutions.
    return sorted(
        ((depth, group) for (depth, _, _), group in groups.items()), key=lambda each: each[0]
    )


def find_follows(
    view: GraphView, convolutions: Sequence[ConvolutionNode]
) -> dict[str, tuple[str, ...]]:
    """For each convolution, the ones that it may follow in a lane, by name; no empty entries."""
    name_of = {node.index: node.name for node in convolutions}
    read = {
        node.index: tuple(
            dict.fromkeys(source for source, _ in view.fanins[node.index] if source in name_of)
        )
        for node in convolutions
    }
    sources = {index: set(view.sources(index)) for index, chosen in read.items() if chosen}
    indices = sorted({index for each in sources.values() for index in each})
    position_of = {index: position for position, index in enumerate(indices)}
    ancestors = NodeIndependence(view, indices).ancestors
    follows = {}
    for index, its_sources in sources.items():
        before_sources = 0
        for source in its_sources:
            before_sources |= ancestors[position_of[source]]
        directly = [
            name_of[each] for each in read[index] if not before_sources >> position_of[each] & 1
        ]
        if directly:
            follows[name_of[index]] = tuple(directly)
    return follows


def find_merge_keys(view: GraphView, convolutions: Sequence[ConvolutionNode]) -> dict[str, str]:
    """The merge key, by name, of each convolution that shares its key with another.

    Convolutions with the same key can be merged if they are independent; a control dependency or a
    fused operation may prevent that.
    """
    keys = {node.name: key for node in convolutions if (key := _merge_key(view, node)) is not None}
    counts = collections.Counter(keys.values())
    return {name: key for name, key in keys.items() if counts[key] > 1}


def _merge_key(view: GraphView, node: ConvolutionNode) -> str | None:
    form = merge_form(node.configuration)
    if form is None or not view.fanins[node.index]:
        return None
    source, port = view.fanins[node.index][0]
    return f"{view.names[source]}:{port} {form}"
