"""A planning problem: a DAG of convolutions with their costs, as plain data."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Mapping, Sequence

from tf_interop.planning.sm_model import Device
from tf_interop.profile.entries import KernelMeasurement
from tf_interop.stage import Stage
from tf_interop.structure import Structure


class ValueSource(enum.Enum):
    """The origin of a value."""

    MEASURED = "measured"
    MODELLED = "modelled"


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """One algorithm for a convolution.

    Attributes:
        latency_us: time of the convolution alone.
        spread_us: error of `latency_us`.
        kernels: its GPU kernels; empty if they are unknown. The model of stages needs them.
    """

    algorithm: str
    latency_us: float
    workspace_bytes: int = 0
    spread_us: float = 0.0
    kernels: tuple[KernelMeasurement, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ConvolutionCosts:
    """The costs of all convolutions of one configuration.

    Attributes:
        name: the key for nodes and stages.
        candidates: at least one.
    """

    name: str
    output_bytes: int
    candidates: tuple[Candidate, ...]

    @property
    def fastest_first(self) -> tuple[Candidate, ...]:
        """The candidates by their time alone, then by workspace."""
        return tuple(
            sorted(
                self.candidates,
                key=lambda each: (each.latency_us, each.workspace_bytes, each.algorithm),
            )
        )

    @property
    def fastest(self) -> Candidate:
        """The candidate that is fastest alone."""
        return self.fastest_first[0]

    def candidate(self, algorithm: str | None) -> Candidate | None:
        """The candidate with this algorithm, if there is one."""
        return next((each for each in self.candidates if each.algorithm == algorithm), None)


@dataclasses.dataclass(frozen=True, slots=True)
class ProblemNode:
    """One convolution of the graph.

    Attributes:
        costs: the name of its ConvolutionCosts.
        predecessors: names of the convolutions that it depends on without another one between.
            Earlier ancestors are included if a lane with them would wait for itself.
        follows: the predecessors that it may share a lane with: it reads them directly, and no
            other operation is between them.
        group: device and control-flow region. Only nodes of one group may share a stage.
        merge_key: nodes with the same key read one image and differ only in their filters, so they
            can be merged into a wider convolution; None if the node cannot be merged.
    """

    name: str
    costs: str
    predecessors: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    group: str = ""
    merge_key: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredStage:
    """A stage that was measured.

    Attributes:
        stage: its operations are names of ConvolutionCosts. The algorithms are candidates, except
            in a merged lane, where the algorithm belongs to the wider convolution.
        latency_us: time from fork to join.
        sequential_us: time of the same convolutions one after another, each with its fastest
            algorithm, measured in the same run.
        spread_us: error of the difference between the two times.
        workspace_bytes: sum over the lanes.
    """

    stage: Stage[str]
    latency_us: float
    sequential_us: float
    spread_us: float = 0.0
    workspace_bytes: int = 0

    @property
    def wins(self) -> bool:
        """Whether it is faster than the sequence by more than the spread."""
        return self.latency_us + self.spread_us < self.sequential_us


# Without slots, because the instance caches its lookup tables.
@dataclasses.dataclass(frozen=True)
class PlanningProblem:
    """A DAG of convolutions to be planned for one device and batch size.

    Attributes:
        costs: one for each distinct convolution.
        nodes: predecessors come before the nodes that depend on them.
        stages: the measured stages.
        memory_budget_bytes: limit for workspaces and live outputs of convolutions; None for no
            limit.
        device: None for a CPU, and if the limits of its SMs are unknown.
        structure: of the graph, by all its convolutions, planned or not; None if it is only known
            by its nodes.
        batch_size: None if it is unknown.
    """

    costs: tuple[ConvolutionCosts, ...]
    nodes: tuple[ProblemNode, ...]
    stages: tuple[MeasuredStage, ...] = ()
    memory_budget_bytes: int | None = None
    device: Device | None = None
    structure: Structure | None = None
    batch_size: int | None = None

    @functools.cached_property
    def costs_by_name(self) -> Mapping[str, ConvolutionCosts]:
        """The costs by name."""
        return {each.name: each for each in self.costs}

    @functools.cached_property
    def node_costs(self) -> tuple[ConvolutionCosts, ...]:
        """The costs of each node."""
        return tuple(self.costs_by_name[node.costs] for node in self.nodes)

    @functools.cached_property
    def follows(self) -> tuple[tuple[int, ...], ...]:
        """The positions of the nodes that each node may follow in a lane."""
        return self._places([node.follows for node in self.nodes])

    @functools.cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """The positions of each node's predecessors."""
        return self._places([node.predecessors for node in self.nodes])

    def _places(self, names: Sequence[tuple[str, ...]]) -> tuple[tuple[int, ...], ...]:
        place = {node.name: index for index, node in enumerate(self.nodes)}
        return tuple(tuple(place[name] for name in each) for each in names)
