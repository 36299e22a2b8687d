"""A planning problem: a DAG of convolutions with their costs, as plain data.

Nothing here depends on graphs, profiles or present devices.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping, Sequence

from tf_interop.profile.entries import KernelMeasurement
from tf_interop.profile.types import SmLimits
from tf_interop.stage import Stage


class ValueSource(enum.Enum):
    """Where a value comes from."""

    MEASURED = "measured"
    MODELLED = "modelled"


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """One algorithm for a convolution.

    Attributes:
        algorithm: its name; None for the runner's own choice.
        latency_us: time of the convolution alone.
        workspace_bytes: its workspace.
        spread_us: error of `latency_us`.
        kernels: the GPU kernels that it launches; empty if they are not known. Without them a
            stage that was not measured cannot be modelled.
    """

    algorithm: str | None
    latency_us: float
    workspace_bytes: int = 0
    spread_us: float = 0.0
    kernels: tuple[KernelMeasurement, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ConvolutionCosts:
    """The costs of all convolutions of one configuration.

    Attributes:
        name: the key for nodes and stages.
        output_bytes: size of its result.
        candidates: at least one.
    """

    name: str
    output_bytes: int
    candidates: tuple[Candidate, ...]

    @property
    def fastest_first(self) -> tuple[Candidate, ...]:
        """The candidates by their time alone; of equal ones that with less workspace first."""
        return tuple(
            sorted(
                self.candidates,
                key=lambda each: (each.latency_us, each.workspace_bytes, each.algorithm or ""),
            )
        )

    @property
    def fastest(self) -> Candidate:
        """The candidate that is fastest alone."""
        return self.fastest_first[0]

    def candidate(self, algorithm: str | None) -> Candidate | None:
        """The candidate of this algorithm, if there is one."""
        return next((each for each in self.candidates if each.algorithm == algorithm), None)


@dataclasses.dataclass(frozen=True, slots=True)
class ProblemNode:
    """One convolution of the graph.

    Attributes:
        name: of the node in the graph.
        costs: the name of its ConvolutionCosts.
        predecessors: names of the convolutions that it depends on, with none between. Others may
            be named too, where a lane with them would wait for itself.
        follows: those of `predecessors` that it reads directly, with nothing else on any
            convolution-free path between, so that both may be in one lane.
        group: only nodes of the same group may share a stage (device and control-flow region).
        merge_key: nodes with the same one read the same image and differ in their filters alone,
            so that they can be merged into one wider convolution; None if that cannot be.
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
        stage: of the names of ConvolutionCosts: lanes, or one that is merged. An algorithm is one
            of the candidates; in a merged lane it is that of the wider convolution, which need not
            be one.
        latency_us: from fork to join.
        sequential_us: of the same convolutions one after another, each with its fastest algorithm,
            measured in the same run.
        spread_us: error of the difference of the two.
        workspace_bytes: of all lanes together.
    """

    stage: Stage[str]
    latency_us: float
    sequential_us: float
    spread_us: float = 0.0
    workspace_bytes: int = 0

    @property
    def wins(self) -> bool:
        """Whether it is faster than one after another by more than the spread, as measured."""
        return self.latency_us + self.spread_us < self.sequential_us


# Without slots: the lookup tables are kept in the instance.
@dataclasses.dataclass(frozen=True)
class PlanningProblem:
    """A DAG of convolutions to be planned for one device and batch size.

    Attributes:
        costs: of each distinct convolution.
        nodes: in an order in which they may run: predecessors come before what depends on them.
        stages: measured stages.
        memory_budget_bytes: for the outputs of convolutions that are alive, and workspaces; None
            if there is no limit.
        sm_count: SMs of the device; None if not known, and for a CPU.
        sm_limits: of one SM; likewise.
        fingerprint: of the graph (see `fingerprint_convolutions`); empty for plain data.
        convolution_count: convolutions of the graph, planned or not.
        batch_size: that the shapes hold; None if unknown.
    """

    costs: tuple[ConvolutionCosts, ...]
    nodes: tuple[ProblemNode, ...]
    stages: tuple[MeasuredStage, ...] = ()
    memory_budget_bytes: int | None = None
    sm_count: int | None = None
    sm_limits: SmLimits | None = None
    fingerprint: str = ""
    convolution_count: int = 0
    batch_size: int | None = None

    @functools.cached_property
    def costs_by_name(self) -> Mapping[str, ConvolutionCosts]:
        """The costs under their names."""
        return {each.name: each for each in self.costs}

    @functools.cached_property
    def node_costs(self) -> tuple[ConvolutionCosts, ...]:
        """The costs of each node, in the order of the nodes."""
        return tuple(self.costs_by_name[node.costs] for node in self.nodes)

    @functools.cached_property
    def follows(self) -> tuple[tuple[int, ...], ...]:
        """For each node the places of those that it may follow in a lane."""
        return self._places([node.follows for node in self.nodes])

    @functools.cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For each node the places of its predecessors."""
        return self._places([node.predecessors for node in self.nodes])

    @functools.cached_property
    def _readers(self) -> tuple[int, ...]:
        """For each node those that depend on it directly, as bits."""
        readers = [0] * len(self.nodes)
        for node, predecessors in enumerate(self.predecessors):
            for predecessor in predecessors:
                readers[predecessor] |= 1 << node
        return tuple(readers)

    @functools.cached_property
    def alive_bytes(self) -> Callable[[int], int]:
        """Of nodes that have run, as bits, the outputs that nothing reads, or what has not run."""

        @functools.cache
        def alive_bytes(done: int) -> int:
            return sum(
                costs.output_bytes
                for node, (costs, readers) in enumerate(
                    zip(self.node_costs, self._readers, strict=True)
                )
                if done >> node & 1 and (not readers or readers & ~done)
            )

        return alive_bytes

    def _places(self, names: Sequence[tuple[str, ...]]) -> tuple[tuple[int, ...], ...]:
        place = {node.name: index for index, node in enumerate(self.nodes)}
        return tuple(tuple(place[name] for name in each) for each in names)
