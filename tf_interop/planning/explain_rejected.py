"""Says of convolutions that do not depend on each other why they share no stage all the same.

A graph has thousands of such sets. Looked at are all pairs, and of three and more convolutions
those of equal depth and those that read one image; sets whose convolutions cost the same are one.
What is told are the few that could have saved most: first of convolutions that are in no stage at
all, then of those that are in different ones.

The values are judged as the search judges them (`StageCosts`). Whether a stage that would win had
a place, and memory, in the order of the plan is found out by looking at every place of it.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Sequence

from tf_interop.planning.cost.calibration import ModelCalibration, model_lanes
from tf_interop.planning.cost.stage_costs import StageChoice, StageCosts
from tf_interop.planning.live_memory import LiveMemory
from tf_interop.planning.order import in_order, stage_of
from tf_interop.planning.problem import MeasuredStage, PlanningProblem
from tf_interop.planning.search.space import Space, bits_of, mask_of
from tf_interop.planning.types import GraphPlan, PlannedStage, RejectedStage

_MOST_TOLD = 5
# Sets that are asked after in full, those that could save most.
_MOST_JUDGED = 40

_Nodes = tuple[int, ...]


def explain_rejected(
    problem: PlanningProblem,
    plan: GraphPlan,
    costs: StageCosts,
    calibration: ModelCalibration,
    *,
    max_lanes: int,
) -> GraphPlan:
    """The plan with the most promising stages that it does not have, and why it does not.

    Args:
        problem: what was planned.
        plan: a plan of it.
        costs: of its stages.
        calibration: how far the model is to be trusted.
        max_lanes: the most lanes of a stage that was searched for.
    """
    schedule = _Schedule(problem, plan)
    kinds = sorted(
        _kinds(problem, schedule), key=lambda kind: (kind.in_stages, -kind.gain_us, kind.nodes)
    )
    judge = _Judge(problem, schedule, costs, calibration, max_lanes)
    judged = [(kind, *judge.judge(kind.nodes)) for kind in kinds[:_MOST_JUDGED]]
    judged.sort(key=lambda each: (each[0].in_stages, -each[2], -each[0].gain_us))
    rejected = tuple(
        RejectedStage(tuple(problem.nodes[node].name for node in kind.nodes), why_not, kind.count)
        for kind, why_not, _ in judged[:_MOST_TOLD]
    )
    why_no_stage = ""
    if not plan.stages and judged and judged[0][2] > 0:
        names = " and ".join(rejected[0].nodes)
        why_no_stage = f"of what wins by itself, {names}: {rejected[0].why_not}"
    elif not plan.stages:
        why_no_stage = judge.why_none_wins(kinds)
    return dataclasses.replace(plan, rejected=rejected, why_no_stage=why_no_stage)


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


class _Schedule:
    """When a plan runs which node, and what is alive then."""

    def __init__(self, problem: PlanningProblem, plan: GraphPlan) -> None:
        place = {node.name: number for number, node in enumerate(problem.nodes)}
        self.stage_of: dict[int, int] = {}
        self._turn_of: dict[int, int] = {}
        self._turns = len(plan.stages) + len(plan.unstaged)
        for turn, (number, planned) in enumerate(in_order(plan)):
            for name in stage_of(planned).operations:
                self._turn_of[place[name]] = turn
                if isinstance(planned, PlannedStage):
                    self.stage_of[place[name]] = number
        self._memory = LiveMemory(problem)
        self.space = Space(problem.predecessors, lambda _: ())

    def share_a_stage(self, nodes: _Nodes) -> bool:
        stages = {self.stage_of.get(node) for node in nodes}
        return len(stages) == 1 and None not in stages

    def turns_for(self, nodes: _Nodes) -> range:
        """Before what nodes could run together, with all others left where they are."""
        before = [self._turn_of[each] for node in nodes for each in self.space.predecessors[node]]
        after = [self._turn_of[each] for node in nodes for each in self.space.readers[node]]
        return range(max(before, default=-1) + 1, min(after, default=self._turns) + 1)

    def alive_bytes(self, turn: int, nodes: _Nodes) -> int:
        """Outputs that are alive before a turn, apart from those of `nodes`, which run there."""
        ran = (node for node, its in self._turn_of.items() if its < turn and node not in nodes)
        return self._memory.alive_bytes(mask_of(ran))


def _kinds(problem: PlanningProblem, schedule: _Schedule) -> list[_Kind]:
    kinds: dict[object, _Kind] = {}
    fastest_us = [costs.fastest.latency_us for costs in problem.node_costs]
    for nodes in _independent_sets(problem, schedule.space):
        if schedule.share_a_stage(nodes):
            continue
        names = sorted(problem.nodes[node].costs for node in nodes)
        key = (*names, _share_a_merge_key(problem, nodes))
        in_stages = sum(node in schedule.stage_of for node in nodes)
        times_us = [fastest_us[node] for node in nodes]
        kind = kinds.setdefault(key, _Kind(nodes, in_stages, sum(times_us) - max(times_us)))
        if in_stages < kind.in_stages:
            kind.nodes, kind.in_stages = nodes, in_stages
        kind.count += 1
    return list(kinds.values())


def _independent_sets(problem: PlanningProblem, space: Space) -> Iterator[_Nodes]:
    """Pairs; and of three and more those of one depth, and those of them on one image."""
    depths: list[int] = []
    in_group: dict[str, int] = collections.defaultdict(int)
    levels: dict[object, list[int]] = collections.defaultdict(list)
    for number, node in enumerate(problem.nodes):
        depths.append(1 + max((depths[each] for each in space.predecessors[number]), default=0))
        for other in bits_of(in_group[node.group] & ~space.ancestors[number]):
            yield other, number
        in_group[node.group] |= 1 << number
        levels[depths[number], node.group].append(number)
        if node.merge_key is not None:
            levels[depths[number], node.group, node.merge_key].append(number)
    yield from dict.fromkeys(tuple(level) for level in levels.values() if len(level) > 2)


def _share_a_merge_key(problem: PlanningProblem, nodes: _Nodes) -> bool:
    keys = {problem.nodes[node].merge_key for node in nodes}
    return len(keys) == 1 and None not in keys


class _Judge:
    """Finds the reason why a set of convolutions is no stage."""

    def __init__(
        self,
        problem: PlanningProblem,
        schedule: _Schedule,
        costs: StageCosts,
        calibration: ModelCalibration,
        max_lanes: int,
    ) -> None:
        self._problem = problem
        self._schedule = schedule
        self._costs = costs
        self._calibration = calibration
        self._max_lanes = max_lanes
        self._measured: dict[object, list[MeasuredStage]] = collections.defaultdict(list)
        for measured in problem.stages:
            self._measured[tuple(sorted(measured.stage.operations))].append(measured)

    def judge(self, nodes: _Nodes) -> tuple[str, float]:
        """Why they are no stage, and what they would save as far as values go; 0 for nothing."""
        choices = self._costs.choices(tuple((node,) for node in nodes))
        if choices:
            saved_us = self._alone_us(nodes) - choices[0].latency_us
            return self._why_not_made(nodes, choices, saved_us), saved_us
        why_not = self._why_no_win(nodes)
        if _share_a_merge_key(self._problem, nodes) and not any(
            lane.merged for each in self._measured_of(nodes) for lane in each.stage.lanes
        ):
            why_not += "; merged into a wider convolution they were not measured"
        return why_not, 0.0

    def why_none_wins(self, kinds: Sequence[_Kind]) -> str:
        """One sentence, of a plan without stages, none of whose most promising sets wins."""
        if not kinds:
            return "no two of its measured convolutions are independent"
        measured = [
            (self._saved_us(best, kind.nodes), best.spread_us)
            for kind in kinds
            if (best := self._best_measured(kind.nodes)) is not None
        ]
        win_count = sum(saved_us > spread_us for saved_us, spread_us in measured)
        has_model = self._problem.sm_limits is not None and any(
            candidate.kernels for costs in self._problem.costs for candidate in costs.candidates
        )
        if win_count:
            return (
                f"{win_count} of {len(measured)} measured sets win by themselves, but their order, "
                "the memory or a bound of the search leaves them no place"
            )
        if not measured:
            return "of its independent convolutions none were measured together, and " + (
                "by the model none win by more than it is trusted"
                if has_model
                else "without kernels or device there is no model"
            )
        if len(measured) == 1:
            subject = "the one measured set does not beat"
        else:
            subject = f"none of {len(measured)} measured sets beats"
        modelled = ", and by the model no other does" if has_model else ""
        return f"{subject} its convolutions one after another by more than the spread{modelled}"

    def _alone_us(self, nodes: _Nodes) -> float:
        return sum(self._problem.node_costs[node].fastest.latency_us for node in nodes)

    def _saved_us(self, measured: MeasuredStage, nodes: _Nodes) -> float:
        whole_us = measured.sequential_us
        return (self._alone_us(nodes) if whole_us is None else whole_us) - measured.latency_us

    def _measured_of(self, nodes: _Nodes) -> list[MeasuredStage]:
        return self._measured[tuple(sorted(self._problem.nodes[node].costs for node in nodes))]

    def _best_measured(self, nodes: _Nodes) -> MeasuredStage | None:
        lanes = tuple((node,) for node in nodes)
        return max(
            (each for each in self._measured_of(nodes) if self._costs.place(each.stage, lanes)),
            key=lambda each: self._saved_us(each, nodes),
            default=None,
        )

    def _why_no_win(self, nodes: _Nodes) -> str:
        best = self._best_measured(nodes)
        if best is not None:
            is_merged = any(lane.merged for lane in best.stage.lanes)
            how = "measured merged" if is_merged else "measured"
            return _no_win_words(how, self._saved_us(best, nodes), best.spread_us)
        modelled_us = model_lanes(
            self._problem,
            [(self._problem.node_costs[node].fastest,) for node in nodes],
            self._calibration,
        )
        if modelled_us is None:
            return "not measured together, and without kernels or device there is no model"
        return _no_win_words(
            "modelled", self._alone_us(nodes) - modelled_us, modelled_us * self._calibration.spread
        )

    def _why_not_made(self, nodes: _Nodes, choices: Sequence[StageChoice], saved_us: float) -> str:
        wins = f"{saved_us:.1f} us faster, {choices[0].source.value}"
        if len(nodes) > self._max_lanes:
            return f"{wins}, but stages of up to {self._max_lanes} were searched for"
        uses = " and ".join(
            f"'{self._problem.nodes[node].name}' runs in stage {self._schedule.stage_of[node]}"
            for node in nodes
            if node in self._schedule.stage_of
        )
        if uses:
            return f"{wins}, but {uses}"
        turns = self._schedule.turns_for(nodes)
        if not turns:
            return (
                f"{wins}, but in the order of this plan one of them has to run before what the "
                "other waits for"
            )
        budget = self._problem.memory_budget_bytes
        if budget is None:
            return f"{wins}, but the search, which was bounded, did not come to it"
        # At the turn where the budget is short of least.
        alive_bytes = min(self._schedule.alive_bytes(turn, nodes) for turn in turns)
        outputs_bytes = sum(self._problem.node_costs[node].output_bytes for node in nodes)
        short_bytes = alive_bytes + outputs_bytes + choices[-1].workspace_bytes - budget
        if short_bytes > 0:
            return f"{wins}, but {short_bytes} bytes more than the budget would be needed"
        return f"{wins}, but the search did not come to it, or the memory is needed in between"


def _no_win_words(how: str, saved_us: float, spread_us: float) -> str:
    if abs(saved_us) < 0.05:
        return f"{how} to take as long as one after another"
    if saved_us < 0:
        return f"{how} {-saved_us:.1f} us slower than one after another"
    return f"{how} {saved_us:.1f} us faster, which may be off by {spread_us:.1f}"
