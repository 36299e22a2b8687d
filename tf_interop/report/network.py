"""The network of a report: which convolution of a graph depends on which, and what each computes.

A plan names convolutions and holds no dependencies. They come from the planning problem that was
planned, or from the model, which `report/model.py` traces.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tf_interop.convolution import ConvolutionConfiguration, ConvolutionKind, Refusal
from tf_interop.graph.fingerprint import canonical_names
from tf_interop.planning.problem import Candidate, PlanningProblem
from tf_interop.planning.types import GraphPlan


@dataclasses.dataclass(frozen=True, slots=True)
class NetworkNode:
    """One convolution.

    Attributes:
        name: of the node, as the plan has it.
        predecessors: places of the convolutions that it depends on, with none between.
        configuration: what it computes; None where that is not known.
        candidates: its algorithms, fastest alone first, as far as they are known.
    """

    name: str
    predecessors: tuple[int, ...]
    configuration: ConvolutionConfiguration | None = None
    candidates: tuple[Candidate, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Network:
    """The convolutions of one graph.

    Attributes:
        nodes: all that can be part of a stage, as far as they are known.
        refusals: the convolutions that can be part of none, with the reason.
        fingerprint: of the graph; empty where it is not known.
        batch_size: of the graph; None where it does not matter or is not known.
    """

    nodes: tuple[NetworkNode, ...]
    refusals: tuple[Refusal, ...] = ()
    fingerprint: str = ""
    batch_size: int | None = None


def network_of_problem(problem: PlanningProblem) -> Network:
    """The network of a planning problem."""
    return Network(
        tuple(
            NetworkNode(node.name, predecessors, costs.configuration, costs.fastest_first)
            for node, predecessors, costs in zip(
                problem.nodes, problem.predecessors, problem.node_costs, strict=True
            )
        ),
        fingerprint=problem.fingerprint,
        batch_size=problem.batch_size,
    )


def planned_nodes(graph: GraphPlan) -> list[str]:
    """The names of all convolutions that an entry of a plan names."""
    staged = [name for stage in graph.stages for name in stage.nodes]
    return staged + [each.node for each in graph.unstaged]


def network_for(graph: GraphPlan, networks: Iterable[Network]) -> Network | None:
    """The network that a plan's entry is for, its nodes named as in the plan.

    Args:
        graph: an entry of a plan.
        networks: to choose from.

    Returns:
        The first one of the same batch size, if both have one, that holds every convolution that
        the entry names; None where there is none.
    """
    for network in networks:
        if network.batch_size not in (None, graph.batch_size) and graph.batch_size is not None:
            continue
        if network.fingerprint in ("", graph.fingerprint):
            renamed = _named_as(planned_nodes(graph), network)
            if renamed is not None:
                return renamed
    return None


def describe_filter(configuration: ConvolutionConfiguration | None) -> str:
    """A convolution in a few letters, such as `3×3`, and `3×3 ∂w` for a gradient by the filter.

    That of a volume has three sizes.
    """
    if configuration is None or configuration.filter_shape is None:
        return ""
    *spatial, _, _ = configuration.filter_shape
    sizes = "×".join("?" if size is None else str(size) for size in spatial)
    gradient = {
        ConvolutionKind.FORWARD: "",
        ConvolutionKind.BACKWARD_INPUT: " ∂x",
        ConvolutionKind.BACKWARD_FILTER: " ∂w",
    }[configuration.kind]
    return sizes + gradient


def _named_as(planned: Iterable[str], network: Network) -> Network | None:
    """The network with the plan's names; None where it lacks one of them."""
    planned = set(planned)
    names = [node.name for node in network.nodes]
    if not planned <= set(names):
        # A trace of its own may have numbered scopes otherwise.
        name_of = {canonical: name for name, canonical in canonical_names(planned).items()}
        canonical = canonical_names(names)
        names = [name_of.get(canonical[name], name) for name in names]
        if not planned <= set(names):
            return None
    nodes = zip(network.nodes, names, strict=True)
    return dataclasses.replace(
        network, nodes=tuple(dataclasses.replace(node, name=name) for node, name in nodes)
    )
