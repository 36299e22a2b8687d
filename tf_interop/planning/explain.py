"""Says of a plan why it is as it is: what stages were chosen by, and why others are none.

The values are those that the search looked at (`StageCosts`). Of each stage the plan keeps what
was measured of its convolutions with other algorithms, lanes or merged, and what the fastest alone
would take together. Of the convolutions that share no stage it keeps the few sets that could have
saved most: looked at are all independent pairs, and of three and more convolutions those of equal
depth and those that read one image. Sets whose convolutions cost the same are one.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from tf_interop.planning.cost.calibration import calibrate_model
from tf_interop.planning.cost.stage_costs import Lanes, StageChoice, StageCosts, algorithms_of
from tf_interop.planning.make import PlanOptions
from tf_interop.planning.problem import Candidate, ConvolutionCosts, PlanningProblem
from tf_interop.planning.search.space import Space, bits_of
from tf_interop.planning.types import (
    Alternative,
    GraphPlan,
    LaneExplanation,
    PlannedStage,
    RejectedStage,
    StageExplanation,
    StagePrediction,
)
from tf_interop.profile.occupancy import SmUse, compute_sm_use
from tf_interop.stage import Lane, Stage

_MOST_ALTERNATIVES = 3
# Sets of convolutions that are modelled to say why they are no stage.
_MOST_MODELLED = 400
_MOST_REJECTED = 5
# Sets that are asked after in full, those that could save most.
_MOST_JUDGED = 40

_NOT_FASTER = "not faster"

_Nodes = tuple[int, ...]

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
    costs = StageCosts(problem, calibrate_model(problem), max_modelled=_MOST_MODELLED)
    explainer = _Explainer(problem, costs)
    plan = dataclasses.replace(plan, stages=tuple(map(explainer.explain, plan.stages)))
    if plan.prediction is None:
        return plan
    return _Judge(problem, plan, costs, (options or PlanOptions()).max_lanes).explain()


class _Explainer:
    """Says what a stage was chosen by."""

    def __init__(self, problem: PlanningProblem, costs: StageCosts) -> None:
        self._problem = problem
        self._costs = costs
        self._place = {node.name: place for place, node in enumerate(problem.nodes)}
        # Graphs repeat their blocks.
        self._modelled: dict[Stage[str], list[StageChoice]] = {}

    def explain(self, planned: PlannedStage) -> PlannedStage:
        prediction, stage = planned.prediction, planned.stage
        if prediction is None:
            return planned
        alternatives = sorted(
            self._alternatives(stage, prediction), key=lambda each: each.latency_us
        )
        fastest = [self._costs_of(node).fastest.algorithm for node in stage.operations]
        merged = [each for each in alternatives if each.stage.is_merged][:1]
        # What is fastest alone is what one would try without a profile.
        telling = sorted(
            alternatives,
            key=lambda each: (
                each.stage.is_merged or [step.algorithm for step in each.stage.steps] != fastest,
                each not in merged,
            ),
        )[:_MOST_ALTERNATIVES]
        explanation = StageExplanation(
            lanes=tuple(map(self._explain_lane, stage.lanes)),
            alternatives=tuple(sorted(telling, key=lambda each: each.latency_us)),
        )
        return dataclasses.replace(planned, explanation=explanation)

    def _explain_lane(self, lane: Lane[str]) -> LaneExplanation:
        fastest = [self._costs_of(node).fastest for node in lane.operations]
        # The wider convolution of a merged lane is none of the candidates.
        pinned = fastest if lane.merged else self._candidates(lane)
        return LaneExplanation(
            alone_us=sum(each.latency_us for each in pinned),
            workspace_bytes=max(each.workspace_bytes for each in pinned),
            fastest_algorithm=fastest[0].algorithm if len(fastest) == 1 else None,
            fastest_us=sum(each.latency_us for each in fastest),
            sm_use=self._sm_use(lane),
        )

    def _alternatives(
        self, stage: Stage[str], prediction: StagePrediction
    ) -> Iterator[Alternative]:
        """Other ways to run a stage, each once."""
        lanes: Lanes = tuple(
            tuple(self._place[node] for node in nodes)
            for lane in stage.lanes
            for nodes in (zip(lane.operations) if lane.merged else [lane.operations])
        )
        of_costs = stage.map(lambda node: self._costs_of(node).name)
        if of_costs not in self._modelled:
            self._modelled[of_costs] = self._costs.usual(lanes)
        measured = sorted(self._costs.measured(lanes), key=lambda each: each.latency_us)
        seen = {algorithms_of(of_costs)}
        for choice in (*measured, *self._modelled[of_costs]):
            if algorithms_of(choice.stage) in seen:
                continue
            seen.add(algorithms_of(choice.stage))
            placed = self._costs.place(choice.stage, lanes)
            if placed is not None:
                other = placed.map(lambda place: self._problem.nodes[place].name)
                why_not = self._why_not(choice, prediction)
                if why_not == _NOT_FASTER:
                    why_not += self._crowding(stage, other)
                yield Alternative(
                    other, choice.latency_us, choice.source, choice.workspace_bytes, why_not
                )

    def _why_not(self, choice: StageChoice, prediction: StagePrediction) -> str:
        budget = self._problem.memory_budget_bytes
        others_bytes = prediction.peak_bytes - prediction.workspace_bytes
        if budget is not None and others_bytes + choice.workspace_bytes > budget:
            return (
                f"does not fit: needs {choice.workspace_bytes} bytes of workspace where "
                f"{max(budget - others_bytes, 0)} are left"
            )
        if choice.latency_us >= prediction.latency_us:
            return _NOT_FASTER
        return "too close to one after another for how far the values may be off"

    def _crowding(self, chosen: Stage[str], other: Stage[str]) -> str:
        """What lanes would take more of than there is, and more than what was chosen takes."""
        ours, theirs = (
            sum_of_uses([self._sm_use(lane) for lane in each.lanes]) for each in (chosen, other)
        )
        crowded = [
            f"{100 * theirs[field]:.0f} % of the {name} (chosen: {100 * ours[field]:.0f} %)"
            for field, name in SHARED_RESOURCES.items()
            if field in ours and theirs.get(field, 0.0) > max(1.0, ours[field])
        ]
        return f"; its lanes together ask for {', '.join(crowded)}" if crowded else ""

    def _sm_use(self, lane: Lane[str]) -> SmUse | None:
        """What a lane of one step takes of an SM, alone: its kernel that takes the most time."""
        candidates = self._candidates(lane) if len(lane.steps) == 1 else []
        kernels = [kernel for candidate in candidates for kernel in candidate.kernels]
        kernel = max(kernels, key=lambda each: each.time_share, default=None)
        if kernel is None or self._problem.sm_limits is None or self._problem.sm_count is None:
            return None
        use = compute_sm_use(kernel, self._problem.sm_limits, self._problem.sm_count)
        return use if use.blocks else None

    def _candidates(self, lane: Lane[str]) -> list[Candidate]:
        found = [self._costs_of(step.operation).candidate(step.algorithm) for step in lane.steps]
        return [each for each in found if each is not None]

    def _costs_of(self, node: str) -> ConvolutionCosts:
        return self._problem.node_costs[self._place[node]]


@dataclasses.dataclass(slots=True)
class _Kind:
    """Sets of convolutions that cost the same and share no stage.

    Attributes:
        nodes: of one of them: one with as few nodes in stages as there are.
        in_stages: how many of these are in a stage.
        gain_us: the most that they could save.
        count: how many such sets there are.
    """

    nodes: _Nodes
    in_stages: int
    gain_us: float
    count: int = 0


class _Judge:
    """Finds the most promising stages that a plan does not have, and why it does not."""

    def __init__(
        self, problem: PlanningProblem, plan: GraphPlan, costs: StageCosts, max_lanes: int
    ) -> None:
        self._problem = problem
        self._plan = plan
        self._costs = costs
        self._max_lanes = max_lanes
        place = {node.name: number for number, node in enumerate(problem.nodes)}
        self._stage_of: Mapping[int, int] = {
            place[name]: number for number, stage in enumerate(plan.stages) for name in stage.nodes
        }

    def explain(self) -> GraphPlan:
        # First of convolutions that are in no stage at all, then of those in different ones.
        kinds = sorted(self._kinds(), key=lambda kind: (kind.in_stages, -kind.gain_us, kind.nodes))
        judged = [(kind, *self._judge(kind.nodes)) for kind in kinds[:_MOST_JUDGED]]
        judged.sort(key=lambda each: (each[0].in_stages, -each[2], -each[0].gain_us))
        rejected = tuple(
            RejectedStage(self._names(kind.nodes), why_not, kind.count)
            for kind, why_not, _ in judged[:_MOST_REJECTED]
        )
        why_no_stage = ""
        if not self._plan.stages:
            why_no_stage = "no two of its measured convolutions are independent"
            if rejected:
                names = " and ".join(rejected[0].nodes)
                why_no_stage = f"the most promising, {names}: {rejected[0].why_not}"
        return dataclasses.replace(self._plan, rejected=rejected, why_no_stage=why_no_stage)

    def _kinds(self) -> list[_Kind]:
        kinds: dict[object, _Kind] = {}
        fastest_us = [costs.fastest.latency_us for costs in self._problem.node_costs]
        for nodes in self._independent_sets():
            stages = {self._stage_of.get(node) for node in nodes}
            if len(stages) == 1 and None not in stages:
                continue
            costs = sorted(self._problem.nodes[node].costs for node in nodes)
            in_stages = sum(node in self._stage_of for node in nodes)
            times_us = [fastest_us[node] for node in nodes]
            kind = kinds.setdefault(
                (*costs, self._share_a_merge_key(nodes)),
                _Kind(nodes, in_stages, sum(times_us) - max(times_us)),
            )
            if in_stages < kind.in_stages:
                kind.nodes, kind.in_stages = nodes, in_stages
            kind.count += 1
        return list(kinds.values())

    def _independent_sets(self) -> Iterator[_Nodes]:
        """Pairs; and of three and more those of one depth, and those of them on one image."""
        space = Space(self._problem.predecessors, lambda _: ())
        depths: list[int] = []
        in_group: dict[str, int] = collections.defaultdict(int)
        levels: dict[object, list[int]] = collections.defaultdict(list)
        for number, node in enumerate(self._problem.nodes):
            depth = 1 + max((depths[each] for each in space.predecessors[number]), default=0)
            depths.append(depth)
            for other in bits_of(in_group[node.group] & ~space.ancestors[number]):
                yield other, number
            in_group[node.group] |= 1 << number
            levels[depth, node.group].append(number)
            if node.merge_key is not None:
                levels[depth, node.group, node.merge_key].append(number)
        yield from dict.fromkeys(tuple(level) for level in levels.values() if len(level) > 2)

    def _judge(self, nodes: _Nodes) -> tuple[str, float]:
        """Why they are no stage, and what they would save as far as values go; 0 for nothing."""
        lanes = tuple((node,) for node in nodes)
        alone_us = sum(self._problem.node_costs[node].fastest.latency_us for node in nodes)
        choices = self._costs.choices(lanes)
        if choices:
            saved_us = alone_us - choices[0].latency_us
            return f"{saved_us:.1f} us faster, {choices[0].source.value}, but " + (
                self._why_not_made(nodes)
            ), saved_us
        measured = self._costs.measured(lanes)
        known = measured or self._costs.usual(lanes)
        why_not = "not measured together, and without kernels or device there is no model"
        if known:
            best = min(known, key=lambda each: each.latency_us)
            why_not = _no_win_words(best, alone_us - best.latency_us)
        if self._share_a_merge_key(nodes) and not any(each.stage.is_merged for each in measured):
            why_not += "; merged into a wider convolution they were not measured"
        return why_not, 0.0

    def _why_not_made(self, nodes: _Nodes) -> str:
        if len(nodes) > self._max_lanes:
            return f"stages of up to {self._max_lanes} were searched for"
        uses = [
            f"'{name}' runs in stage {self._stage_of[node]}"
            for node, name in zip(nodes, self._names(nodes), strict=True)
            if node in self._stage_of
        ]
        if uses:
            return " and ".join(uses)
        memory = "" if self._problem.memory_budget_bytes is None else ", the memory budget"
        return f"the order of this plan{memory} or a bound of the search leaves them no place"

    def _share_a_merge_key(self, nodes: _Nodes) -> bool:
        keys = {self._problem.nodes[node].merge_key for node in nodes}
        return len(keys) == 1 and None not in keys

    def _names(self, nodes: _Nodes) -> tuple[str, ...]:
        return tuple(self._problem.nodes[node].name for node in nodes)


def _no_win_words(choice: StageChoice, saved_us: float) -> str:
    how = f"{choice.source.value}{' merged' if choice.stage.is_merged else ''}"
    if abs(saved_us) < 0.05:
        return f"{how} to take as long as one after another"
    if saved_us < 0:
        return f"{how} {-saved_us:.1f} us slower than one after another"
    return f"{how} {saved_us:.1f} us faster, which may be off by {choice.spread_us:.1f}"
