"""A planning problem: a DAG of convolutions, and the measurements that a profile has of them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.planning.sm_model import Device
from tf_interop.profile.entries import AlgorithmMeasurement, StageMeasurement
from tf_interop.stage import Stage, Step
from tf_interop.structure import Structure

Algorithms = Mapping[ConvolutionConfiguration, tuple[AlgorithmMeasurement, ...]]
"""The measured algorithms of each convolution, fastest first."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProblemNode:
    """One convolution of the graph.

    Attributes:
        predecessors: places of the nodes that it depends on without another one between. Earlier
            ancestors are included if a lane with them would wait for itself.
        follows: the predecessors that it may share a lane with: it reads them directly, and no
            other operation is between them.
        group: device and control-flow region. Only nodes of one group may share a stage.
        merge_key: nodes with the same key read one image and differ only in their filters, so they
            can be merged into a wider convolution; None if the node cannot be merged.
    """

    name: str
    configuration: ConvolutionConfiguration
    predecessors: tuple[int, ...] = ()
    follows: tuple[int, ...] = ()
    group: str = ""
    merge_key: str | None = None


# Without slots, because the instance caches its lookup tables.
@dataclasses.dataclass(frozen=True)
class PlanningProblem:
    """A DAG of convolutions to be planned for one device and batch size.

    Attributes:
        nodes: predecessors come before the nodes that depend on them.
        algorithms: at least one for each node.
        structure: of the graph, by all its convolutions, planned or not.
        stages: their steps are in `algorithms`, except that the algorithm of a merged lane belongs
            to the wider convolution.
        memory_budget_bytes: limit for workspaces and live outputs of convolutions; None for no
            limit.
        device: None for a CPU, and if the limits of its SMs are unknown.
        batch_size: None if it is unknown.
    """

    nodes: tuple[ProblemNode, ...]
    algorithms: Algorithms
    structure: Structure
    stages: tuple[StageMeasurement, ...] = ()
    memory_budget_bytes: int | None = None
    device: Device | None = None
    batch_size: int | None = None

    @functools.cached_property
    def alone(self) -> Mapping[Step[ConvolutionConfiguration], AlgorithmMeasurement]:
        """The measurement of each step alone."""
        return {
            Step(each.configuration, each.algorithm): each
            for measured in self.algorithms.values()
            for each in measured
        }

    @functools.cached_property
    def node_algorithms(self) -> tuple[tuple[AlgorithmMeasurement, ...], ...]:
        """The algorithms of each node, fastest first."""
        return tuple(self.algorithms[node.configuration] for node in self.nodes)

    @functools.cached_property
    def number_of(self) -> Mapping[ConvolutionConfiguration, int]:
        """A number for each configuration, its place in `algorithms`.

        In the search it stands for the configuration, because it is hashed much faster.
        """
        return {configuration: number for number, configuration in enumerate(self.algorithms)}

    @functools.cached_property
    def numbers(self) -> tuple[int, ...]:
        """The number of each node's configuration."""
        return tuple(self.number_of[node.configuration] for node in self.nodes)

    @functools.cached_property
    def numbered_stages(self) -> tuple[Stage[int], ...]:
        """The measured stages, with numbers as operations."""
        return tuple(each.stage.map(self.number_of.__getitem__) for each in self.stages)
