"""Which convolutions of a graph may come right after which others in one lane.

a --> b            b may come after a: it reads a, and nothing else is between the two.

a ------> b        b may not: one op for a and b would wait for Pool, and Pool for that op.
a -> Pool -> b
"""

from __future__ import annotations

from collections.abc import Sequence

from tf_interop.convolution import ConvolutionNode
from tf_interop.graph.independence import NodeIndependence
from tf_interop.graph.view import GraphView


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
