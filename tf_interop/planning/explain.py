"""Explains a plan: the reasons for its stages, and against other pairs.

All values come from the search (`StageCosts`). For each stage the plan keeps the measurements of
its convolutions with other algorithms, on other lanes, or merged, and the time with the algorithms
that are fastest alone. It also keeps the few independent pairs that share no stage and could save
the most time. Pairs with the same costs count as one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from tf_interop.planning.problem import PlanningProblem
from tf_interop.planning.sm_model import SmUse, compute_sm_use
from tf_interop.planning.stage_costs import Lanes, StageCosts, algorithms_of
from tf_interop.planning.stage_search import Space
from tf_interop.planning.types import (
    LEAST_SAVED_US,
    GraphPlan,
    LaneAlone,
    PlannedStage,
    RejectedStage,
    StageChoice,
    StagePrediction,
)
from tf_interop.profile.entries import AlgorithmMeasurement
from tf_interop.stage import Lane, Stage, Step, T

_MOST_ALTERNATIVES = 3
# Combinations that are modelled to explain pairs.
_MOST_MODELLED = 400
_MOST_REJECTED = 5
# Pairs that are examined in full: those that could save the most time.
_MOST_JUDGED = 40

_NOT_FASTER = "not faster"

SHARED_RESOURCES = {
    "registers": "registers",
    "shared_memory": "shared memory",
    "threads": "thread slots",
    "blocks": "block slots",
    "alu_utilization": "ALU time",
    "dram_utilization": "DRAM throughput",
}
"""Fields of SmUse for the resources that kernels share when they run together."""


def sum_of_uses(uses: Sequence[SmUse | None]) -> dict[str, float]:
    """The sum of the lanes' shares of an SM, without fields that are unknown for a lane."""
    sums: dict[str, float] = {}
    for field in SHARED_RESOURCES:
        values = [getattr(use, field, None) for use in uses]
        if None not in values:
            sums[field] = math.fsum(value for value in values if value is not None)
    return sums


def explain_plan(problem: PlanningProblem, plan: GraphPlan) -> GraphPlan:
    """Adds the reasons for every stage of a planner's plan, and against other pairs."""
    explainer = _Explainer(problem)
    stages = tuple(map(explainer.explain, plan.stages))
    return dataclasses.replace(plan, stages=stages, rejected=explainer.reject(plan.stages))


