"""Says of a plan's stages what they were chosen by: figures alone, and what other algorithms cost.

It looks at the same measurements and the same model as the search, but only near what was chosen:
all lanes with what is fastest alone, all lanes with one algorithm, and one lane with another.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from tf_interop.decide.sm_model import model_stage_us
from tf_interop.decide.stage_costs import ModelCalibration, calibrate_model, model_kernels
from tf_interop.know.occupancy import compute_occupancy
from tf_interop.know.plan import (
    Alternative,
    GraphPlan,
    LaneExplanation,
    PlannedStage,
    SmUse,
    StageExplanation,
    StagePrediction,
)
from tf_interop.know.planning_problem import (
    Candidate,
    ConvolutionCosts,
    FigureSource,
    KnownStage,
    PlanningProblem,
)

_MOST_ALTERNATIVES = 3
# Algorithms of a convolution that are looked at, those fastest alone.
_MOST_ALGORITHMS = 4

_Candidates = tuple[Candidate, ...]


def explain_plan(problem: PlanningProblem, plan: GraphPlan) -> GraphPlan:
    """The plan with an explanation for every stage of which the planner predicted something.

    Args:
        problem: what was planned.
        plan: a plan of it, each lane with one convolution.
    """
    explainer = _Explainer(problem, calibrate_model(problem))
    budget = problem.memory_budget_bytes
    return dataclasses.replace(
        plan, stages=tuple(explainer.explain(stage, budget) for stage in plan.stages)
    )


def sm_use_of(candidate: Candidate, problem: PlanningProblem) -> SmUse | None:
    """What the kernel of an algorithm that takes the most time takes of one SM, alone.

    Returns:
        None where kernels or device are not known, or the kernel fits on no SM.
    """
    kernel = max(candidate.kernels, key=lambda each: each.time_share, default=None)
    if kernel is None or problem.sm_limits is None or problem.sm_count is None:
        return None
    taken = compute_occupancy(kernel, problem.sm_limits, problem.sm_count)
    if not taken.resident_blocks:
        return None
    return SmUse(
        registers=taken.registers,
        shared_memory=taken.shared_memory,
        threads=taken.threads,
        blocks=taken.blocks,
        alu_utilization=kernel.alu_utilization,
        dram_utilization=kernel.dram_utilization,
        memory_stall=kernel.memory_stall,
    )


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
        values: list[float | None] = [getattr(use, field, None) for use in uses]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            sums[field] = math.fsum(known)
    return sums


class _Explainer:
    def __init__(self, problem: PlanningProblem, calibration: ModelCalibration) -> None:
        self._problem = problem
        self._calibration = calibration
        self._costs_of = dict(
            zip((node.name for node in problem.nodes), problem.node_costs, strict=True)
        )
        self._measured: dict[tuple[tuple[str, str], ...], list[KnownStage]] = {}
        for stage in problem.stages:
            key = _key(stage.costs, stage.algorithms)
            self._measured.setdefault(key, []).append(stage)
        # Graphs repeat their blocks.
        self._known: dict[object, StageExplanation] = {}

    def explain(self, stage: PlannedStage, budget: int | None) -> PlannedStage:
        if stage.prediction is None:
            return stage
        lanes = [self._costs_of[pinned.node] for pinned in stage.convolutions]
        chosen = tuple(
            next(each for each in costs.candidates if each.algorithm == pinned.algorithm)
            for costs, pinned in zip(lanes, stage.convolutions, strict=True)
        )
        key = (tuple(costs.name for costs in lanes), chosen, stage.prediction)
        if key not in self._known:
            self._known[key] = StageExplanation(
                lanes=tuple(map(self._explain_lane, lanes, chosen)),
                alternatives=self._alternatives(lanes, chosen, stage.prediction, budget),
            )
        return dataclasses.replace(stage, explanation=self._known[key])

    def _explain_lane(self, costs: ConvolutionCosts, chosen: Candidate) -> LaneExplanation:
        return LaneExplanation(
            alone_us=chosen.latency_us,
            workspace_bytes=chosen.workspace_bytes,
            fastest_algorithm=costs.fastest.algorithm,
            fastest_us=costs.fastest.latency_us,
            sm_use=sm_use_of(chosen, self._problem),
        )

    def _alternatives(
        self,
        lanes: Sequence[ConvolutionCosts],
        chosen: _Candidates,
        prediction: StagePrediction,
        budget: int | None,
    ) -> tuple[Alternative, ...]:
        found = []
        for candidates in _others(lanes, chosen):
            latency = self._latency(lanes, candidates)
            if latency is None:
                continue
            latency_us, source = latency
            workspace_bytes = sum(each.workspace_bytes for each in candidates)
            found.append(
                Alternative(
                    algorithms=tuple(each.algorithm for each in candidates),
                    latency_us=latency_us,
                    source=source,
                    workspace_bytes=workspace_bytes,
                    why_not=self._why_not(
                        chosen, candidates, prediction, budget, latency_us, workspace_bytes
                    ),
                )
            )
        # What is fastest alone comes first of all: it is what one would try without a profile.
        fastest_alone = tuple(costs.fastest.algorithm for costs in lanes)
        found.sort(key=lambda each: (each.algorithms != fastest_alone, each.latency_us))
        kept = found[:_MOST_ALTERNATIVES]
        return tuple(sorted(kept, key=lambda each: each.latency_us))

    def _latency(
        self, lanes: Sequence[ConvolutionCosts], candidates: _Candidates
    ) -> tuple[float, FigureSource] | None:
        """Of a stage with these algorithms; None where that is neither measured nor modelled."""
        if len(candidates) == 1:
            return candidates[0].latency_us, FigureSource.MEASURED
        key = _key(
            [costs.name for costs in lanes], [candidate.algorithm for candidate in candidates]
        )
        measured = self._measured.get(key)
        if measured is not None:
            alone_us = sum(costs.fastest.latency_us for costs in lanes)
            return min(_as_sums_go(each, alone_us) for each in measured), FigureSource.MEASURED
        limits, sm_count = self._problem.sm_limits, self._problem.sm_count
        if limits is None or sm_count is None:
            return None
        kernels = [model_kernels(candidate, limits) for candidate in candidates]
        if not all(kernels):
            return None
        # The longest first, as the search does.
        kernels.sort(key=lambda lane: -sum(kernel.latency_us for kernel in lane))
        try:
            modelled_us = min(
                model_stage_us(order, limits, sm_count) for order in (kernels, kernels[::-1])
            )
        except ValueError:
            # A kernel that fits on no SM as far as these limits go.
            return None
        return modelled_us * self._calibration.factor, FigureSource.MODELLED

    def _why_not(
        self,
        chosen: _Candidates,
        candidates: _Candidates,
        prediction: StagePrediction,
        budget: int | None,
        latency_us: float,
        workspace_bytes: int,
    ) -> str:
        others_bytes = prediction.peak_bytes - prediction.workspace_bytes
        if budget is not None and others_bytes + workspace_bytes > budget:
            return (
                f"does not fit: needs {workspace_bytes} bytes of workspace where "
                f"{max(budget - others_bytes, 0)} are left"
            )
        if latency_us >= prediction.latency_us:
            return "; ".join(filter(None, ("not faster", self._crowding(chosen, candidates))))
        if latency_us >= prediction.sequential_us - prediction.spread_us:
            return "too close to one after another for how far the figures may be off"
        return "not among the combinations that the search looked at, or too uncertain"

    def _crowding(self, chosen: _Candidates, candidates: _Candidates) -> str:
        """What it would take more of than there is, and more than what was chosen takes."""
        ours, theirs = (
            sum_of_uses([sm_use_of(each, self._problem) for each in lanes])
            for lanes in (chosen, candidates)
        )
        crowded = [
            f"{100 * theirs[field]:.0f} % of the {name} (chosen: {100 * ours[field]:.0f} %)"
            for field, name in SHARED_RESOURCES.items()
            if field in ours and theirs.get(field, 0.0) > max(1.0, ours[field])
        ]
        return f"its lanes together ask for {', '.join(crowded)}" if crowded else ""


def _others(lanes: Sequence[ConvolutionCosts], chosen: _Candidates) -> Iterator[_Candidates]:
    """Other combinations, each once; with equal convolutions those that differ in order alone."""
    choosable = [_fastest_of(costs) for costs in lanes]
    seen = {_combination(lanes, chosen)}
    algorithms = dict.fromkeys(each.algorithm for each in (*chosen, *itertools.chain(*choosable)))
    combinations = [
        tuple(costs.fastest for costs in lanes),
        *(
            tuple(each for each in same if each is not None)
            for algorithm in algorithms
            if None not in (same := [_named(costs, algorithm) for costs in lanes])
        ),
        *(
            (*chosen[:lane], candidate, *chosen[lane + 1 :])
            for lane, candidates in enumerate(choosable)
            for candidate in candidates
        ),
    ]
    for each in combinations:
        key = _combination(lanes, each)
        if key not in seen:
            seen.add(key)
            yield each


def _fastest_of(costs: ConvolutionCosts) -> list[Candidate]:
    in_order = sorted(
        costs.candidates,
        key=lambda each: (each.latency_us, each.workspace_bytes, each.algorithm or ""),
    )
    return in_order[:_MOST_ALGORITHMS]


def _named(costs: ConvolutionCosts, algorithm: str | None) -> Candidate | None:
    return next((each for each in costs.candidates if each.algorithm == algorithm), None)


def _combination(lanes: Sequence[ConvolutionCosts], candidates: _Candidates) -> object:
    return _key([costs.name for costs in lanes], [each.algorithm for each in candidates])


def _key(costs: Sequence[str], algorithms: Sequence[str | None]) -> tuple[tuple[str, str], ...]:
    """Convolutions with their algorithms, in whatever order."""
    named = [algorithm or "" for algorithm in algorithms]
    return tuple(sorted(zip(costs, named, strict=True)))


def _as_sums_go(stage: KnownStage, alone_us: float) -> float:
    """As in `StageCosts`: what the convolutions take alone, less the share that the stage saved."""
    scale = 1.0 if stage.sequential_us is None else alone_us / stage.sequential_us
    return stage.latency_us * scale
