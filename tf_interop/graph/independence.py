"""Which convolutions of a graph depend on each other, and so which may share a stage or a lane.

Two convolutions are independent if neither is an ancestor of the other, through tensors or control
dependencies. Back edges of loops do not count: within one iteration they are values of the last.

- Those of equal *depth* may share a stage: as many convolutions are on the longest chain that ends
  with each.
- Those with one *merge key* read the same image, and could run as one wider convolution.
- One may *follow* another in its lane if it reads it and nothing else is between the two:

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
    """Ancestors of some nodes of a graph among these nodes, as bit sets.

    The nodes are known by their position in `indices`; bit `i` of a set is the node at position
    `i`. Work and memory are linear in the nodes of the graph, a set of all convolutions counted as
    one word (the 1,067 of a NASNetMobile training step are 134 bytes).

    Attributes:
        indices: the places of the nodes in the graph, in the order that they were given.
        ancestors: for each the set of those that it depends on.
        depths: for each how many of them are on the longest chain that ends with it, itself
            included.
    """

    def __init__(self, view: GraphView, indices: Sequence[int]) -> None:
        """Finds the ancestors of different nodes; raises GraphError where the graph has a cycle."""
        position_of = {index: position for position, index in enumerate(indices)}
        ancestors = [0] * len(indices)
        depths = [0] * len(indices)
        # Of each node: those of `indices` it depends on, itself included, and their longest chain.
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
            reaching[index] = 0  # its readers have it; what is kept grows by the square
        self.indices = tuple(indices)
        self.ancestors = tuple(ancestors)
        self.depths = tuple(depths)

    def direct_predecessors(self, chosen: Sequence[int]) -> list[tuple[int, ...]]:
        """For each of the chosen its ancestors among them with no other of them between.

        What depends on each other through a node that is not chosen still does. `chosen` are
        positions of nodes, in an order in which they may run; the result has places in `chosen`,
        ascending.
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
            # The last one of a set in running order is an ancestor of no other in it.
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
        count = len(self.indices)
        dependent = sum(ancestors.bit_count() for ancestors in self.ancestors)
        return count * (count - 1) // 2 - dependent


class Independence(NodeIndependence):
    """Independence of the convolutions of a graph, which are known by their position."""

    def __init__(self, view: GraphView, convolutions: Sequence[ConvolutionNode]) -> None:
        """Finds the ancestors; raises where the graph has a cycle."""
        super().__init__(view, [node.index for node in convolutions])


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


def find_follows(
    view: GraphView, convolutions: Sequence[ConvolutionNode]
) -> dict[str, tuple[str, ...]]:
    """For each convolution those that it reads, with nothing else on any path between.

    By name; convolutions that come right after none are left out.
    """
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
    """A key, by name, for each convolution that could be merged with another one of them.

    Those with the same key can be merged as long as they are independent. They need not be: one may
    wait for another through a control dependency, or through what is fused to it.
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
