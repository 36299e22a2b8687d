"""Makes a plan: the stages with the least predicted time that fit into memory.

Dynamic programming finds the best stages exactly if the graph is narrow enough, as in inference. A
part that is too wide, such as the backward half of a training graph, gets a bounded search. Both
choose the algorithms together with the stages.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

from tf_interop.convolution import output_bytes
from tf_interop.errors import PlanError
from tf_interop.planning.problem import PlanningProblem
from tf_interop.planning.stage_costs import StageCosts
from tf_interop.planning.stage_search import (
    OnProgress,
    SearchError,
    Space,
    Unit,
    bits_of,
    mask_of,
    search_blocks,
)
from tf_interop.planning.types import GraphPlan, GraphPrediction, PlannedStage, UnstagedConvolution


@dataclasses.dataclass(frozen=True, slots=True)
class PlanOptions:
    """Limits of the search.

    Attributes:
        max_lanes: lanes of a stage that was not measured.
        max_measured_lanes: lanes of a measured stage, such as a whole level.
        max_lane_length: dependent convolutions in one lane.
        max_transitions: transitions of the exact search; a part of the graph with more gets the
            bounded search.
        width: width of the bounded search.
        max_modelled: modelled combinations of algorithms, and as many again with several
            convolutions in a lane.
    """

    max_lanes: int = 4
    max_measured_lanes: int = 8
    max_lane_length: int = 3
    max_transitions: int = 500_000
    width: int = 96
    max_modelled: int = 5_000


def make_plan(
    problem: PlanningProblem,
    options: PlanOptions | None = None,
    *,
    on_progress: OnProgress = lambda words: None,
) -> GraphPlan:
    """Plans one graph for one batch size.

    Returns:
        The stages of two or more convolutions, in their expected order, and a stage for each
        convolution whose fastest algorithm does not fit into memory. All other convolutions run
        one after another. Equal problems give equal plans.

    Raises:
        PlanError: a convolution does not fit into memory; names it and the memory that is enough.
    """
    return _Planner(problem, options or PlanOptions()).plan(on_progress)


class _Planner:
    def __init__(self, problem: PlanningProblem, options: PlanOptions) -> None:
        self._problem = problem
        self._options = options
        widest = max((len(each.stage.lanes) for each in problem.stages), default=0)
        self._max_lanes = max(options.max_lanes, min(options.max_measured_lanes, widest))
        self._costs = StageCosts(problem, max_modelled=options.max_modelled)
        budget = problem.memory_budget_bytes
        self._budget = math.inf if budget is None else budget
        self._output_bytes = [output_bytes(node.configuration) for node in problem.nodes]
        self._alive_bytes = functools.cache(self._compute_alive_bytes)
        self._space = Space(
            [node.predecessors for node in problem.nodes],
            self._costs.choices,
            follows=[node.follows for node in problem.nodes],
            available=self._available,
            max_lanes=self._max_lanes,
            max_lane_length=options.max_lane_length if self._costs.knows_lanes_of_several else 1,
        )
        # The nodes that depend directly on each node, as bits.
        self._readers = list(map(mask_of, self._space.readers))

    def plan(self, on_progress: OnProgress) -> GraphPlan:
        try:
            units, exact_nodes = search_blocks(
                self._space,
                max_transitions=self._options.max_transitions,
                width=self._options.width,
                on_progress=on_progress,
            )
        except SearchError as error:
            raise PlanError(self._describe_shortage()) from error
        in_sequence = self._in_sequence()
        if not any(map(self._is_stage, units)):
            # The graph stays as it is, and runs in its own order if that fits into memory.
            in_own_order = sorted(units, key=lambda unit: unit[0])
            if max(self._peaks(in_own_order), default=0) <= self._budget:
                units = in_own_order
        stages: list[PlannedStage] = []
        unstaged: list[UnstagedConvolution] = []
        peaks = self._peaks(units)
        for unit, peak_bytes in zip(units, peaks, strict=True):
            if self._is_stage(unit):
                stages.append(self._planned_stage(unit, peak_bytes))
            else:
                [[node]], choice = unit
                unstaged.append(
                    UnstagedConvolution(
                        self._problem.nodes[node].name,
                        choice.stage.steps[0].algorithm,
                        choice.prediction.latency_us,
                        before_stage=len(stages),
                    )
                )
        return GraphPlan(
            fingerprint=self._problem.structure.fingerprint,
            landmarks=self._problem.structure.landmarks,
            stages=tuple(stages),
            batch_size=self._problem.batch_size,
            prediction=GraphPrediction(
                latency_us=sum(choice.prediction.latency_us for _, choice in units),
                sequential_us=sum(choice.prediction.latency_us for _, choice in in_sequence),
                peak_bytes=max(peaks, default=0),
                sequential_peak_bytes=max(self._peaks(in_sequence), default=0),
                memory_budget_bytes=self._problem.memory_budget_bytes,
                search=self._describe(exact_nodes),
            ),
            unstaged=tuple(unstaged),
        )

    def _available(self, done: int) -> float:
        """The free memory after these nodes have run."""
        is_limited = self._budget < math.inf
        return self._budget - self._alive_bytes(done) if is_limited else math.inf

    def _compute_alive_bytes(self, done: int) -> int:
        """The bytes of these nodes' outputs that no node reads, or that a later node reads."""
        return sum(
            self._output_bytes[node]
            for node in bits_of(done)
            if not self._readers[node] or self._readers[node] & ~done
        )

    def _peaks(self, units: Sequence[Unit]) -> list[int]:
        """The memory in use during each unit, one after another."""
        peaks = []
        done = 0
        for lanes, choice in units:
            peaks.append(self._alive_bytes(done) + choice.prediction.peak_bytes)
            done |= mask_of(itertools.chain(*lanes))
        return peaks

    def _in_sequence(self) -> list[Unit]:
        """All nodes in order, each with its fastest algorithm that fits, or else the smallest."""
        units: list[Unit] = []
        for node in range(len(self._problem.nodes)):
            left = self._available((1 << node) - 1)
            lanes = ((node,),)
            choices = self._costs.choices(lanes)
            fitting = (choice for choice in choices if choice.prediction.peak_bytes <= left)
            units.append((lanes, next(fitting, choices[-1])))
        return units

    def _describe_shortage(self) -> str:
        """Describes the peak of all convolutions in order, each with its least workspace."""
        lanes = [((node,),) for node in range(len(self._problem.nodes))]
        least = [self._costs.choices(each)[-1] for each in lanes]
        peaks = self._peaks(list(zip(lanes, least, strict=True)))
        node = peaks.index(max(peaks))
        own = least[node].prediction
        return (
            f"Convolution '{self._problem.nodes[node].name}' does not fit into the budget of "
            f"{self._problem.memory_budget_bytes} bytes: its output takes "
            f"{self._output_bytes[node]}, its workspace at least {own.workspace_bytes}, and "
            f"{peaks[node] - own.peak_bytes} are in use before it. Raise the budget to "
            f"{peaks[node]} bytes, which is enough for the whole graph, or measure algorithms that "
            "need less."
        )

    def _is_stage(self, unit: Unit) -> bool:
        """Whether a unit is a stage; one convolution is if memory forces a slower algorithm."""
        lanes, choice = unit
        if len(choice.stage.steps) > 1:
            return True
        fastest = self._problem.node_algorithms[lanes[0][0]][0]
        return choice.stage.steps[0].algorithm != fastest.algorithm

    def _planned_stage(self, unit: Unit, peak_bytes: int) -> PlannedStage:
        lanes, choice = unit
        prediction = choice.prediction
        why = "planned"
        if len(choice.stage.steps) == 1:
            fastest = self._problem.node_algorithms[lanes[0][0]][0]
            why = (
                f"pinned for its memory: {prediction.latency_us:.1f} µs with "
                f"{prediction.workspace_bytes} bytes of workspace; {fastest.algorithm} takes "
                f"{fastest.latency_us:.1f} µs with {fastest.workspace_bytes}"
            )
        stage = self._costs.place(choice.stage, lanes)
        assert stage is not None
        return PlannedStage(stage, why, dataclasses.replace(prediction, peak_bytes=peak_bytes))

    def _describe(self, exact_nodes: int) -> str:
        lanes = f"for stages of up to {self._max_lanes} lanes"
        bounds = f"bounded, width {self._options.width}"
        count = len(self._problem.nodes)
        search = f"{bounds}, {lanes}"
        if exact_nodes == count:
            search = f"exact {lanes}"
        elif exact_nodes:
            search = f"partly exact ({exact_nodes} of {count} convolutions), else {bounds}, {lanes}"
        return f"{search}; {self._costs.describe()}"
