"""Says of convolutions that do not depend on each other why they share no stage all the same.

A graph has thousands of such sets. Looked at are all pairs, and of three and more convolutions
those of equal depth and those that read one image; sets whose convolutions cost the same are one.
What is told are the few that could have saved most: first of convolutions that are in no stage at
all, then of those that are in different ones.

The figures are judged as the search judges them (`StageCosts`). Whether a stage that would win had
a place, and memory, in the order of the plan is found out by looking at every step of it.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tf_interop.plan.cost.calibration import ModelCalibration, model_fastest_us
from tf_interop.plan.cost.stage_costs import StageChoice, StageCosts
from tf_interop.plan.lane_places import find_places
from tf_interop.plan.problem import FigureSource, KnownStage, PlanningProblem
from tf_interop.plan.types import GraphPlan, MissedStage

_MOST_TOLD = 5
# Sets that are asked after in full, those that could save most.
_MOST_JUDGED = 40

_Nodes = tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class MissedStages:
    """What a plan does not have.

    Attributes:
        stages: a few stages that could have been, the most promising first.
        why_no_stage: why the plan has none at all; empty where it has one.
    """

    stages: tuple[MissedStage, ...] = ()
    why_no_stage: str = ""


def find_missed(
    problem: PlanningProblem, plan: GraphPlan, calibration: ModelCalibration, *, max_lanes: int
) -> MissedStages:
    """The most promising stages that a plan does not have, and why it does not.

    Args:
        problem: what was planned.
        plan: a plan of it.
        calibration: how far the model is to be trusted.
        max_lanes: the most convolutions of a stage that was searched for.
    """
    schedule = _Schedule(problem, plan)
    kinds = sorted(
        _kinds(problem, schedule), key=lambda kind: (kind.in_stages, -kind.gain_us, kind.nodes)
    )
    judge = _Judge(problem, schedule, calibration, max_lanes)
    judged = [judge.judge(kind) for kind in kinds[:_MOST_JUDGED]]
    judged.sort(key=lambda each: (each.kind.in_stages, -each.saved_us, -each.kind.gain_us))
    return MissedStages(
        stages=tuple(
            MissedStage(
                nodes=tuple(problem.nodes[node].name for node in each.kind.nodes),
                why_not=each.why_not,
                count=each.kind.count,
            )
            for each in judged[:_MOST_TOLD]
        ),
        why_no_stage="" if plan.stages else _why_no_stage(problem, kinds, judged, judge),
    )


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


@dataclasses.dataclass(frozen=True, slots=True)
class _Judged:
    """What is told of a kind, and what it would save as far as figures go; 0 where it would not."""

    kind: _Kind
    why_not: str
    saved_us: float = 0.0


class _Schedule:
    """When a plan runs which node, and what is alive then."""

    def __init__(self, problem: PlanningProblem, plan: GraphPlan) -> None:
        place = {node.name: number for number, node in enumerate(problem.nodes)}
        self.stage_of: dict[int, int] = {}
        self.step_of: dict[int, int] = {}
        self._output_bytes = [costs.output_bytes for costs in problem.node_costs]
        waiting = list(plan.alone)
        steps = 0
        for number in range(len(plan.stages) + 1):
            while waiting and waiting[0].before_stage <= number:
                self.step_of[place[waiting.pop(0).node]] = steps
                steps += 1
            if number < len(plan.stages):
                for pinned in plan.stages[number].convolutions:
                    self.step_of[place[pinned.node]] = steps
                    self.stage_of[place[pinned.node]] = number
                steps += 1
        self._steps = steps
        self._predecessors = problem.predecessors
        self._readers: list[list[int]] = [[] for _ in problem.nodes]
        for node, predecessors in enumerate(problem.predecessors):
            for predecessor in predecessors:
                self._readers[predecessor].append(node)

    def share_a_stage(self, nodes: _Nodes) -> bool:
        stages = {self.stage_of.get(node) for node in nodes}
        return len(stages) == 1 and None not in stages

    def steps_for(self, nodes: _Nodes) -> range:
        """The steps before which nodes could run together, with all others left where they are."""
        first = max(
            (self.step_of[each] + 1 for node in nodes for each in self._predecessors[node]),
            default=0,
        )
        last = min(
            (self.step_of[each] for node in nodes for each in self._readers[node]),
            default=self._steps,
        )
        return range(first, last + 1)

    def alive_bytes(self, step: int, nodes: _Nodes) -> int:
        """Outputs that are alive before a step, apart from those of `nodes`, which run there."""
        return sum(
            size
            for node, size in enumerate(self._output_bytes)
            if node not in nodes
            and self.step_of[node] < step
            and (
                not self._readers[node]
                or any(self.step_of[each] >= step or each in nodes for each in self._readers[node])
            )
        )


def _kinds(problem: PlanningProblem, schedule: _Schedule) -> list[_Kind]:
    kinds: dict[object, _Kind] = {}
    fastest_us = [costs.fastest.latency_us for costs in problem.node_costs]
    for nodes in _independent_sets(problem):
        if schedule.share_a_stage(nodes):
            continue
        names = sorted(problem.nodes[node].costs for node in nodes)
        key = (*names, _share_a_merge_key(problem, nodes))
        in_stages = sum(node in schedule.stage_of for node in nodes)
        known = kinds.get(key)
        if known is None:
            times_us = [fastest_us[node] for node in nodes]
            known = kinds[key] = _Kind(nodes, in_stages, sum(times_us) - max(times_us))
        elif in_stages < known.in_stages:
            known.nodes, known.in_stages = nodes, in_stages
        known.count += 1
    return list(kinds.values())


def _independent_sets(problem: PlanningProblem) -> Iterator[_Nodes]:
    """Pairs; and of three and more those of one depth, and those of them on one image."""
    ancestors: list[int] = []
    depths: list[int] = []
    in_group: dict[str, int] = collections.defaultdict(int)
    levels: dict[object, list[int]] = collections.defaultdict(list)
    for number, (node, predecessors) in enumerate(
        zip(problem.nodes, problem.predecessors, strict=True)
    ):
        reached = 0
        for each in predecessors:
            reached |= ancestors[each] | 1 << each
        ancestors.append(reached)
        depths.append(1 + max((depths[each] for each in predecessors), default=0))
        candidates = in_group[node.group] & ~reached
        while candidates:
            lowest = candidates & -candidates
            candidates ^= lowest
            yield lowest.bit_length() - 1, number
        in_group[node.group] |= 1 << number
        levels[depths[number], node.group].append(number)
        if node.merge_key is not None:
            levels[depths[number], node.group, node.merge_key].append(number)
    yield from dict.fromkeys(tuple(level) for level in levels.values() if len(level) > 2)


def _share_a_merge_key(problem: PlanningProblem, nodes: Iterable[int]) -> bool:
    keys = {problem.nodes[node].merge_key for node in nodes}
    return len(keys) == 1 and None not in keys


def _why_no_stage(
    problem: PlanningProblem, kinds: Sequence[_Kind], judged: Sequence[_Judged], judge: _Judge
) -> str:
    """One sentence; `judged` are the most promising first."""
    if not kinds:
        return "no two of its measured convolutions are independent"
    if judged[0].saved_us > 0:
        names = " and ".join(problem.nodes[node].name for node in judged[0].kind.nodes)
        return f"of what wins by itself, {names}: {judged[0].why_not}"
    measured_count, win_count = judge.count_measured(kinds)
    has_model = problem.sm_limits is not None and any(
        candidate.kernels for costs in problem.costs for candidate in costs.candidates
    )
    if win_count:
        return (
            f"{win_count} of {measured_count} measured sets win by themselves, but their order, "
            "the memory or a bound of the search leaves them no place"
        )
    if not measured_count:
        return "of its independent convolutions none were measured together, and " + (
            "by the model none win by more than it is trusted"
            if has_model
            else "without kernels or device there is no model"
        )
    if measured_count == 1:
        subject = "the one measured set does not beat"
    else:
        subject = f"none of {measured_count} measured sets beats"
    modelled = ", and by the model no other does" if has_model else ""
    return f"{subject} its convolutions one after another by more than the spread{modelled}"


class _Judge:
    """Finds the reason why a set of convolutions is no stage."""

    def __init__(
        self,
        problem: PlanningProblem,
        schedule: _Schedule,
        calibration: ModelCalibration,
        max_lanes: int,
    ) -> None:
        self._problem = problem
        self._schedule = schedule
        self._calibration = calibration
        self._max_lanes = max_lanes
        self._costs = StageCosts(problem, calibration, max_modelled=10 * _MOST_JUDGED)
        self._measured: Mapping[tuple[str, ...], list[KnownStage]] = collections.defaultdict(list)
        for stage in problem.stages:
            self._measured[tuple(sorted(stage.costs))].append(stage)

    def judge(self, kind: _Kind) -> _Judged:
        of_nodes = [self._problem.nodes[node] for node in kind.nodes]
        names = [node.costs for node in of_nodes]
        choices = self._costs.choices(names, [node.merge_key for node in of_nodes])
        alone_us = sum(self._problem.costs_by_name[name].fastest.latency_us for name in names)
        if choices:
            saved_us = alone_us - choices[0].latency_us
            return _Judged(kind, self._why_not_made(kind.nodes, choices, saved_us), saved_us)
        why_not = self._why_no_win(kind.nodes, names, alone_us)
        if _share_a_merge_key(self._problem, kind.nodes) and not self._is_measured_merged(names):
            why_not += "; merged into a wider convolution they were not measured"
        return _Judged(kind, why_not)

    def _why_no_win(self, nodes: _Nodes, names: Sequence[str], alone_us: float) -> str:
        best = self._best_measured(nodes, names, alone_us)
        if best is not None:
            how = "measured merged" if any(best.merged) else "measured"
            return _no_win_words(how, _saved_us(best, alone_us), best.spread_us)
        modelled_us = model_fastest_us(self._problem, names, self._calibration)
        if modelled_us is None:
            return "not measured together, and without kernels or device there is no model"
        return _no_win_words(
            "modelled", alone_us - modelled_us, modelled_us * self._calibration.spread
        )

    def count_measured(self, kinds: Iterable[_Kind]) -> tuple[int, int]:
        """Of kinds how many were measured together, and how many of these win."""
        measured_count = win_count = 0
        for kind in kinds:
            names = [self._problem.nodes[node].costs for node in kind.nodes]
            alone_us = sum(self._problem.costs_by_name[name].fastest.latency_us for name in names)
            best = self._best_measured(kind.nodes, names, alone_us)
            if best is not None:
                measured_count += 1
                win_count += _saved_us(best, alone_us) > best.spread_us
        return measured_count, win_count

    def _best_measured(
        self, nodes: _Nodes, names: Sequence[str], alone_us: float
    ) -> KnownStage | None:
        known = self._measured.get(tuple(sorted(names)), ())
        offered = [
            (self._problem.nodes[node].costs, self._problem.nodes[node].merge_key) for node in nodes
        ]
        return max(
            (
                stage
                for stage in known
                if find_places(stage.costs, _lanes(stage), stage.merged, offered) is not None
            ),
            key=lambda stage: _saved_us(stage, alone_us),
            default=None,
        )

    def _is_measured_merged(self, names: Sequence[str]) -> bool:
        return any(stage.merged for stage in self._measured.get(tuple(sorted(names)), ()))

    def _why_not_made(self, nodes: _Nodes, choices: Sequence[StageChoice], saved_us: float) -> str:
        source = "measured" if choices[0].source is FigureSource.MEASURED else "modelled"
        wins = f"{saved_us:.1f} us faster, {source}"
        if len(nodes) > self._max_lanes:
            return f"{wins}, but stages of up to {self._max_lanes} were searched for"
        busy = [node for node in nodes if node in self._schedule.stage_of]
        if busy:
            uses = " and ".join(
                f"'{self._problem.nodes[node].name}' runs in stage {self._schedule.stage_of[node]}"
                for node in busy
            )
            return f"{wins}, but {uses}"
        steps = self._schedule.steps_for(nodes)
        if not steps:
            return (
                f"{wins}, but in the order of this plan one of them has to run before what the "
                "other waits for"
            )
        short_bytes = self._short_bytes(nodes, choices, steps)
        if short_bytes > 0:
            return f"{wins}, but {short_bytes} bytes more than the budget would be needed"
        if self._problem.memory_budget_bytes is None:
            return f"{wins}, but the search, which was bounded, did not come to it"
        return f"{wins}, but the search did not come to it, or the memory is needed in between"

    def _short_bytes(
        self, nodes: _Nodes, choices: Sequence[StageChoice], steps: Iterable[int]
    ) -> int:
        """How much the budget is short of, at the step where it is by least."""
        budget = self._problem.memory_budget_bytes
        if budget is None:
            return 0
        outputs = sum(self._problem.node_costs[node].output_bytes for node in nodes)
        alive = min(self._schedule.alive_bytes(step, nodes) for step in steps)
        return alive + outputs + choices[-1].workspace_bytes - budget


def _lanes(stage: KnownStage) -> Sequence[int]:
    return stage.lanes or range(len(stage.costs))


def _saved_us(stage: KnownStage, alone_us: float) -> float:
    whole_us = alone_us if stage.sequential_us is None else stage.sequential_us
    return whole_us - stage.latency_us


def _no_win_words(how: str, saved_us: float, spread_us: float) -> str:
    if abs(saved_us) < 0.05:
        return f"{how} to take as long as one after another"
    if saved_us < 0:
        return f"{how} {-saved_us:.1f} us slower than one after another"
    return f"{how} {saved_us:.1f} us faster, which may be off by {spread_us:.1f}"