class _Explainer:
    def __init__(self, problem: PlanningProblem) -> None:
        self._problem = problem
        self._costs = StageCosts(problem, max_modelled=_MOST_MODELLED)
        self._place = {node.name: place for place, node in enumerate(problem.nodes)}

    def explain(self, planned: PlannedStage) -> PlannedStage:
        prediction, stage = planned.prediction, planned.stage
        assert prediction is not None
        fastest = [self._fastest(node).algorithm for node in stage.operations]
        # The algorithms that are fastest alone come first: without a profile one would try them.
        telling = sorted(
            self._alternatives(stage, prediction),
            key=lambda each: (
                each.stage.is_merged or [step.algorithm for step in each.stage.steps] != fastest,
                each.prediction.latency_us,
            ),
        )[:_MOST_ALTERNATIVES]
        return dataclasses.replace(
            planned,
            alone=tuple(map(self._explain_lane, stage.lanes)),
            alternatives=tuple(sorted(telling, key=_latency_us)),
        )

    def _explain_lane(self, lane: Lane[str]) -> LaneAlone:
        fastest = [self._fastest(node) for node in lane.operations]
        # The wider convolution of a merged lane was not measured alone.
        pinned = fastest if lane.merged else [self._alone(step) for step in lane.steps]
        return LaneAlone(
            alone_us=sum(each.latency_us for each in pinned),
            workspace_bytes=max(each.workspace_bytes for each in pinned),
            fastest_algorithm=fastest[0].algorithm if len(fastest) == 1 else None,
            fastest_us=sum(each.latency_us for each in fastest),
            sm_use=self._sm_use(lane),
        )

    def _alternatives(
        self, stage: Stage[str], prediction: StagePrediction
    ) -> Iterator[StageChoice[str]]:
        """Other ways to run a stage, each once."""
        lanes: Lanes = tuple(
            tuple(self._place[node] for node in nodes)
            for lane in stage.lanes
            for nodes in (zip(lane.operations) if lane.merged else [lane.operations])
        )
        seen = {algorithms_of(stage.map(lambda node: self._problem.numbers[self._place[node]]))}
        measured = sorted(self._costs.measured(lanes), key=_latency_us)
        others_bytes = prediction.peak_bytes - prediction.workspace_bytes
        for choice in (*measured, *self._costs.usual(lanes)):
            algorithms = algorithms_of(choice.stage)
            other = None if algorithms in seen else self._costs.place(choice.stage, lanes)
            seen.add(algorithms)
            if other is not None:
                peak_bytes = others_bytes + choice.prediction.workspace_bytes
                expected = dataclasses.replace(choice.prediction, peak_bytes=peak_bytes)
                why_not = self._why_not(expected, prediction)
                if why_not == _NOT_FASTER:
                    why_not += self._crowding(stage, other)
                yield StageChoice(other, expected, why_not)

    def _why_not(self, other: StagePrediction, chosen: StagePrediction) -> str:
        budget = self._problem.memory_budget_bytes
        if budget is not None and other.peak_bytes > budget:
            left_bytes = max(budget - other.peak_bytes + other.workspace_bytes, 0)
            return (
                f"does not fit: needs {other.workspace_bytes} bytes of workspace, but only "
                f"{left_bytes} are left"
            )
        if other.latency_us >= chosen.latency_us:
            return _NOT_FASTER
        return "not faster than one after another by more than the error"

    def _crowding(self, chosen: Stage[str], other: Stage[str]) -> str:
        """Names the resources that the other lanes exceed and need more of than the chosen ones."""
        ours, theirs = (
            sum_of_uses([self._sm_use(lane) for lane in each.lanes]) for each in (chosen, other)
        )
        crowded = [
            f"{100 * theirs[field]:.0f} % of the {name} (chosen: {100 * ours[field]:.0f} %)"
            for field, name in SHARED_RESOURCES.items()
            if field in ours and theirs.get(field, 0.0) > max(1.0, ours[field])
        ]
        return f"; its lanes together need {', '.join(crowded)}" if crowded else ""

    def _sm_use(self, lane: Lane[str]) -> SmUse | None:
        """The share of an SM that the main kernel of a lane with one step takes."""
        kernels = self._alone(lane.steps[0]).kernels if len(lane.steps) == 1 else ()
        kernel = max(kernels, key=lambda each: each.time_share, default=None)
        if kernel is None or self._problem.device is None:
            return None
        use = compute_sm_use(kernel, self._problem.device)
        return use if use.blocks else None

    def _alone(self, step: Step[str]) -> AlgorithmMeasurement:
        configuration = self._problem.nodes[self._place[step.operation]].configuration
        return self._problem.alone[Step(configuration, step.algorithm)]

    def _fastest(self, node: str) -> AlgorithmMeasurement:
        return self._problem.node_algorithms[self._place[node]][0]

    def reject(self, stages: Sequence[PlannedStage]) -> tuple[RejectedStage, ...]:
        """The pairs that share no stage, most promising first."""
        nodes, numbers = self._problem.nodes, self._problem.numbers
        stage_of = {name: number for number, each in enumerate(stages) for name in each.nodes}
        # Pairs of the same configurations; one with the fewest nodes in stages stands for them.
        kinds: dict[object, list[tuple[int, float, tuple[int, int]]]] = {}
        for pair in self._independent_pairs():
            its = [stage_of.get(nodes[node].name) for node in pair]
            if its[0] is None or its[0] != its[1]:
                gain_us = min(self._problem.node_algorithms[node][0].latency_us for node in pair)
                key = (*sorted(numbers[node] for node in pair), self._share_an_image(pair))
                in_stages = sum(each is not None for each in its)
                kinds.setdefault(key, []).append((in_stages, -gain_us, pair))
        judged = []
        for alike in sorted(kinds.values(), key=min)[:_MOST_JUDGED]:
            in_stages, minus_gain_us, pair = min(alike)
            saved_us, why_not = self._judge(pair, stage_of)
            names = tuple(nodes[node].name for node in pair)
            judged.append(
                (in_stages, minus_gain_us, RejectedStage(names, why_not, len(alike), saved_us))
            )
        # Pairs with no node in a stage come first.
        judged.sort(
            key=lambda each: (each[0], not each[2].may_win, -(each[2].saved_us or 0.0), each[1])
        )
        return tuple(each for _, _, each in judged[:_MOST_REJECTED])

    def _independent_pairs(self) -> Iterator[tuple[int, int]]:
        nodes = self._problem.nodes
        ancestors = Space([node.predecessors for node in nodes], lambda _: ()).ancestors
        for first, second in itertools.combinations(range(len(nodes)), 2):
            if nodes[first].group == nodes[second].group and not ancestors[second] >> first & 1:
                yield first, second

    def _judge(self, pair: tuple[int, int], stage_of: dict[str, int]) -> tuple[float | None, str]:
        """The time that a pair would save, None if it is unknown, and the reason against it."""
        lanes = tuple((node,) for node in pair)
        saved_us: float | None = None
        choices = self._costs.choices(lanes)
        if choices:
            expected = choices[0].prediction
            saved_us = expected.saved_us
            names = [self._problem.nodes[node].name for node in pair]
            staged = [
                f"'{name}' runs in stage {stage_of[name]}" for name in names if name in stage_of
            ]
            memory = "" if self._problem.memory_budget_bytes is None else ", the memory budget"
            why = " and ".join(staged) or (
                f"the order of this plan{memory} or a bound of the search leaves no room for them"
            )
            return (
                saved_us,
                f"{saved_us:.1f} µs faster, {expected.source.value}, but {why}",
            )
        measured = self._costs.measured(lanes)
        known = measured or self._costs.usual(lanes)
        why_not = "not measured together, and not modelled, because kernels or device are unknown"
        if known:
            best = min(known, key=_latency_us)
            saved_us = best.prediction.saved_us
            why_not = _no_win_words(best)
        if self._share_an_image(pair) and not any(each.stage.is_merged for each in measured):
            why_not += "; not measured as one merged convolution"
        return saved_us, why_not

    def _share_an_image(self, pair: tuple[int, int]) -> bool:
        first, second = (self._problem.nodes[node].merge_key for node in pair)
        return first is not None and first == second


def _latency_us(choice: StageChoice[T]) -> float:
    return choice.prediction.latency_us


def _no_win_words(choice: StageChoice[T]) -> str:
    expected = choice.prediction
    how = f"{expected.source.value}{' merged' if choice.stage.is_merged else ''}"
    if abs(expected.saved_us) < LEAST_SAVED_US:
        return f"{how} to take as long as one after another"
    if expected.saved_us < 0:
        return f"{how} {-expected.saved_us:.1f} µs slower than one after another"
    return (
        f"{how} {expected.saved_us:.1f} µs faster, ±{expected.spread_us:.1f} µs, so not significant"
    )
