"""How many convolutions a graph holds, how they depend on each other, and which are left alone."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from tensorflow.core.framework import graph_pb2

from tf_interop.convolution import Refusal, RefusalReason
from tf_interop.graph.convolution_ops import CONVOLUTION_KINDS
from tf_interop.graph.find import find_convolutions
from tf_interop.graph.independence import Independence, NodeIndependence
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.plan.from_profile import level_groups

_MOST_EXAMPLES = 3


@dataclasses.dataclass(frozen=True)
class RefusalFigures:
    """Convolution nodes that are left alone for one reason.

    Attributes:
        reason: the class of reason.
        count: how many there are.
        examples: the first of them, with what was expected and what they have.
    """

    reason: RefusalReason
    count: int
    examples: tuple[Refusal, ...]


@dataclasses.dataclass(frozen=True)
class GraphFigures:
    """Figures of one graph.

    Chain, level and pairs are of all convolution nodes, refused ones too. What a loop hands on from
    one iteration to the next is left out of them.

    Attributes:
        graph: which graph it is, such as "the function's own graph".
        node_count: nodes of the graph.
        counts_by_kind: convolution nodes by the tensor that they compute; each kind is named.
        counts_by_op: convolution nodes by op type, of the types that the graph holds.
        longest_chain: convolutions on the longest path through the graph.
        widest_level: most convolutions at one depth, which is their place in the longest chain that
            ends with them.
        independent_pair_count: pairs of convolutions of which neither depends on the other.
        group_sizes: of each set of convolutions at one depth that could run at the same time how
            many they are, two at least; refused ones are left out.
        refusals: convolution nodes that can be in no stage, by reason, the most frequent first.
    """

    graph: str
    node_count: int
    counts_by_kind: dict[str, int]
    counts_by_op: dict[str, int]
    longest_chain: int
    widest_level: int
    independent_pair_count: int
    group_sizes: tuple[int, ...]
    refusals: tuple[RefusalFigures, ...]

    @property
    def convolution_count(self) -> int:
        """Convolution nodes of the graph."""
        return sum(self.counts_by_op.values())

    @property
    def refused_count(self) -> int:
        """Convolution nodes that can be in no stage."""
        return sum(refusal.count for refusal in self.refusals)

    def to_json(self) -> dict[str, Any]:
        """The figures as plain values."""
        return {
            "graph": self.graph,
            "node_count": self.node_count,
            "convolution_count": self.convolution_count,
            "counts_by_kind": dict(self.counts_by_kind),
            "counts_by_op": dict(self.counts_by_op),
            "longest_chain": self.longest_chain,
            "widest_level": self.widest_level,
            "independent_pair_count": self.independent_pair_count,
            "group_sizes": list(self.group_sizes),
            "refused_count": self.refused_count,
            "refusals": [
                {
                    "reason": refusal.reason.value,
                    "count": refusal.count,
                    "examples": [
                        {"node": example.node, "op": example.op, "detail": example.detail}
                        for example in refusal.examples
                    ],
                }
                for refusal in self.refusals
            ],
        }


def count_convolution_nodes(graph_def: graph_pb2.GraphDef) -> int:
    """Convolution nodes of a graph, without those in its function library."""
    return sum(node.op in CONVOLUTION_KINDS for node in graph_def.node)


def figures_of(graph: str, graph_def: graph_pb2.GraphDef) -> GraphFigures:
    """Counts the convolutions of a graph and how they depend on each other.

    Args:
        graph: which graph it is, for reading.
        graph_def: the graph; functions in its library are not looked into.

    Raises:
        GraphError: the graph is not well-formed.
    """
    view = GraphView(graph_def)
    # As the pass does, which runs where TensorFlow's own kernels may take NCHW.
    convolutions, refusals = find_convolutions(view, GraphProperties(view))
    groups = level_groups(convolutions, Independence(view, convolutions))
    indices = [index for index, op in enumerate(view.ops) if op in CONVOLUTION_KINDS]
    independence = NodeIndependence(view, indices)
    depths = independence.depths
    kinds = dict.fromkeys((kind.value for kind in CONVOLUTION_KINDS.values()), 0)
    for index in indices:
        kinds[CONVOLUTION_KINDS[view.ops[index]].value] += 1
    return GraphFigures(
        graph=graph,
        node_count=len(view),
        counts_by_kind=kinds,
        counts_by_op=dict(sorted(collections.Counter(view.ops[i] for i in indices).items())),
        longest_chain=max(depths, default=0),
        widest_level=max(collections.Counter(depths).values(), default=0),
        independent_pair_count=independence.independent_pair_count,
        group_sizes=tuple(len(group) for _, group in groups if len(group) > 1),
        refusals=_by_reason(refusals),
    )


def _by_reason(refusals: tuple[Refusal, ...]) -> tuple[RefusalFigures, ...]:
    groups: dict[RefusalReason, list[Refusal]] = {}
    for refusal in refusals:
        groups.setdefault(refusal.reason, []).append(refusal)
    return tuple(
        RefusalFigures(reason, len(group), tuple(group[:_MOST_EXAMPLES]))
        for reason, group in sorted(groups.items(), key=lambda item: -len(item[1]))
    )
