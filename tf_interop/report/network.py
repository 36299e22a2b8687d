"""The network of a report: the dependencies between parts of a graph, and what each computes.

A plan names convolutions or units and holds no dependencies. They come from the model, which
`report/model.py` traces.
"""

from __future__ import annotations

import dataclasses

from tf_interop.convolution import (
    ConvolutionConfiguration,
    ConvolutionKind,
    Refusal,
    canonical_names,
)
from tf_interop.planning.types import GraphPlan


@dataclasses.dataclass(frozen=True, slots=True)
class NetworkNode:
    """One convolution, or one unit.

    Attributes:
        name: as the plan has it.
        predecessors: places of those that it depends on.
        label: what it computes, in a few letters.
        note: the same in words.
        reads_input: whether it depends on an input of the graph, and not on variables alone.
    """

    name: str
    predecessors: tuple[int, ...]
    label: str = ""
    note: str = ""
    reads_input: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Network:
    """The convolutions of one graph, or its units.

    Attributes:
        nodes: in an order in which they may run.
        refusals: the convolutions that can be part of no stage or unit, with the reason.
        fingerprint: of the graph.
    """

    nodes: tuple[NetworkNode, ...]
    refusals: tuple[Refusal, ...] = ()
    fingerprint: str = ""

    @property
    def drawn(self) -> tuple[NetworkNode, ...]:
        """What depends on an input: the rest would be one high column before everything else."""
        places = [place for place, node in enumerate(self.nodes) if node.reads_input]
        place_of = {place: number for number, place in enumerate(places)}
        return tuple(
            dataclasses.replace(
                self.nodes[place],
                predecessors=tuple(
                    place_of[each] for each in self.nodes[place].predecessors if each in place_of
                ),
            )
            for place in places
        )


def named_as_in(graph: GraphPlan, network: Network) -> Network:
    """A network with the names that a plan's entry has: a trace may number scopes otherwise."""
    names = canonical_names(node.name for node in network.nodes)
    planned_names = canonical_names([*graph.planned_nodes, *graph.units])
    planned = {canonical: name for name, canonical in planned_names.items()}
    nodes = tuple(
        dataclasses.replace(node, name=planned.get(names[node.name], node.name))
        for node in network.nodes
    )
    return dataclasses.replace(network, nodes=nodes)


def describe_filter(configuration: ConvolutionConfiguration) -> str:
    """A convolution in a few letters, such as `3×3`, and `3×3 ∂w` for a gradient by the filter.

    That of a volume has three sizes.
    """
    if configuration.filter_shape is None:
        return ""
    *spatial, _, _ = configuration.filter_shape
    sizes = "×".join("?" if size is None else str(size) for size in spatial)
    gradient = {
        ConvolutionKind.FORWARD: "",
        ConvolutionKind.BACKWARD_INPUT: " ∂x",
        ConvolutionKind.BACKWARD_FILTER: " ∂w",
    }[configuration.kind]
    return sizes + gradient
