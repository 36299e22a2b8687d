"""Makes a plan: the stages with the least predicted time whose memory fits.

Dynamic programming finds the best stages exactly where the graph is narrow enough, as inference
graphs are; in parts that are not, as the backward half of a training graph, a bounded search goes
from the front. Each chooses the algorithms with the stages, by the memory that is left beside what
is alive.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tf_interop.errors import PlanError
from tf_interop.planning.cost.calibration import ModelCalibration, calibrate_model
from tf_interop.planning.cost.stage_costs import Lanes, StageChoice, StageCosts
from tf_interop.planning.problem import PlanningProblem
from tf_interop.planning.search.blocks import SearchBounds, search_blocks
from tf_interop.planning.search.space import (
    OnProgress,
    SearchError,
    SearchResult,
    Space,
    StageOption,
)
from tf_interop.planning.types import (
    GraphPlan,
    GraphPrediction,
    PlannedStage,
    StagePrediction,
    UnstagedConvolution,
)


@dataclasses.dataclass(frozen=True, slots=True)
class PlanOptions:
    """How far to search.

    Attributes:
        max_lanes: of a stage.
        max_lane_length: the most convolutions of a lane that depend on each other.
        max_transitions: a part of the graph of which the exact search would look at more is
            searched within bounds.
        width: of the bounded search.
        max_modelled: combinations of algorithms that are modelled, at most; measured ones do not
            count. As many more where a lane has several convolutions.
    """

    max_lanes: int = 4
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

    Args:
        problem: the convolutions, what they cost, and the memory there is.
        options: how far to search.
        on_progress: told how far the search is. Where a part of the graph turns out to be too wide
            for the exact search, it begins that part again.

    Returns:
        The stages of two or more convolutions, in the order in which they are expected to run, and
        those of a single one whose fastest algorithm does not fit into the memory. Convolutions in
        none of them run one after another. Equal problems give equal plans.

    Raises:
        PlanError: a convolution does not fit into the memory; names it and what would be needed.
    """
    return _Planner(problem, options or PlanOptions()).plan(on_progress)


@dataclasses.dataclass(frozen=True, slots=True)
class _Unit:
    """What runs at once: a stage, or a convolution alone."""

    lanes: Lanes
    choice: StageChoice

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(sorted(node for lane in self.lanes for node in lane))


