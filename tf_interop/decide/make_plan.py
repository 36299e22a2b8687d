"""Makes a plan: the stages with the least predicted time whose memory fits.

Dynamic programming finds the best stages exactly where the graph is narrow enough, as inference
graphs are; else, as for training graphs, a bounded search goes from the front. Either chooses the
algorithms with the stages, by the memory that is left beside what is alive.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tf_interop.decide.bounded_search import search_stages_bounded
from tf_interop.decide.stage_costs import (
    ModelCalibration,
    StageChoice,
    StageCosts,
    calibrate_model,
)
from tf_interop.decide.stage_search import (
    Lanes,
    SearchError,
    SearchResult,
    SearchTooWideError,
    StageOption,
    search_stages,
)
from tf_interop.errors import PlanError
from tf_interop.know.plan import (
    GraphPlan,
    GraphPrediction,
    LaneOptions,
    PinnedConvolution,
    PlannedStage,
    StagePrediction,
)
from tf_interop.know.planning_problem import PlanningProblem
from tf_interop.know.planning_problem_file import check_problem

Nodes = tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PlanOptions:
    """How far to search.

    Attributes:
        max_lanes: the most convolutions of a stage.
        max_transitions: where the exact search of a part of the graph would look at more, the
            whole graph is searched within bounds.
        width: of the bounded search.
    """

    max_lanes: int = 4
    max_transitions: int = 200_000
    width: int = 32


def make_plan(problem: PlanningProblem, options: PlanOptions | None = None) -> GraphPlan:
    """Plans one graph for one batch size.

    Args:
        problem: the convolutions, what they cost, and the memory there is.
        options: how far to search.

    Returns:
        The stages of two or more convolutions, in the order in which they are expected to run.
        Convolutions in none of them run one after another. Equal problems give equal plans.

    Raises:
        PlanError: the problem is not legal, or a convolution does not fit into the memory; names
            it and what would be needed.
    """
    try:
        check_problem(problem)
    except ValueError as error:
        raise PlanError(f"{error}. Correct the problem.") from error
    return _Planner(problem, options or PlanOptions()).plan()


class _Planner:
    def __init__(self, problem: PlanningProblem, options: PlanOptions) -> None:
        self._problem = problem
        self._options = options
        self._calibration = calibrate_model(problem)
        self._costs = StageCosts(problem, self._calibration)
        self._memory = _Memory(problem)

    def plan(self) -> GraphPlan:
        sequential = self._one_after_another()
        found, how = self._search()
        stages = []
        latency_us = 0.0
        peak_bytes = done = 0
        for lanes, option in zip(found.stages, found.options, strict=True):
            nodes = tuple(sorted(node for lane in lanes for node in lane))
            choice = self._choices(nodes)[option]
            peak = self._memory.alive_bytes(done) + self._memory_bytes(nodes, choice)
            latency_us += choice.latency_us
            peak_bytes = max(peak_bytes, peak)
            if len(nodes) > 1:
                stages.append(self._planned_stage(nodes, choice, peak))
            done |= sum(1 << node for node in nodes)
        prediction = GraphPrediction(
            latency_us=latency_us,
            sequential_us=sequential.latency_us,
            peak_bytes=peak_bytes,
            sequential_peak_bytes=sequential.peak_bytes,
            memory_budget_bytes=self._problem.memory_budget_bytes,
            search="; ".join(
                (
                    how,
                    f"{found.states} states, {found.transitions} transitions, "
                    f"{self._costs.combinations} combinations of algorithms",
                    _describe(self._calibration),
                )
            ),
        )
        return GraphPlan(
            fingerprint=self._problem.fingerprint,
            convolution_count=max(self._problem.convolution_count, len(self._problem.nodes)),
            stages=tuple(stages),
            batch_size=self._problem.batch_size,
            prediction=prediction,
        )

    def _search(self) -> tuple[SearchResult, str]:
        available = self._memory.available_bytes if self._problem.memory_budget_bytes else None
        try:
            return (
                search_stages(
                    self._problem.predecessors,
                    self._options_of_lanes,
                    available_bytes=available,
                    max_lanes=self._options.max_lanes,
                    max_lane_length=1,
                    max_transitions=self._options.max_transitions,
                ),
                f"exact for stages of up to {self._options.max_lanes} convolutions",
            )
        except SearchTooWideError:
            pass
        except SearchError as error:
            raise PlanError(f"{error} {self._memory.describe_shortage()}") from error
        try:
            return (
                search_stages_bounded(
                    self._problem.predecessors,
                    self._options_of_nodes,
                    available_bytes=available,
                    width=self._options.width,
                    max_lanes=self._options.max_lanes,
                ),
                f"bounded, width {self._options.width}, for stages of up to "
                f"{self._options.max_lanes} convolutions",
            )
        except SearchError as error:
            raise PlanError(f"{error} {self._memory.describe_shortage()}") from error

    def _options_of_lanes(self, lanes: Lanes) -> Sequence[StageOption]:
        return self._options_of_nodes(tuple(sorted(node for lane in lanes for node in lane)))

    def _options_of_nodes(self, nodes: Nodes) -> Sequence[StageOption]:
        return [
            StageOption(choice.latency_us, self._memory_bytes(nodes, choice))
            for choice in self._choices(nodes)
        ]

    def _choices(self, nodes: Nodes) -> tuple[StageChoice, ...]:
        if len({self._problem.nodes[node].group for node in nodes}) > 1:
            return ()
        return self._costs.choices([self._problem.nodes[node].costs for node in nodes])

    def _memory_bytes(self, nodes: Nodes, choice: StageChoice) -> int:
        outputs = sum(self._problem.node_costs[node].output_bytes for node in nodes)
        return outputs + choice.workspace_bytes

    def _one_after_another(self) -> _Sequence:
        """All nodes in their order, each with the fastest algorithm that fits."""
        latency_us = 0.0
        peak_bytes = done = 0
        for node, costs in enumerate(self._problem.node_costs):
            alive = self._memory.alive_bytes(done)
            budget = self._problem.memory_budget_bytes
            fitting = [
                choice
                for choice in self._choices((node,))
                if budget is None or alive + self._memory_bytes((node,), choice) <= budget
            ]
            if not fitting:
                least = min(candidate.workspace_bytes for candidate in costs.candidates)
                raise PlanError(
                    f"Expected memory for convolution '{self._problem.nodes[node].name}', got a "
                    f"budget of {budget} bytes: {alive} bytes are alive before it, its output "
                    f"takes {costs.output_bytes} and its workspace at least {least}. Give at least "
                    f"{alive + costs.output_bytes + least} bytes, or measure algorithms that need "
                    "less."
                )
            latency_us += fitting[0].latency_us
            peak_bytes = max(peak_bytes, alive + self._memory_bytes((node,), fitting[0]))
            done |= 1 << node
        return _Sequence(latency_us, peak_bytes)

    def _planned_stage(self, nodes: Nodes, choice: StageChoice, peak_bytes: int) -> PlannedStage:
        sequential_us = sum(self._problem.node_costs[node].fastest.latency_us for node in nodes)
        # Which of several nodes with equal costs takes which place does not matter.
        left = list(nodes)
        lanes = []
        for name, candidate in zip(choice.costs, choice.candidates, strict=True):
            node = next(each for each in left if self._problem.nodes[each].costs == name)
            left.remove(node)
            lanes.append((PinnedConvolution(self._problem.nodes[node].name, candidate.algorithm),))
        return PlannedStage(
            lanes=tuple(lanes),
            why=f"planned: {choice.latency_us:.1f} us {choice.source.value} against "
            f"{sequential_us:.1f} us one after another",
            lane_options=_lane_options(choice),
            prediction=StagePrediction(
                latency_us=choice.latency_us,
                spread_us=choice.spread_us,
                sequential_us=sequential_us,
                source=choice.source,
                workspace_bytes=choice.workspace_bytes,
                peak_bytes=peak_bytes,
            ),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Sequence:
    latency_us: float
    peak_bytes: int


class _Memory:
    """Outputs of convolutions that are alive, by what has run."""

    def __init__(self, problem: PlanningProblem) -> None:
        self._budget = problem.memory_budget_bytes
        self._output_bytes = [costs.output_bytes for costs in problem.node_costs]
        self._readers = [0] * len(problem.nodes)
        for node, predecessors in enumerate(problem.predecessors):
            for predecessor in predecessors:
                self._readers[predecessor] |= 1 << node
        self._alive: dict[int, int] = {0: 0}

    def available_bytes(self, done: int) -> int:
        """What the budget leaves for a stage behind the nodes in `done`."""
        assert self._budget is not None
        return self._budget - self.alive_bytes(done)

    def alive_bytes(self, done: int) -> int:
        """Outputs that something reads that has not run; and those that nothing reads."""
        alive = self._alive.get(done)
        if alive is None:
            alive = sum(
                size
                for node, size in enumerate(self._output_bytes)
                if done >> node & 1 and (not self._readers[node] or self._readers[node] & ~done)
            )
            self._alive[done] = alive
        return alive

    def describe_shortage(self) -> str:
        return f"The budget is {self._budget} bytes."


def _lane_options(choice: StageChoice) -> tuple[LaneOptions, ...]:
    if not choice.priorities and not choice.sm_counts:
        return ()
    lanes = len(choice.costs)
    priorities = choice.priorities or (0,) * lanes
    sm_counts = choice.sm_counts or (0,) * lanes
    return tuple(
        LaneOptions(priority, sm_count)
        for priority, sm_count in zip(priorities, sm_counts, strict=True)
    )


def _describe(calibration: ModelCalibration) -> str:
    if not calibration.stages:
        return f"model not calibrated, trusted to {calibration.spread:.0%}"
    return (
        f"model calibrated on {calibration.stages} measured stages, factor "
        f"{calibration.factor:.2f}, trusted to {calibration.spread:.0%}"
    )
