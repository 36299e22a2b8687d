"""Which convolutions of a graph depend on each other.

Two convolutions are independent if neither is an ancestor of the other, through tensors or control
dependencies. Back edges of loops do not count: within one iteration they are values of the last.
"""

from __future__ import annotations

from collections.abc import Sequence

from tf_interop.convolution import ConvolutionNode
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