class _Planner:
    def __init__(self, problem: PlanningProblem, options: PlanOptions) -> None:
        self._problem = problem
        self._options = options
        self._calibration = calibrate_model(problem)
        self._costs = StageCosts(problem, self._calibration, max_modelled=options.max_modelled)

    def plan(self, on_progress: OnProgress) -> GraphPlan:
        units, search = self._search(on_progress)
        in_sequence = self._in_sequence()
        if not any(map(self._is_stage, units)):
            # The graph stays as it is then, and runs in its own order, where its memory fits.
            in_own_order = sorted(units, key=lambda unit: unit.nodes)
            if self._fits(max(self._peaks(in_own_order), default=0)):
                units = in_own_order
        stages: list[PlannedStage] = []
        unstaged: list[UnstagedConvolution] = []
        peaks = self._peaks(units)
        for unit, peak_bytes in zip(units, peaks, strict=True):
            if self._is_stage(unit):
                stages.append(self._planned_stage(unit, peak_bytes))
            else:
                unstaged.append(self._unstaged(unit, peak_bytes, len(stages)))
        return GraphPlan(
            fingerprint=self._problem.fingerprint,
            convolution_count=max(self._problem.convolution_count, len(self._problem.nodes)),
            stages=tuple(stages),
            batch_size=self._problem.batch_size,
            prediction=GraphPrediction(
                latency_us=sum(unit.choice.latency_us for unit in units),
                sequential_us=sum(unit.choice.latency_us for unit in in_sequence),
                peak_bytes=max(peaks, default=0),
                sequential_peak_bytes=max(self._peaks(in_sequence), default=0),
                memory_budget_bytes=self._problem.memory_budget_bytes,
                search=search,
            ),
            unstaged=tuple(unstaged),
        )

    def _search(self, on_progress: OnProgress) -> tuple[list[_Unit], str]:
        """The units in the order in which they run, and how they were found."""
        options = self._options
        budget = self._problem.memory_budget_bytes
        space = Space(
            self._problem.predecessors,
            self._stage_options,
            follows=self._problem.follows,
            available_bytes=None
            if budget is None
            else lambda done: budget - self._problem.alive_bytes(done),
            max_lanes=options.max_lanes,
            max_lane_length=options.max_lane_length if self._costs.knows_lanes_of_several else 1,
        )
        bounds = SearchBounds(options.max_transitions, options.width)
        try:
            result = search_blocks(space, bounds, on_progress=on_progress)
        except SearchError as error:
            raise PlanError(self._describe_shortage()) from error
        units = [
            _Unit(lanes, self._costs.choices(lanes)[option])
            for lanes, option in zip(result.stages, result.options, strict=True)
        ]
        return units, self._describe(result)

    def _stage_options(self, lanes: Lanes) -> Sequence[StageOption]:
        return [
            StageOption(choice.latency_us, self._memory_bytes(_Unit(lanes, choice)))
            for choice in self._costs.choices(lanes)
        ]

    def _memory_bytes(self, unit: _Unit) -> int:
        """What a unit needs beside what is alive before it."""
        outputs = sum(self._problem.node_costs[node].output_bytes for node in unit.nodes)
        return outputs + unit.choice.workspace_bytes

    def _peaks(self, units: Sequence[_Unit]) -> list[int]:
        """The memory of each of these units, one after another."""
        peaks = []
        done = 0
        for unit in units:
            peaks.append(self._problem.alive_bytes(done) + self._memory_bytes(unit))
            for node in unit.nodes:
                done |= 1 << node
        return peaks

    def _fits(self, peak_bytes: int) -> bool:
        budget = self._problem.memory_budget_bytes
        return budget is None or peak_bytes <= budget

    def _in_sequence(self) -> list[_Unit]:
        """All nodes in their order, each with the fastest algorithm that fits.

        Where none fits in this order, the one that needs least.
        """
        units = []
        for node in range(len(self._problem.nodes)):
            alive_bytes = self._problem.alive_bytes((1 << node) - 1)
            lanes = ((node,),)
            ways = [_Unit(lanes, choice) for choice in self._costs.choices(lanes)]
            fitting = (way for way in ways if self._fits(alive_bytes + self._memory_bytes(way)))
            units.append(next(fitting, ways[-1]))
        return units

    def _describe_shortage(self) -> str:
        """What one after another would need, each convolution with its least workspace."""
        lanes = [((node,),) for node in range(len(self._problem.nodes))]
        least = [_Unit(each, self._costs.choices(each)[-1]) for each in lanes]
        peaks = self._peaks(least)
        node = peaks.index(max(peaks))
        output_bytes = self._problem.node_costs[node].output_bytes
        return (
            f"Expected memory for convolution '{self._problem.nodes[node].name}', got a budget "
            f"of {self._problem.memory_budget_bytes} bytes: its output takes {output_bytes}, "
            f"its workspace at least {least[node].choice.workspace_bytes}, and "
            f"{peaks[node] - self._memory_bytes(least[node])} are alive before it. Give "
            f"{peaks[node]} bytes, which are enough for the whole graph, or measure algorithms "
            "that need less."
        )

    def _is_stage(self, unit: _Unit) -> bool:
        """Also a single convolution is, where its fastest algorithm does not fit: for its pin."""
        if len(unit.nodes) > 1:
            return True
        (pinned,) = unit.choice.stage.steps
        fastest = self._problem.node_costs[unit.nodes[0]].fastest
        return pinned.algorithm is not None and pinned.algorithm != fastest.algorithm

    def _unstaged(self, unit: _Unit, peak_bytes: int, before_stage: int) -> UnstagedConvolution:
        return UnstagedConvolution(
            node=self._problem.nodes[unit.nodes[0]].name,
            algorithm=unit.choice.stage.steps[0].algorithm,
            latency_us=unit.choice.latency_us,
            peak_bytes=peak_bytes,
            before_stage=before_stage,
        )

    def _planned_stage(self, unit: _Unit, peak_bytes: int) -> PlannedStage:
        choice = unit.choice
        fastest = [self._problem.node_costs[node].fastest for node in unit.nodes]
        sequential_us = sum(each.latency_us for each in fastest)
        if len(unit.nodes) > 1:
            why = (
                f"planned{', merged into a wider convolution' if choice.stage.is_merged else ''}: "
                f"{choice.latency_us:.1f} us {choice.source.value} against {sequential_us:.1f} us "
                "one after another"
            )
        else:
            why = (
                f"pinned for its memory: {choice.latency_us:.1f} us with {choice.workspace_bytes} "
                f"bytes of workspace; {fastest[0].algorithm} takes {sequential_us:.1f} us with "
                f"{fastest[0].workspace_bytes}"
            )
        stage = self._costs.place(choice.stage, unit.lanes)
        assert stage is not None
        return PlannedStage(
            stage=stage.map(lambda node: self._problem.nodes[node].name),
            why=why,
            prediction=StagePrediction(
                latency_us=choice.latency_us,
                spread_us=choice.spread_us,
                sequential_us=sequential_us,
                source=choice.source,
                workspace_bytes=choice.workspace_bytes,
                peak_bytes=peak_bytes,
            ),
        )

    def _describe(self, result: SearchResult) -> str:
        return "; ".join(
            (
                self._describe_search(result),
                self._costs.describe(),
                _describe_calibration(self._calibration),
            )
        )

    def _describe_search(self, result: SearchResult) -> str:
        lanes = f"for stages of up to {self._options.max_lanes} lanes"
        if result.exact_nodes == len(self._problem.nodes):
            return f"exact {lanes}"
        bounds = f"bounded, width {self._options.width}"
        if not result.exact_nodes:
            return f"{bounds}, {lanes}"
        convolutions = f"{result.exact_nodes} of {len(self._problem.nodes)} convolutions"
        return f"partly exact ({convolutions}), else {bounds}, {lanes}"


def _describe_calibration(calibration: ModelCalibration) -> str:
    if not calibration.stages:
        return f"model not calibrated, trusted to {calibration.spread:.0%}"
    return (
        f"model calibrated on {calibration.stages} measured stages, factor "
        f"{calibration.factor:.2f}, trusted to {calibration.spread:.0%}"
    )
