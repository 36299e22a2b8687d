"""Says of a plan's stages what they were chosen by: values alone, and what other algorithms cost.

It looks at the same measurements and the same model as the search, but only near what was chosen:
all steps with what is fastest alone, all with one algorithm, one step with another, and what was
measured merged.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from tf_interop.planning.cost.calibration import ModelCalibration, calibrate_model, model_lanes
from tf_interop.planning.cost.stage_costs import StageCosts, algorithms_of
from tf_interop.planning.explain_rejected import explain_rejected
from tf_interop.planning.make import PlanOptions
from tf_interop.planning.problem import (
    Candidate,
    ConvolutionCosts,
    MeasuredStage,
    PlanningProblem,
    ValueSource,
)
from tf_interop.planning.types import (
    Alternative,
    GraphPlan,
    LaneExplanation,
    PlannedStage,
    StageExplanation,
    StagePrediction,
)
from tf_interop.profile.occupancy import SmUse, compute_sm_use
from tf_interop.stage import Lane, Stage

_MOST_ALTERNATIVES = 3
# Algorithms of a convolution that are looked at, those fastest alone.
_MOST_ALGORITHMS = 4
# Sets of convolutions that are modelled to say why they are no stage.
_MOST_MODELLED = 400

_NOT_FASTER = "not faster"


def explain_plan(
    problem: PlanningProblem, plan: GraphPlan, options: PlanOptions | None = None
) -> GraphPlan:
    """The plan with an explanation for every stage of which the planner predicted something.

    Where it predicted the whole graph, the plan also says which stages it does not have.

    Args:
        problem: what was planned.
        plan: a plan of it.
        options: that it was made with.
    """
    calibration = calibrate_model(problem)
    costs = StageCosts(problem, calibration, max_modelled=_MOST_MODELLED)
    explainer = _Explainer(problem, calibration, costs)
    plan = dataclasses.replace(plan, stages=tuple(map(explainer.explain, plan.stages)))
    if plan.prediction is None:
        return plan
    max_lanes = (options or PlanOptions()).max_lanes
    return explain_rejected(problem, plan, costs, calibration, max_lanes=max_lanes)


def sm_use_of(candidates: Sequence[Candidate], problem: PlanningProblem) -> SmUse | None:
    """What a lane takes of one SM, alone: the kernel of its algorithm that takes the most time.

    Returns:
        None where the lane has several steps, kernels or device are not known, or the kernel fits
        on no SM.
    """
    kernels = candidates[0].kernels if len(candidates) == 1 else ()
    kernel = max(kernels, key=lambda each: each.time_share, default=None)
    if kernel is None or problem.sm_limits is None or problem.sm_count is None:
        return None
    use = compute_sm_use(kernel, problem.sm_limits, problem.sm_count)
    return use if use.blocks else None


SHARED_RESOURCES = {
    "registers": "registers",
    "shared_memory": "shared memory",
    "threads": "thread slots",
    "blocks": "block slots",
    "alu_utilization": "ALU time",
    "dram_utilization": "DRAM throughput",
}
"""What kernels that run together share, by field of SmUse."""


def sum_of_uses(uses: Sequence[SmUse | None]) -> dict[str, float]:
    """What lanes would take of an SM together; a field is left out where one of them is unknown."""
    sums: dict[str, float] = {}
    for field in SHARED_RESOURCES:
        values = [getattr(use, field, None) for use in uses]
        if None not in values:
            sums[field] = math.fsum(value for value in values if value is not None)
    return sums


class _Explainer:
    def __init__(
        self, problem: PlanningProblem, calibration: ModelCalibration, costs: StageCosts
    ) -> None:
        self._problem = problem
        self._calibration = calibration
        self._costs = costs
        self._place = {node.name: place for place, node in enumerate(problem.nodes)}
        self._measured: dict[object, list[MeasuredStage]] = collections.defaultdict(list)
        self._merged: dict[object, list[MeasuredStage]] = collections.defaultdict(list)
        for measured in problem.stages:
            if _has_merged_lane(measured.stage):
                self._merged[tuple(sorted(measured.stage.operations))].append(measured)
            else:
                self._measured[algorithms_of(measured.stage)].append(measured)
        # Graphs repeat their blocks.
        self._known: dict[object, tuple[tuple[str, ...], StageExplanation]] = {}

    def explain(self, planned: PlannedStage) -> PlannedStage:
        prediction, stage = planned.prediction, planned.stage
        if prediction is None:
            return planned
        numbers: dict[str | None, int] = {}
        merge_keys = [self._problem.nodes[self._place[node]].merge_key for node in stage.operations]
        key = (
            self._of_costs(stage),
            tuple(each and numbers.setdefault(each, len(numbers)) for each in merge_keys),
            prediction,
        )
        if key not in self._known:
            self._known[key] = stage.operations, self._explain(stage, prediction)
        nodes, explanation = self._known[key]
        name_of = dict(zip(nodes, stage.operations, strict=True))
        alternatives = tuple(
            dataclasses.replace(each, stage=each.stage.map(name_of.__getitem__))
            for each in explanation.alternatives
        )
        return dataclasses.replace(
            planned, explanation=dataclasses.replace(explanation, alternatives=alternatives)
        )

    def _explain(self, stage: Stage[str], prediction: StagePrediction) -> StageExplanation:
        others = [
            *self._with_other_algorithms(stage, prediction),
            *self._measured_merged(stage, prediction),
        ]
        fastest = tuple(self._costs_of(node).fastest.algorithm for node in stage.operations)
        return StageExplanation(
            lanes=tuple(map(self._explain_lane, stage.lanes)),
            alternatives=_most_telling(others, fastest),
        )

    def _costs_of(self, node: str) -> ConvolutionCosts:
        return self._problem.node_costs[self._place[node]]

    def _of_costs(self, stage: Stage[str]) -> Stage[str]:
        return stage.map(lambda node: self._costs_of(node).name)

    def _explain_lane(self, lane: Lane[str]) -> LaneExplanation:
        fastest = [self._costs_of(node).fastest for node in lane.operations]
        # The wider convolution of a merged lane is none of the candidates.
        pinned = fastest if lane.merged else self._candidates(lane)
        return LaneExplanation(
            alone_us=sum(each.latency_us for each in pinned),
            workspace_bytes=max(each.workspace_bytes for each in pinned),
            fastest_algorithm=fastest[0].algorithm if len(fastest) == 1 else None,
            fastest_us=sum(each.latency_us for each in fastest),
            sm_use=sm_use_of(pinned, self._problem),
        )

    def _candidates(self, lane: Lane[str]) -> list[Candidate]:
        found = [self._costs_of(step.operation).candidate(step.algorithm) for step in lane.steps]
        return [each for each in found if each is not None]

    def _with_other_algorithms(
        self, stage: Stage[str], prediction: StagePrediction
    ) -> Iterator[Alternative]:
        """What is merged is apart in these, and no lane asks for anything."""
        is_merged = _has_merged_lane(stage)
        apart = Stage(
            tuple(
                Lane(steps)
                for lane in stage.lanes
                for steps in ([(step,) for step in lane.steps] if lane.merged else [lane.steps])
            )
        )
        chosen = [] if is_merged else [self._candidates(lane) for lane in stage.lanes]
        for other in self._others(apart, is_chosen=not is_merged):
            lanes = [self._candidates(lane) for lane in other.lanes]
            latency = self._latency(other, lanes)
            if latency is None:
                continue
            latency_us, source = latency
            workspace_bytes = sum(max(each.workspace_bytes for each in lane) for lane in lanes)
            why_not = self._why_not(latency_us, workspace_bytes, prediction.spread_us, prediction)
            if why_not == _NOT_FASTER and chosen:
                why_not += self._crowding(chosen, lanes)
            yield Alternative(other, latency_us, source, workspace_bytes, why_not)

    def _others(self, stage: Stage[str], *, is_chosen: bool) -> Iterator[Stage[str]]:
        """Stages with other algorithms, each once; of equal convolutions in one order alone."""
        costs = [self._costs_of(node) for node in stage.operations]
        looked_at = [
            [each.algorithm for each in its.fastest_first[:_MOST_ALGORITHMS]] for its in costs
        ]
        chosen = [step.algorithm for step in stage.steps] if is_chosen else []
        combinations = [[its.fastest.algorithm for its in costs]]
        combinations += [
            [algorithm] * len(costs)
            for algorithm in dict.fromkeys(itertools.chain(chosen, *looked_at))
            if all(its.candidate(algorithm) for its in costs)
        ]
        combinations += [
            [*chosen[:step], algorithm, *chosen[step + 1 :]]
            for step, algorithms in enumerate(looked_at if is_chosen else ())
            for algorithm in algorithms
        ]
        seen = {algorithms_of(self._of_costs(stage))} if is_chosen else set()
        for algorithms in combinations:
            other = stage.with_algorithms(algorithms)
            key = algorithms_of(self._of_costs(other))
            if key not in seen:
                seen.add(key)
                yield other

    def _measured_merged(
        self, stage: Stage[str], prediction: StagePrediction
    ) -> Iterator[Alternative]:
        lanes = tuple(
            tuple(self._place[node] for node in steps)
            for lane in stage.lanes
            for steps in (zip(lane.operations) if lane.merged else [lane.operations])
        )
        for measured in self._merged[tuple(sorted(self._of_costs(stage).operations))]:
            placed = self._costs.place(measured.stage, lanes)
            if placed is None:
                continue
            other = placed.map(lambda place: self._problem.nodes[place].name)
            if algorithms_of(other) == algorithms_of(stage):
                continue
            latency_us = self._as_sums_go(measured)
            spread_us = measured.spread_us * latency_us / measured.latency_us
            why_not = self._why_not(latency_us, measured.workspace_bytes, spread_us, prediction)
            yield Alternative(
                other, latency_us, ValueSource.MEASURED, measured.workspace_bytes, why_not
            )

    def _latency(
        self, stage: Stage[str], lanes: Sequence[Sequence[Candidate]]
    ) -> tuple[float, ValueSource] | None:
        """Of a stage with these candidates; None where that is neither measured nor modelled."""
        if len(stage.steps) == 1:
            return lanes[0][0].latency_us, ValueSource.MEASURED
        measured = self._measured[algorithms_of(self._of_costs(stage))]
        if measured:
            return min(map(self._as_sums_go, measured)), ValueSource.MEASURED
        modelled_us = model_lanes(self._problem, lanes, self._calibration)
        return None if modelled_us is None else (modelled_us, ValueSource.MODELLED)

    def _as_sums_go(self, measured: MeasuredStage) -> float:
        """As in `StageCosts`: what its convolutions take alone, less the share that it saved."""
        if measured.sequential_us is None:
            return measured.latency_us
        costs = (self._problem.costs_by_name[name] for name in measured.stage.operations)
        alone_us = sum(each.fastest.latency_us for each in costs)
        return measured.latency_us * alone_us / measured.sequential_us

    def _why_not(
        self,
        latency_us: float,
        workspace_bytes: int,
        spread_us: float,
        prediction: StagePrediction,
    ) -> str:
        budget = self._problem.memory_budget_bytes
        others_bytes = prediction.peak_bytes - prediction.workspace_bytes
        if budget is not None and others_bytes + workspace_bytes > budget:
            return (
                f"does not fit: needs {workspace_bytes} bytes of workspace where "
                f"{max(budget - others_bytes, 0)} are left"
            )
        if latency_us >= prediction.latency_us:
            return _NOT_FASTER
        if latency_us >= prediction.sequential_us - spread_us:
            return "too close to one after another for how far the values may be off"
        return "not among the combinations that the search looked at, or too uncertain"

    def _crowding(
        self, chosen: Sequence[Sequence[Candidate]], lanes: Sequence[Sequence[Candidate]]
    ) -> str:
        """What lanes would take more of than there is, and more than what was chosen takes."""
        ours, theirs = (
            sum_of_uses([sm_use_of(lane, self._problem) for lane in each])
            for each in (chosen, lanes)
        )
        crowded = [
            f"{100 * theirs[field]:.0f} % of the {name} (chosen: {100 * ours[field]:.0f} %)"
            for field, name in SHARED_RESOURCES.items()
            if field in ours and theirs.get(field, 0.0) > max(1.0, ours[field])
        ]
        return f"; its lanes together ask for {', '.join(crowded)}" if crowded else ""


def _has_merged_lane(stage: Stage[str]) -> bool:
    return any(lane.merged for lane in stage.lanes)


def _most_telling(
    alternatives: Sequence[Alternative], fastest: Sequence[str | None]
) -> tuple[Alternative, ...]:
    """Some of them, fastest first.

    What is fastest alone is one: it is what one would try without a profile. So is the fastest that
    is merged.
    """
    by_latency = sorted(alternatives, key=lambda each: each.latency_us)
    merged = [each for each in by_latency if _has_merged_lane(each.stage)][:1]
    by_latency.sort(
        key=lambda each: (
            _has_merged_lane(each.stage)
            or [step.algorithm for step in each.stage.steps] != list(fastest),
            each not in merged,
        )
    )
    return tuple(sorted(by_latency[:_MOST_ALTERNATIVES], key=lambda each: each.latency_us))
