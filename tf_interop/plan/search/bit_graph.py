"""A DAG in bit masks: the order of its nodes, what depends on what, and where it can be cut."""

from __future__ import annotations

import dataclasses
import graphlib
from collections.abc import Iterator, Sequence

from tf_interop.plan.search.interface import SearchError


def find_blocks(predecessors: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Cuts a DAG wherever all later nodes depend on all earlier ones.

    Args:
        predecessors: for each node the nodes that it depends on.

    Returns:
        The nodes of each block, ascending; every node depends on all nodes of the blocks before.

    Raises:
        SearchError: the graph has a cycle (named).
    """
    graph = BitGraph.of(predecessors)
    return [tuple(bits_of(graph.to_nodes(block))) for block in graph.blocks()]


def topological_order(predecessors: Sequence[Sequence[int]]) -> list[int]:
    """Nodes so that each comes behind what it depends on: by number wherever that is possible.

    Raises:
        SearchError: there is a cycle (named), or a predecessor that is no node.
    """
    for node, each in enumerate(predecessors):
        for predecessor in each:
            if not 0 <= predecessor < len(predecessors):
                raise SearchError(
                    f"Expected predecessors from 0 to {len(predecessors) - 1}, got {predecessor} "
                    f"at node {node}."
                )
    if all(predecessor < node for node, each in enumerate(predecessors) for predecessor in each):
        return list(range(len(predecessors)))
    sorter = graphlib.TopologicalSorter(dict(enumerate(predecessors)))
    try:
        return list(sorter.static_order())
    except graphlib.CycleError as error:
        cycle = " -> ".join(str(node) for node in error.args[1])
        raise SearchError(f"Expected a graph without a cycle, got {cycle}.") from error


def bits_of(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask &= ~low


@dataclasses.dataclass(frozen=True, slots=True)
class BitGraph:
    """A DAG in bit masks. Bit i is the i-th node of a topological order.

    Attributes:
        node_of_bit: the caller's number of each node.
        direct: for each node, those that it depends on directly.
        neighbours: those that it depends on, and those that depend on it, directly.
        ancestors: all that it depends on.
        is_in_order: whether the caller's numbers are a topological order; bits are the same then.
    """

    node_of_bit: tuple[int, ...]
    direct: tuple[int, ...]
    neighbours: tuple[int, ...]
    ancestors: tuple[int, ...]
    is_in_order: bool

    @classmethod
    def of(cls, predecessors: Sequence[Sequence[int]]) -> BitGraph:
        """The graph in which each node depends on these.

        Raises:
            SearchError: there is a cycle (named), or a predecessor that is no node.
        """
        order = topological_order(predecessors)
        bit_of_node = {node: bit for bit, node in enumerate(order)}
        direct: list[int] = []
        ancestors: list[int] = []
        neighbours = [0] * len(order)
        for bit, node in enumerate(order):
            direct.append(0)
            ancestors.append(0)
            for predecessor in predecessors[node]:
                other = bit_of_node[predecessor]
                direct[bit] |= 1 << other
                ancestors[bit] |= ancestors[other] | 1 << other
                neighbours[bit] |= 1 << other
                neighbours[other] |= 1 << bit
        return cls(
            tuple(order),
            tuple(direct),
            tuple(neighbours),
            tuple(ancestors),
            order == list(range(len(order))),
        )

    def to_nodes(self, bits: int) -> int:
        """The same set with the caller's numbers."""
        if self.is_in_order:
            return bits
        return sum(1 << self.node_of_bit[bit] for bit in bits_of(bits))

    def whole(self) -> tuple[int, ...]:
        """All nodes as one block."""
        return ((1 << len(self.direct)) - 1,) if self.direct else ()

    def blocks(self) -> Iterator[int]:
        """Sets of nodes such that every node depends on all nodes of the blocks before its own."""
        # A cut comes after the nodes with the fewest ancestors, so the order by their number has
        # every cut between two neighbours.
        bits = sorted(
            range(len(self.direct)), key=lambda bit: (self.ancestors[bit].bit_count(), bit)
        )
        # common[i]: what all nodes from the i-th on depend on.
        common = [(1 << len(bits)) - 1] * (len(bits) + 1)
        for place in reversed(range(len(bits))):
            common[place] = common[place + 1] & self.ancestors[bits[place]]
        done = block = 0
        for place, bit in enumerate(bits):
            block |= 1 << bit
            if not (done | block) & ~common[place + 1]:
                yield block
                done |= block
                block = 0
