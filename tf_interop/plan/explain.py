"""Says of a plan's stages what they were chosen by: figures alone, and what other algorithms cost.

It looks at the same measurements and the same model as the search, but only near what was chosen:
all lanes with what is fastest alone, all lanes with one algorithm, one lane with another, and what
was measured merged.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from tf_interop.plan.cost.calibration import (
    ModelCalibration,
    calibrate_model,
    model_candidates_us,
)
from tf_interop.plan.explain_unstaged import MissedStages, find_missed
from tf_interop.plan.lane_places import find_places
from tf_interop.plan.make import PlanOptions
from tf_interop.plan.problem import (
    Candidate,
    ConvolutionCosts,
    FigureSource,
    KnownStage,
    PlanningProblem,
)
from tf_interop.plan.types import (
    Alternative,
    GraphPlan,
    LaneExplanation,
    PinnedConvolution,
    PlannedStage,
    SmUse,
    StageExplanation,
    StagePrediction,
)
from tf_interop.profile.occupancy import compute_occupancy

_MOST_ALTERNATIVES = 3
# Algorithms of a convolution that are looked at, those fastest alone.
_MOST_ALGORITHMS = 4

_NOT_FASTER = "not faster"

_Candidates = tuple[Candidate, ...]


def explain_plan(
    problem: PlanningProblem, plan: GraphPlan, options: PlanOptions | None = None
) -> GraphPlan:
    """The plan with an explanation for every stage of which the planner predicted something.

    Where it predicted the whole graph, the plan also says which stages it does not have.

    Args:
        problem: what was planned.
        plan: a plan of it, each lane with one convolution or merged.
        options: that it was made with.
    """
    calibration = calibrate_model(problem)
    explainer = _Explainer(problem, calibration)
    budget = problem.memory_budget_bytes
    missed = MissedStages()
    if plan.prediction is not None:
        max_lanes = (options or PlanOptions()).max_lanes
        missed = find_missed(problem, plan, calibration, max_lanes=max_lanes)
    return dataclasses.replace(
        plan,
        stages=tuple(explainer.explain(stage, budget) for stage in plan.stages),
        missed=missed.stages,
        why_no_stage=missed.why_no_stage,
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
        self._merge_keys = {node.name: node.merge_key for node in problem.nodes}
        self._measured: dict[tuple[tuple[str, str], ...], list[KnownStage]] = {}
        self._merged: dict[tuple[str, ...], list[KnownStage]] = {}
        for stage in problem.stages:
            if stage.merged:
                self._merged.setdefault(tuple(sorted(stage.costs)), []).append(stage)
            else:
                key = _key(stage.costs, stage.algorithms)
                self._measured.setdefault(key, []).append(stage)
        # Graphs repeat their blocks.
        self._known: dict[object, StageExplanation] = {}

    def explain(self, stage: PlannedStage, budget: int | None) -> PlannedStage:
        if stage.prediction is None:
            return stage
        chosen = self._chosen_of(stage)
        key = chosen, stage.prediction
        if key not in self._known:
            lanes = [tuple(self._costs_of[pinned.node] for pinned in lane) for lane in stage.lanes]
            alternatives = [
                *self._alternatives(chosen, stage.prediction, budget),
                *self._merged_alternatives(chosen, stage.prediction, budget),
            ]
            self._known[key] = StageExplanation(
                lanes=tuple(map(self._explain_lane, lanes, stage.lanes)),
                alternatives=_most_telling(alternatives, chosen),
            )
        return dataclasses.replace(stage, explanation=self._known[key])

    def _chosen_of(self, stage: PlannedStage) -> _Chosen:
        pinned = stage.convolutions
        numbers: dict[str, int] = {}
        return _Chosen(
            costs=tuple(self._costs_of[each.node] for each in pinned),
            merge_keys=tuple(
                None if key is None else str(numbers.setdefault(key, len(numbers)))
                for key in (self._merge_keys[each.node] for each in pinned)
            ),
            algorithms=tuple(each.algorithm for each in pinned),
            lanes=tuple(number for number, lane in enumerate(stage.lanes) for _ in lane),
        )

    def _explain_lane(
        self, lane: Sequence[ConvolutionCosts], pinned: Sequence[PinnedConvolution]
    ) -> LaneExplanation:
        if len(lane) > 1:
            alone_us = sum(costs.fastest.latency_us for costs in lane)
            return LaneExplanation(
                alone_us=alone_us,
                workspace_bytes=max(costs.fastest.workspace_bytes for costs in lane),
                fastest_algorithm=None,
                fastest_us=alone_us,
            )
        (costs,) = lane
        chosen = _named(costs, pinned[0].algorithm)
        assert chosen is not None
        return LaneExplanation(
            alone_us=chosen.latency_us,
            workspace_bytes=chosen.workspace_bytes,
            fastest_algorithm=costs.fastest.algorithm,
            fastest_us=costs.fastest.latency_us,
            sm_use=sm_use_of(chosen, self._problem),
        )

    def _alternatives(
        self, chosen: _Chosen, prediction: StagePrediction, budget: int | None
    ) -> Iterator[Alternative]:
        """Other algorithms, each convolution on a lane of its own."""
        for candidates in _others(chosen.costs, chosen.candidates):
            latency = self._latency(chosen.costs, candidates)
            if latency is None:
                continue
            latency_us, source = latency
            workspace_bytes = sum(each.workspace_bytes for each in candidates)
            why_not = _why_not(
                latency_us, workspace_bytes, prediction.spread_us, prediction, budget
            )
            if why_not == _NOT_FASTER and chosen.candidates:
                crowding = self._crowding(chosen.candidates, candidates)
                why_not = "; ".join(filter(None, (why_not, crowding)))
            yield Alternative(
                algorithms=tuple(each.algorithm for each in candidates),
                latency_us=latency_us,
                source=source,
                workspace_bytes=workspace_bytes,
                why_not=why_not,
            )

    def _merged_alternatives(
        self, chosen: _Chosen, prediction: StagePrediction, budget: int | None
    ) -> Iterator[Alternative]:
        """What was measured with some of the convolutions merged."""
        names = [costs.name for costs in chosen.costs]
        offered = list(zip(names, chosen.merge_keys, strict=True))
        for stage in self._merged.get(tuple(sorted(names)), ()):
            places = find_places(stage.costs, stage.lanes, stage.merged, offered)
            if places is None:
                continue
            in_order = sorted(range(len(places)), key=places.__getitem__)
            numbers: dict[int, int] = {}
            lanes = tuple(
                numbers.setdefault(stage.lanes[place], len(numbers)) for place in in_order
            )
            algorithms = tuple(stage.algorithms[place] for place in in_order)
            if (algorithms, lanes) == (chosen.algorithms, chosen.lanes):
                continue
            alone_us = sum(costs.fastest.latency_us for costs in chosen.costs)
            latency_us = _as_sums_go(stage, alone_us)
            spread_us = stage.spread_us * latency_us / stage.latency_us
            yield Alternative(
                algorithms=algorithms,
                latency_us=latency_us,
                source=FigureSource.MEASURED,
                workspace_bytes=stage.workspace_bytes,
                why_not=_why_not(latency_us, stage.workspace_bytes, spread_us, prediction, budget),
                lanes=lanes,
            )

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
        modelled_us = model_candidates_us(self._problem, candidates, self._calibration)
        return None if modelled_us is None else (modelled_us, FigureSource.MODELLED)

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


@dataclasses.dataclass(frozen=True, slots=True)
class _Chosen:
    """A stage of a plan as far as its explanation goes; graphs repeat their blocks.

    Attributes:
        costs: of its convolutions, lane after lane.
        merge_keys: of each, numbered.
        algorithms: of each.
        lanes: of each.
    """

    costs: tuple[ConvolutionCosts, ...]
    merge_keys: tuple[str | None, ...]
    algorithms: tuple[str | None, ...]
    lanes: tuple[int, ...]

    @property
    def candidates(self) -> _Candidates:
        """The algorithm of each convolution; empty where a lane is merged."""
        if len(set(self.lanes)) < len(self.lanes):
            return ()
        found = map(_named, self.costs, self.algorithms)
        return tuple(each for each in found if each is not None)


def _most_telling(alternatives: Sequence[Alternative], chosen: _Chosen) -> tuple[Alternative, ...]:
    """Some of them, fastest first."""
    fastest_alone = tuple(costs.fastest.algorithm for costs in chosen.costs)
    by_latency = sorted(alternatives, key=lambda each: each.latency_us)
    # What is fastest alone comes first of all: it is what one would try without a profile. Then the
    # fastest that is merged.
    merged = [each for each in by_latency if each.lanes][:1]
    by_latency.sort(
        key=lambda each: (each.lanes != () or each.algorithms != fastest_alone, each not in merged)
    )
    kept = by_latency[:_MOST_ALTERNATIVES]
    return tuple(sorted(kept, key=lambda each: each.latency_us))


def _why_not(
    latency_us: float,
    workspace_bytes: int,
    spread_us: float,
    prediction: StagePrediction,
    budget: int | None,
) -> str:
    others_bytes = prediction.peak_bytes - prediction.workspace_bytes
    if budget is not None and others_bytes + workspace_bytes > budget:
        return (
            f"does not fit: needs {workspace_bytes} bytes of workspace where "
            f"{max(budget - others_bytes, 0)} are left"
        )
    if latency_us >= prediction.latency_us:
        return _NOT_FASTER
    if latency_us >= prediction.sequential_us - spread_us:
        return "too close to one after another for how far the figures may be off"
    return "not among the combinations that the search looked at, or too uncertain"


def _others(lanes: Sequence[ConvolutionCosts], chosen: _Candidates) -> Iterator[_Candidates]:
    """Other combinations, each once; with equal convolutions those that differ in order alone."""
    choosable = [_fastest_of(costs) for costs in lanes]
    seen = {_combination(lanes, chosen)} if chosen else set()
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
            for lane, candidates in enumerate(choosable if chosen else ())
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
