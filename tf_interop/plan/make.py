"""Makes a plan: the stages with the least predicted time whose memory fits.

Dynamic programming finds the best stages exactly where the graph is narrow enough, as inference
graphs are; in parts that are not, as the backward half of a training graph, a bounded search goes
from the front, and what it leaves apart is joined afterwards. Each chooses the algorithms with the
stages, by the memory that is left beside what is alive.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tf_interop.errors import PlanError
from tf_interop.plan.cost.calibration import ModelCalibration, calibrate_model
from tf_interop.plan.cost.stage_costs import StageChoice, StageCosts
from tf_interop.plan.lane_places import find_places
from tf_interop.plan.prediction_check import check_prediction
from tf_interop.plan.problem import PlanningProblem
from tf_interop.plan.problem_file import check_problem
from tf_interop.plan.search.blocks import BlockSearchResult, search_blocks
from tf_interop.plan.search.interface import (
    Lanes,
    OnProgress,
    SearchError,
    SearchResult,
    StageOption,
)
from tf_interop.plan.types import (
    AloneConvolution,
    GraphPlan,
    GraphPrediction,
    Lane,
    LaneOptions,
    PinnedConvolution,
    PlannedStage,
    StagePrediction,
)

Nodes = tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PlanOptions:
    """How far to search.

    Attributes:
        max_lanes: the most convolutions of a stage.
        max_transitions: a part of the graph of which the exact search would look at more is
            searched within bounds.
        width: of the bounded search.
        max_orders: changes to what the bounded search found for which an order is looked for, in
            each part of the graph.
        max_modelled: combinations of algorithms that are modelled, at most; measured ones do not
            count.
    """

    max_lanes: int = 4
    max_transitions: int = 500_000
    width: int = 32
    max_orders: int = 500
    max_modelled: int = 5_000


def make_plan(
    problem: PlanningProblem,
    options: PlanOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> GraphPlan:
    """Plans one graph for one batch size.

    Args:
        problem: the convolutions, what they cost, and the memory there is.
        options: how far to search.
        on_progress: told how far the search is. Where a part of the graph turns out to be too wide
            for the exact search, it begins that part again.

    Returns:
        The stages of two or more convolutions, in the order in which they are expected to run, and
        those of a single one that is not to run with its fastest algorithm, for that does not fit
        into the memory. Convolutions in none of them run one after another. Equal problems give
        equal plans.

    Raises:
        PlanError: the problem is not legal, or a convolution does not fit into the memory; names
            it and what would be needed.
    """
    try:
        check_problem(problem)
    except ValueError as error:
        raise PlanError(f"{error}. Correct the problem.") from error
    plan = _Planner(problem, options or PlanOptions(), on_progress).plan()
    check_prediction(plan, problem)
    return plan


class _Planner:
    def __init__(
        self, problem: PlanningProblem, options: PlanOptions, on_progress: OnProgress | None
    ) -> None:
        self._problem = problem
        self._options = options
        self._on_progress = on_progress
        self._calibration = calibrate_model(problem)
        self._costs = StageCosts(problem, self._calibration, max_modelled=options.max_modelled)
        self._memory = _Memory(problem)

    def plan(self) -> GraphPlan:
        found, how = self._search()
        stages: list[PlannedStage] = []
        alone: list[AloneConvolution] = []
        latency_us = 0.0
        peak_bytes = done = 0
        for nodes, choice in self._steps_of(found):
            peak = self._memory.alive_bytes(done) + self._memory_bytes(nodes, choice)
            if len(nodes) > 1 or self._must_be_pinned(nodes[0], choice):
                stages.append(self._planned_stage(nodes, choice, peak))
            else:
                alone.append(self._alone_convolution(nodes[0], choice, peak, len(stages)))
            latency_us += choice.latency_us
            peak_bytes = max(peak_bytes, peak)
            done |= sum(1 << node for node in nodes)
        sequential = self._one_after_another()
        return GraphPlan(
            fingerprint=self._problem.fingerprint,
            convolution_count=max(self._problem.convolution_count, len(self._problem.nodes)),
            stages=tuple(stages),
            batch_size=self._problem.batch_size,
            prediction=GraphPrediction(
                latency_us=latency_us,
                sequential_us=sequential.latency_us,
                peak_bytes=peak_bytes,
                sequential_peak_bytes=sequential.peak_bytes,
                memory_budget_bytes=self._problem.memory_budget_bytes,
                search=self._describe(found, how),
            ),
            alone=tuple(alone),
        )

    def _steps_of(self, found: SearchResult) -> list[tuple[Nodes, StageChoice]]:
        """What runs, in order.

        A plan without stages leaves the graph as it is. It is one after another then, and in that
        order, where its memory fits: not in the order in which the search came by.
        """
        steps = []
        for lanes, option in zip(found.stages, found.options, strict=True):
            nodes = _nodes_of(lanes)
            steps.append((nodes, self._choices(nodes)[option]))
        if any(len(nodes) > 1 or self._must_be_pinned(nodes[0], choice) for nodes, choice in steps):
            return steps
        in_own_order = sorted(steps, key=lambda step: step[0])
        budget = self._problem.memory_budget_bytes
        if budget is None or self._peak_bytes(in_own_order) <= budget:
            return in_own_order
        return steps

    def _peak_bytes(self, steps: Sequence[tuple[Nodes, StageChoice]]) -> int:
        peak_bytes = done = 0
        for nodes, choice in steps:
            peak = self._memory.alive_bytes(done) + self._memory_bytes(nodes, choice)
            peak_bytes = max(peak_bytes, peak)
            done |= sum(1 << node for node in nodes)
        return peak_bytes

    def _search(self) -> tuple[SearchResult, str]:
        available = (
            None if self._problem.memory_budget_bytes is None else self._memory.available_bytes
        )
        try:
            result = search_blocks(
                self._problem.predecessors,
                self._stage_options,
                available_bytes=available,
                max_lanes=self._options.max_lanes,
                max_transitions=self._options.max_transitions,
                width=self._options.width,
                max_orders=self._options.max_orders,
                on_progress=self._on_progress,
            )
        except SearchError as error:
            raise PlanError(self._describe_shortage()) from error
        return result.found, self._describe_search(result)

    def _describe_search(self, result: BlockSearchResult) -> str:
        lanes = f"for stages of up to {self._options.max_lanes} convolutions"
        if result.exact_nodes == len(self._problem.nodes):
            return f"exact {lanes}"
        bounds = f"bounded, width {self._options.width}, then joined {result.changes}"
        if not result.is_joining_complete:
            bounds += " until a bound was reached"
        bounds += ","
        if not result.exact_nodes:
            return f"{bounds} {lanes}"
        convolutions = f"{result.exact_nodes} of {len(self._problem.nodes)} convolutions"
        return f"partly exact ({convolutions}), else {bounds} {lanes}"

    def _stage_options(self, nodes: Nodes) -> Sequence[StageOption]:
        return [
            StageOption(choice.latency_us, self._memory_bytes(nodes, choice), choice.spread_us)
            for choice in self._choices(nodes)
        ]

    def _choices(self, nodes: Nodes) -> tuple[StageChoice, ...]:
        if len({self._problem.nodes[node].group for node in nodes}) > 1:
            return ()
        of_nodes = [self._problem.nodes[node] for node in nodes]
        return self._costs.choices(
            [node.costs for node in of_nodes], [node.merge_key for node in of_nodes]
        )

    def _memory_bytes(self, nodes: Nodes, choice: StageChoice) -> int:
        outputs = sum(self._problem.node_costs[node].output_bytes for node in nodes)
        return outputs + choice.workspace_bytes

    def _one_after_another(self) -> _Sequence:
        """All nodes in their order, each with the fastest algorithm that fits.

        Where none fits in this order, the one that needs least.
        """
        latency_us = 0.0
        peak_bytes = done = 0
        budget = self._problem.memory_budget_bytes
        for node in range(len(self._problem.nodes)):
            alive = self._memory.alive_bytes(done)
            for choice in self._choices((node,)):
                needed = alive + self._memory_bytes((node,), choice)
                if budget is None or needed <= budget:
                    break
            latency_us += choice.latency_us
            peak_bytes = max(peak_bytes, needed)
            done |= 1 << node
        return _Sequence(latency_us, peak_bytes)

    def _describe_shortage(self) -> str:
        """What one after another would need, each convolution with its least workspace."""
        most = largest = done = 0
        for node in range(len(self._problem.nodes)):
            least = self._choices((node,))[-1]
            needed = self._memory.alive_bytes(done) + self._memory_bytes((node,), least)
            if needed > most:
                most, largest = needed, node
            done |= 1 << node
        costs = self._problem.node_costs[largest]
        workspace_bytes = self._choices((largest,))[-1].workspace_bytes
        alive = most - costs.output_bytes - workspace_bytes
        return (
            f"Expected memory for convolution '{self._problem.nodes[largest].name}', got a budget "
            f"of {self._problem.memory_budget_bytes} bytes: its output takes {costs.output_bytes}, "
            f"its workspace at least {workspace_bytes}, and {alive} are alive before it. Give "
            f"{most} bytes, which are enough for the whole graph, or measure algorithms that need "
            "less."
        )

    def _must_be_pinned(self, node: int, choice: StageChoice) -> bool:
        """Whether a convolution alone needs a stage for its algorithm: the fastest does not fit."""
        (algorithm,) = choice.algorithms
        fastest = self._problem.node_costs[node].fastest
        return algorithm is not None and algorithm != fastest.algorithm

    def _alone_convolution(
        self, node: int, choice: StageChoice, peak_bytes: int, before_stage: int
    ) -> AloneConvolution:
        return AloneConvolution(
            node=self._problem.nodes[node].name,
            algorithm=choice.algorithms[0],
            latency_us=choice.latency_us,
            peak_bytes=peak_bytes,
            before_stage=before_stage,
        )

    def _planned_stage(self, nodes: Nodes, choice: StageChoice, peak_bytes: int) -> PlannedStage:
        sequential_us = sum(self._problem.node_costs[node].fastest.latency_us for node in nodes)
        return PlannedStage(
            lanes=self._lanes(nodes, choice),
            why=self._why(nodes, choice, sequential_us),
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

    def _lanes(self, nodes: Nodes, choice: StageChoice) -> tuple[Lane, ...]:
        of_nodes = [self._problem.nodes[node] for node in nodes]
        lane_of = choice.lanes or tuple(range(len(choice.costs)))
        places = find_places(
            choice.costs,
            lane_of,
            choice.merged,
            [(node.costs, node.merge_key) for node in of_nodes],
        )
        assert places is not None
        lanes: list[list[PinnedConvolution]] = [[] for _ in range(max(lane_of) + 1)]
        for lane, position, algorithm in zip(lane_of, places, choice.algorithms, strict=True):
            lanes[lane].append(PinnedConvolution(of_nodes[position].name, algorithm))
        return tuple(map(tuple, lanes))

    def _why(self, nodes: Nodes, choice: StageChoice, sequential_us: float) -> str:
        if len(nodes) > 1:
            merged = ", merged into a wider convolution" if any(choice.merged) else ""
            return (
                f"planned{merged}: {choice.latency_us:.1f} us {choice.source.value} against "
                f"{sequential_us:.1f} us one after another"
            )
        fastest = self._problem.node_costs[nodes[0]].fastest
        return (
            f"pinned for its memory: {choice.latency_us:.1f} us with {choice.workspace_bytes} "
            f"bytes of workspace; {fastest.algorithm} takes {fastest.latency_us:.1f} us with "
            f"{fastest.workspace_bytes}"
        )

    def _describe(self, found: SearchResult, how: str) -> str:
        return "; ".join(
            (
                how,
                f"{found.states} states, {found.transitions} transitions",
                self._costs.describe(),
                _describe_calibration(self._calibration),
            )
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
            waiting = ~done
            alive = sum(
                size
                for node, (size, readers) in enumerate(
                    zip(self._output_bytes, self._readers, strict=True)
                )
                if done >> node & 1 and (not readers or readers & waiting)
            )
            self._alive[done] = alive
        return alive


def _nodes_of(lanes: Lanes) -> Nodes:
    return tuple(sorted(node for lane in lanes for node in lane))


def _lane_options(choice: StageChoice) -> tuple[LaneOptions, ...]:
    if not (choice.priorities or choice.sm_counts or any(choice.merged)):
        return ()
    lanes = max(choice.lanes) + 1 if choice.lanes else len(choice.costs)
    return tuple(
        map(
            LaneOptions,
            choice.priorities or (0,) * lanes,
            choice.sm_counts or (0,) * lanes,
            choice.merged or (False,) * lanes,
        )
    )


def _describe_calibration(calibration: ModelCalibration) -> str:
    if not calibration.stages:
        return f"model not calibrated, trusted to {calibration.spread:.0%}"
    return (
        f"model calibrated on {calibration.stages} measured stages, factor "
        f"{calibration.factor:.2f}, trusted to {calibration.spread:.0%}"
    )
