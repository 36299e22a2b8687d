"""The costs of stages, and the best algorithms for each: measured, or else modelled.

A stage is worth making if it beats its convolutions one after another, each with the algorithm
that is fastest alone, by more than the error. No other stage is an option, so the search only finds
plans that are no slower than sequential. A single lane of steps saves nothing and is no option.

Sources, in order of trust:

1. A measurement of the stage with these algorithms.
2. The model, calibrated with measured stages of the same device (`StageModel`).
3. The uncalibrated model, trusted to `UNCALIBRATED_SPREAD`.

Merged convolutions need a measurement, because the model does not know their kernels.

A slower algorithm may leave room for a neighbour. So branch and bound over the candidates of all
convolutions of a stage chooses the algorithms that run together. Modelling takes a hundred times as
long as a look-up. Therefore only the few combinations with the lowest bounds are modelled for each
set of lanes, three or more lanes only if all but one of them are worth a stage, and none beyond a
limit for the whole plan. Lanes of several steps have their own limit. `StageCosts.describe` counts
the sets that were left out.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence

from tf_interop.contraction import misplaced_step
from tf_interop.planning.problem import MeasuredStage, PlanningProblem, ValueSource
from tf_interop.planning.stage_model import Candidates, StageModel, latency_us
from tf_interop.stage import Lane, Stage, Step

# Combinations of a stage's algorithms that are bounded: those of the fastest candidates.
_MOST_COMBINATIONS = 64
# Combinations that are modelled for a pair of lanes; half as many for three lanes, and so on.
_MOST_MODELLED_OF_PAIR = 8
# A modelled stage this close to its bound is good enough.
_NEAR_BOUND = 1.01
# Algorithms that are tried for all convolutions of a stage, to explain why it does not use them.
_MOST_USUAL = 3

Lanes = tuple[tuple[int, ...], ...]
"""The lanes of a stage, each with its nodes in order; lanes in the order of their first nodes."""

_Names = tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class StageChoice:
    """One way to run a stage.

    Attributes:
        stage: its operations are names of ConvolutionCosts.
        latency_us: a time that can be summed over stages. For a measured stage it is the sum of its
            convolutions' times alone, less the measured relative saving.
        spread_us: error of `latency_us`.
        workspace_bytes: sum over the lanes.
        memory_bytes: workspaces and results.
    """

    stage: Stage[str]
    latency_us: float
    spread_us: float
    workspace_bytes: int
    memory_bytes: int
    source: ValueSource


class StageCosts:
    """Finds and caches the best ways to run convolutions together."""

    def __init__(self, problem: PlanningProblem, *, max_modelled: int) -> None:
        self._problem = problem
        self._model = StageModel(problem)
        self._max_modelled = max_modelled
        self._names = [node.costs for node in problem.nodes]
        self._groups = [node.group for node in problem.nodes]
        self._measured: dict[tuple[str, ...], list[int]] = collections.defaultdict(list)
        for number, measured in enumerate(problem.stages):
            self._measured[tuple(sorted(measured.stage.operations))].append(number)
        self._known: dict[tuple[_Names, tuple[int, ...]], tuple[StageChoice, ...]] = {}
        # Candidates that can be modelled, fastest first.
        self._choosable = {
            each.name: list(filter(self._model.knows, each.fastest_first)) for each in problem.costs
        }
        # The key is whether a lane has several steps.
        self._modelled_count = {False: 0, True: 0}
        self._over_limit_count = 0

    @property
    def knows_lanes_of_several(self) -> bool:
        """Whether a choice may have an unmerged lane of several steps."""
        return any(
            len(lane.steps) > 1 and not lane.merged
            for measured in self._problem.stages
            for lane in measured.stage.lanes
        ) or any(self._choosable.values())

    def choices(self, lanes: Lanes) -> tuple[StageChoice, ...]:
        """The ways to run a stage that are worth it: for one convolution, its algorithms.

        Returns:
            Fastest first; each later one needs less workspace than those before it. A choice may
            merge some of `lanes`.
        """
        nodes = [node for lane in lanes for node in lane]
        if len({self._groups[node] for node in nodes}) > 1:
            return ()
        flat = tuple(sorted([self._names[node] for node in nodes]))
        if len(nodes) == len(lanes):
            names: _Names = tuple([(name,) for name in flat])
        else:
            names = tuple(sorted([tuple([self._names[node] for node in lane]) for lane in lanes]))
        alike = self._measured.get(flat, ())
        key = names, tuple([number for number in alike if self._can_be_placed(number, lanes)])
        found = self._known.get(key)
        if found is None:
            if len(nodes) == 1:
                choices = self._alone(names[0][0])
            else:
                choices = self._together(lanes, *key) if len(lanes) > 1 else []
            found = self._known[key] = _pareto(choices)
        return found

    def measured(self, lanes: Lanes) -> list[StageChoice]:
        """All measurements of a stage with these nodes, even those that do not win.

        For a single node this is its fastest algorithm.
        """
        names = tuple(sorted(self._names[node] for lane in lanes for node in lane))
        if len(names) == 1:
            return self._alone(names[0])[:1]
        alone_us = self._alone_us(names)
        return [
            self._as_choice(self._problem.stages[number], alone_us)
            for number in self._measured.get(names, ())
            if self._can_be_placed(number, lanes)
        ]

    def usual(self, lanes: Lanes) -> list[StageChoice]:
        """The usual choices of algorithms, as far as they can be modelled.

        These are the algorithm that is fastest alone for each node, and one algorithm for all.
        """
        if len(lanes) == 1:
            return []
        names = tuple(tuple(self._names[node] for node in lane) for lane in lanes)
        costs = [[self._problem.node_costs[node] for node in lane] for lane in lanes]
        combinations = [[[each.fastest for each in lane] for lane in costs]]
        for candidate in costs[0][0].fastest_first[:_MOST_USUAL]:
            found = [[each.candidate(candidate.algorithm) for each in lane] for lane in costs]
            if all(each is not None for lane in found for each in lane):
                combinations.append(found)  # type: ignore[arg-type]
        modelled = (self._model_orders(names, chosen, 0.0) for chosen in combinations)
        return [each for each in modelled if each is not None]

    def place(self, stage: Stage[str], lanes: Lanes) -> Stage[int] | None:
        """Finds a node for each step of a stage of costs; None if these nodes do not fit it."""
        nodes = [node for lane in lanes for node in lane]
        of_nodes = [self._problem.nodes[node] for node in nodes]
        readers: list[set[int]] = [set() for _ in nodes]
        if len(lanes) < len(nodes):
            for position, node in enumerate(nodes):
                for predecessor in self._problem.predecessors[node]:
                    if predecessor in nodes:
                        readers[nodes.index(predecessor)].add(position)
        offered = [(node.costs, node.merge_key) for node in of_nodes]
        placed = _find_places(stage, offered, readers)
        return None if placed is None else placed.map(nodes.__getitem__)

    def describe(self) -> str:
        """Describes the extent of the modelling."""
        parts = [f"{sum(self._modelled_count.values())} combinations of algorithms modelled"]
        if self._over_limit_count:
            parts.append(
                f"{self._over_limit_count} sets left out after the limit of {self._max_modelled} "
                "modelled combinations"
            )
        return f"{', '.join(parts)}; {self._model.describe()}"

    def _can_be_placed(self, number: int, lanes: Lanes) -> bool:
        stage = self._problem.stages[number].stage
        if len(stage.lanes) == len(lanes) == len(stage.operations):
            return True
        return self.place(stage, lanes) is not None

    def _alone(self, name: str) -> list[StageChoice]:
        return [
            self._choice(
                Stage.in_sequence([Step(name, candidate.algorithm)]),
                candidate.latency_us,
                candidate.spread_us,
                candidate.workspace_bytes,
                ValueSource.MEASURED,
            )
            for candidate in self._problem.costs_by_name[name].fastest_first
        ]

    def _choice(
        self,
        stage: Stage[str],
        latency_us: float,
        spread_us: float,
        workspace_bytes: int,
        source: ValueSource,
    ) -> StageChoice:
        by_name = self._problem.costs_by_name
        output_bytes = sum(by_name[name].output_bytes for name in stage.operations)
        memory_bytes = output_bytes + workspace_bytes
        return StageChoice(stage, latency_us, spread_us, workspace_bytes, memory_bytes, source)

    def _as_choice(self, measured: MeasuredStage, alone_us: float) -> StageChoice:
        # Times alone do not add up to the time of the sequence, so the relative saving is kept.
        scale = alone_us / measured.sequential_us
        return self._choice(
            measured.stage,
            measured.latency_us * scale,
            measured.spread_us * scale,
            measured.workspace_bytes,
            ValueSource.MEASURED,
        )

    def _together(
        self, lanes: Lanes, names: _Names, measured_numbers: Sequence[int]
    ) -> list[StageChoice]:
        alone_us = self._alone_us(itertools.chain(*names))
        measured = [
            (stage.wins, self._as_choice(stage, alone_us))
            for stage in (self._problem.stages[number] for number in measured_numbers)
        ]
        known = {algorithms_of(choice.stage) for _, choice in measured}
        return [choice for wins, choice in measured if wins] + [
            choice
            for choice in self._modelled(lanes, names, alone_us)
            if choice.latency_us + choice.spread_us < alone_us
            and algorithms_of(choice.stage) not in known
            and not any(_is_trusted_over(other, choice) for _, other in measured)
        ]

    def _alone_us(self, names: Iterable[str]) -> float:
        return sum(self._problem.costs_by_name[name].fastest.latency_us for name in names)

    def _modelled(self, lanes: Lanes, names: _Names, alone_us: float) -> Iterator[StageChoice]:
        """Branch and bound over the candidates: only those that can still win are modelled."""
        has_several = any(len(lane) > 1 for lane in lanes)
        if self._modelled_count[has_several] >= self._max_modelled:
            self._over_limit_count += 1
            return
        worth_us = alone_us / (1 + self._model.spread)
        bounded = sorted(
            (bound_us, number, chosen)
            for number, chosen in self._combine(names)
            if (bound_us := self._model.bound_us(chosen)) < worth_us
        )
        if not bounded or not self._does_a_part_win(lanes):
            return
        does_memory_matter = self._problem.memory_budget_bytes is not None
        left = _MOST_MODELLED_OF_PAIR >> (len(lanes) - 2) or 1
        best: StageChoice | None = None
        for bound_us, _, chosen in bounded:
            if (
                best is not None
                and bound_us * _NEAR_BOUND >= best.latency_us
                and (not does_memory_matter or _workspace_bytes(chosen) >= best.workspace_bytes)
            ):
                continue
            if not left:
                return
            left -= 1
            choice = self._model_orders(names, chosen, bound_us)
            if choice is None:
                continue
            if best is None or choice.latency_us < best.latency_us:
                best = choice
            yield choice

    def _does_a_part_win(self, lanes: Lanes) -> bool:
        parts = itertools.combinations(lanes, len(lanes) - 1)
        return len(lanes) == 2 or any(map(self.choices, parts))

    def _combine(self, names: _Names) -> Iterator[tuple[int, Candidates]]:
        """Numbered combinations of candidates; those that differ only in order come once."""
        step_count = sum(map(len, names))
        most = 1
        while (most + 1) ** step_count <= _MOST_COMBINATIONS:
            most += 1
        ways = [
            list(itertools.product(*(enumerate(self._choosable[name][:most]) for name in lane)))
            for lane in names
        ]
        seen = set()
        for number, chosen in enumerate(itertools.product(*ways)):
            places = [tuple(place for place, _ in lane) for lane in chosen]
            alike = tuple(sorted(zip(names, places, strict=True)))
            if alike not in seen:
                seen.add(alike)
                yield number, tuple(tuple(each for _, each in lane) for lane in chosen)

    def _model_orders(
        self, names: _Names, chosen: Candidates, bound_us: float
    ) -> StageChoice | None:
        """The better of two orders: longest first, and shortest first with priority."""
        self._modelled_count[any(len(lane) > 1 for lane in names)] += 1
        places = sorted(range(len(names)), key=lambda place: -latency_us(chosen[place]))
        # If every lane has one kernel, priority is the same as launch order.
        has_later_kernels = any(sum(len(each.kernels) for each in lane) > 1 for lane in chosen)
        best: StageChoice | None = None
        for order, has_priority in ((places, False), (places[::-1], has_later_kernels)):
            priorities = [place - len(order) + 1 for place in range(len(order))]
            stage = Stage(
                tuple(
                    Lane(
                        tuple(
                            Step(name, each.algorithm)
                            for name, each in zip(names[place], chosen[place], strict=True)
                        ),
                        priority if has_priority else 0,
                    )
                    for place, priority in zip(order, priorities, strict=True)
                )
            )
            modelled_us = self._model.latency_us(stage)
            if modelled_us is None:
                return None
            if best is None or modelled_us < best.latency_us:
                best = self._choice(
                    stage,
                    modelled_us,
                    modelled_us * self._model.spread,
                    _workspace_bytes(chosen),
                    ValueSource.MODELLED,
                )
            if best.latency_us <= bound_us * _NEAR_BOUND:
                break
        return best


def _workspace_bytes(chosen: Candidates) -> int:
    """The steps of a lane share one workspace."""
    return sum(max(each.workspace_bytes for each in lane) for lane in chosen)


def algorithms_of(stage: Stage[str]) -> tuple[object, ...]:
    """A key for the algorithms of convolutions that ignores launch order."""
    lanes = (
        (lane.merged, tuple((step.operation, step.algorithm or "") for step in lane.steps))
        for lane in stage.lanes
    )
    return tuple(sorted(lanes))


def _is_trusted_over(measured: StageChoice, modelled: StageChoice) -> bool:
    """Whether the modelled stage may be slower than the measured one, and needs no less memory."""
    return (
        measured.latency_us < modelled.latency_us + modelled.spread_us
        and measured.workspace_bytes <= modelled.workspace_bytes
    )


def _pareto(choices: Sequence[StageChoice]) -> tuple[StageChoice, ...]:
    """The choices that are faster than any with as little workspace, fastest first."""
    kept: list[StageChoice] = []
    in_order = sorted(
        choices,
        key=lambda each: (
            each.latency_us,
            each.workspace_bytes,
            each.stage.operations,
            [step.algorithm or "" for step in each.stage.steps],
            each.stage.lane_of_step,
        ),
    )
    for choice in in_order:
        if not kept or choice.workspace_bytes < kept[-1].workspace_bytes:
            kept.append(choice)
    return tuple(kept)


def _find_places(
    stage: Stage[str],
    offered: Sequence[tuple[str, str | None]],
    readers: Sequence[Collection[int]],
) -> Stage[int] | None:
    """Finds a different node for each step of a stage.

    Args:
        stage: its operations are names of costs.
        offered: name of the costs and merge key of each node.
        readers: positions of the nodes that depend on each node.

    Returns:
        The stage with the earliest positions in `offered` that fit; None if there are none.
    """
    if collections.Counter(stage.operations) != collections.Counter(kind for kind, _ in offered):
        return None
    related = {node for source, each in enumerate(readers) if each for node in (source, *each)}
    # A step without a node yet counts as an independent node.
    padded = (*readers, *[()] * len(stage.operations))
    lane_of_step = stage.lane_of_step
    # Merged lanes first, because the nodes that fit them are rarer.
    order = sorted(
        range(len(lane_of_step)), key=lambda step: not stage.lanes[lane_of_step[step]].merged
    )
    taken: dict[int, int] = {}

    def filled() -> Stage[int]:
        steps = iter(range(len(order)))
        return stage.map(lambda _: taken.get(step := next(steps), len(offered) + step))

    def fill(depth: int) -> bool:
        if depth == len(order):
            return True
        step = order[depth]
        kind, lane = stage.operations[step], lane_of_step[step]
        keys = {offered[taken[each]][1] for each in order[:depth] if lane_of_step[each] == lane}
        tried = set()
        for position, of in enumerate(offered):
            if of[0] != kind or position in taken.values():
                continue
            if stage.lanes[lane].merged and (of[1] is None or keys - {of[1]}):
                continue
            # Unrelated nodes with one merge key are interchangeable.
            alike = of[1], position if position in related else None
            if alike in tried:
                continue
            tried.add(alike)
            taken[step] = position
            if not (related and misplaced_step(padded, filled())) and fill(depth + 1):
                return True
            del taken[step]
        return False

    return filled() if fill(0) else None
