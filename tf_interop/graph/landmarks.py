"""The landmarks of a graph: the convolutions by which a plan recognizes it, and what they read.

Only values count, not control dependencies, nor sizes that are computed from shapes, because those
are constants as soon as the shapes are known.

    x --> Conv2D a --> Relu --> Conv2D b --> loss           b reads a.
                 |                      v
                 |       a's gradient <-- b's gradients     b's gradients read each other and a,
                 +------------------------^                 a's gradient reads those.

The loss, metrics and the optimizer are not part of the network. So of what leads to a gradient's
incoming gradient, only other gradients count.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Mapping, Sequence

from tf_interop.convolution import ConvolutionKind, ConvolutionNode, describe_form
from tf_interop.graph.ops import SIZES_POSITIONS
from tf_interop.graph.view import GraphView, Tensor
from tf_interop.structure import Part, Read, Structure, structure_of

_WITHOUT_VALUES = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"})
"""Ops whose results depend only on the shapes of their inputs."""

# TensorFlow's scopes for gradients. Grappler may put its own scope inside.
_GRADIENT_SCOPE = re.compile(r"(^|/)gradient(s|_tape)(_\d+)?/")


def find_structure(view: GraphView, convolutions: Sequence[ConvolutionNode]) -> Structure:
    """The structure of a graph, by some of its convolutions.

    Raises:
        GraphError: the graph has a cycle.
    """
    indices = [node.index for node in convolutions]
    reads = find_reads(view, {index: number for number, index in enumerate(indices)}, indices)
    # The gradients of one convolution read the same incoming gradient.
    filters = collections.defaultdict[Tensor, list[int]](list)
    for number, node in enumerate(convolutions):
        if node.configuration.kind is ConvolutionKind.BACKWARD_FILTER:
            filters[view.fanins[node.index][2]].append(number)
    for number, node in enumerate(convolutions):
        if node.configuration.kind is ConvolutionKind.BACKWARD_INPUT:
            # Of several, as after an addition, none is chosen: that would depend on names.
            for other in filters[view.fanins[node.index][2]]:
                # Not so in gradients of gradients.
                if all(each < number for each, _ in reads[other]):
                    reads[number].append((other, "same gradient"))
    return structure_of(
        [
            Part(node.name, describe_form(node.configuration), tuple(its))
            for node, its in zip(convolutions, reads, strict=True)
        ]
    )


def find_reads(
    view: GraphView, part_of: Mapping[int, int], firsts: Sequence[int]
) -> list[list[Read]]:
    """What each part of a graph computes from: the parts on its paths to the inputs, the nearest.

    Args:
        view: the graph.
        part_of: the number of the part of each node that is in one.
        firsts: for each part the node whose inputs count.

    Returns:
        For each part the numbers of others, each with the input that they lead to, and whether it
        is their result itself.

    Raises:
        GraphError: the graph has a cycle.
    """
    # For each node, the parts that lead to its results, as bits.
    leading = [0] * len(view)
    are_gradients = bytearray(len(view))
    for index in view.topological_order():
        sources = [source for source, _ in view.fanins[index]]
        are_gradients[index] = any(are_gradients[each] for each in sources) or (
            _GRADIENT_SCOPE.search(view.names[index]) is not None
        )
        number = part_of.get(index)
        if number is not None:
            leading[index] = 1 << number
        elif view.ops[index] not in _WITHOUT_VALUES:
            for source in sources:
                leading[index] |= leading[source]
    gradients = sum(1 << number for number, first in enumerate(firsts) if are_gradients[first])
    reads: list[list[Read]] = []
    for number, first in enumerate(firsts):
        its: list[Read] = []
        for position, (source, _) in enumerate(view.fanins[first]):
            if position == SIZES_POSITIONS.get(view.ops[first]):
                continue
            found = leading[source] & ~(1 << number)
            if are_gradients[source]:
                found &= gradients
            how = f"{position}, directly" if source in part_of else str(position)
            while found:
                lowest = found & -found
                its.append((lowest.bit_length() - 1, how))
                found ^= lowest
        reads.append(its)
    return reads
