"""The costs of stages, and the best algorithms for each: measured, or else modelled.

A stage is worth making if it beats its convolutions one after another, each with the algorithm
that is fastest alone, by more than the error. No other stage is an option, so the search only finds
plans that are no slower than sequential. A single lane of steps saves nothing and is no option.

Sources, in order of trust:

1. A measurement of the stage with these algorithms.
2. The model, calibrated with measured stages of the same device (`StageModel`).
3. The uncalibrated model, trusted to `UNCALIBRATED_SPREAD`.

Merged convolutions need a measurement, because the model does not know their kernels.

A slower algorithm may leave room for a neighbour. So branch and bound over the algorithms of all
convolutions of a stage chooses those that run together. Modelling takes a hundred times as
long as a look-up. Therefore only the few combinations with the lowest bounds are modelled for each
set of lanes, three or more lanes only if all but one of them are worth a stage, and none beyond a
limit for the whole plan. Lanes of several steps have their own limit. `StageCosts.describe` counts
the sets that were left out.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence

from tf_interop.contraction import misplaced_step
from tf_interop.convolution import output_bytes
from tf_interop.planning.problem import PlanningProblem
from tf_interop.planning.stage_model import Combination, StageModel, latency_us
from tf_interop.planning.types import StageChoice, StagePrediction, ValueSource
from tf_interop.stage import Lane, Stage, Step

# Combinations of a stage's algorithms that are bounded: those of the fastest algorithms.
_MOST_COMBINATIONS = 64
# Combinations that are modelled for a pair of lanes; half as many for three lanes, and so on.
_MOST_MODELLED_OF_PAIR = 8
# A modelled stage this close to its bound is good enough.
_NEAR_BOUND = 1.01
# Algorithms that are tried for all convolutions of a stage, to explain why it does not use them.
_MOST_USUAL = 3

Lanes = tuple[tuple[int, ...], ...]
"""The lanes of a stage, each with its nodes in order; lanes in the order of their first nodes."""

_Operations = tuple[tuple[int, ...], ...]
"""The number of the configuration of each step of each lane."""

Choice = StageChoice[int]
"""One way to run a stage; its operations are numbers of configurations."""


class StageCosts:
    """Finds and caches the best ways to run convolutions together."""

    def __init__(self, problem: PlanningProblem, *, max_modelled: int) -> None:
        self._problem = problem
        self._model = StageModel(problem)
        self._max_modelled = max_modelled
        self._groups = [node.group for node in problem.nodes]
        # By the numbers of configurations.
        self._algorithms = list(problem.algorithms.values())
        self._output_bytes = list(map(output_bytes, problem.algorithms))
        self._choosable = [list(filter(self._model.knows, its)) for its in self._algorithms]
        self._measured: dict[tuple[int, ...], list[int]] = collections.defaultdict(list)
        for place, stage in enumerate(problem.numbered_stages):
            self._measured[tuple(sorted(stage.operations))].append(place)
        self._known: dict[tuple[_Operations, tuple[int, ...]], tuple[Choice, ...]] = {}
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
        ) or any(self._choosable)

    def choices(self, lanes: Lanes) -> tuple[Choice, ...]:
        """The ways to run a stage that are worth it: for one convolution, its algorithms.

        Returns:
            Fastest first; each later one needs less workspace than those before it. A choice may
            merge some of `lanes`.
        """
        nodes = [node for lane in lanes for node in lane]
        if len({self._groups[node] for node in nodes}) > 1:
            return ()
        numbers = self._problem.numbers
        flat = tuple(sorted([numbers[node] for node in nodes]))
        if len(nodes) == len(lanes):
            operations: _Operations = tuple([(each,) for each in flat])
        else:
            operations = tuple(sorted([tuple([numbers[node] for node in lane]) for lane in lanes]))
        alike = self._measured.get(flat, ())
        key = operations, tuple([place for place in alike if self._can_be_placed(place, lanes)])
        found = self._known.get(key)
        if found is None:
            if len(nodes) == 1:
                choices = self._alone(operations[0][0])
            else:
                choices = self._together(lanes, *key) if len(lanes) > 1 else []
            found = self._known[key] = _pareto(choices)
        return found

    def measured(self, lanes: Lanes) -> list[Choice]:
        """All measurements of a stage, even those that do not win; a node's fastest algorithm."""
        operations = tuple(sorted(self._problem.numbers[node] for lane in lanes for node in lane))
        if len(operations) == 1:
            return self._alone(operations[0])[:1]
        return [
            self._as_choice(place)
            for place in self._measured.get(operations, ())
            if self._can_be_placed(place, lanes)
        ]

    def usual(self, lanes: Lanes) -> list[Choice]:
        """The usual choices, as far as they can be modelled: the fastest alone, and one for all."""
        if len(lanes) == 1:
            return []
        operations = tuple(tuple(self._problem.numbers[node] for node in lane) for lane in lanes)
        combinations = [[[self._algorithms[each][0] for each in lane] for lane in operations]]
        for usual in self._algorithms[operations[0][0]][:_MOST_USUAL]:
            found = [
                [
                    other
                    for each in lane
                    for other in self._algorithms[each]
                    if other.algorithm == usual.algorithm
                ]
                for lane in operations
            ]
            if list(map(len, found)) == list(map(len, operations)):
                combinations.append(found)
        modelled = (self._model_orders(operations, chosen, 0.0) for chosen in combinations)
        return [each for each in modelled if each is not None]

    def place(self, stage: Stage[int], lanes: Lanes) -> Stage[str] | None:
        """Finds a node for each step of a choice, by name; None if these nodes do not fit it."""
        nodes = [node for lane in lanes for node in lane]
        readers: list[set[int]] = [set() for _ in nodes]
        if len(lanes) < len(nodes):
            for position, node in enumerate(nodes):
                for predecessor in self._problem.nodes[node].predecessors:
                    if predecessor in nodes:
                        readers[nodes.index(predecessor)].add(position)
        of_nodes = [self._problem.nodes[node] for node in nodes]
        offered = [
            (self._problem.numbers[node], its.merge_key)
            for node, its in zip(nodes, of_nodes, strict=True)
        ]
        placed = _find_places(stage, offered, readers)
        return None if placed is None else placed.map(lambda place: of_nodes[place].name)

    def describe(self) -> str:
        """Describes the extent of the modelling."""
        parts = [f"{sum(self._modelled_count.values())} combinations of algorithms modelled"]
        if self._over_limit_count:
            parts.append(
                f"{self._over_limit_count} sets left out after the limit of {self._max_modelled} "
                "modelled combinations"
            )
        return f"{', '.join(parts)}; {self._model.describe()}"

    def _can_be_placed(self, place: int, lanes: Lanes) -> bool:
        stage = self._problem.numbered_stages[place]
        if len(stage.lanes) == len(lanes) == len(stage.operations):
            return True
        return self.place(stage, lanes) is not None

    def _alone(self, operation: int) -> list[Choice]:
        return [
            self._choice(
                Stage.in_sequence([Step(operation, each.algorithm)]),
                each.latency_us,
                each.spread_us,
                each.workspace_bytes,
                ValueSource.MEASURED,
            )
            for each in self._algorithms[operation]
        ]

    def _choice(
        self,
        stage: Stage[int],
        latency_us: float,
        spread_us: float,
        workspace_bytes: int,
        source: ValueSource,
    ) -> Choice:
        operations = stage.operations
        prediction = StagePrediction(
            latency_us,
            spread_us,
            self._alone_us(operations),
            source,
            workspace_bytes,
            peak_bytes=workspace_bytes + sum(self._output_bytes[each] for each in operations),
        )
        return StageChoice(stage, prediction)

    def _as_choice(self, place: int) -> Choice:
        stage, measured = self._problem.numbered_stages[place], self._problem.stages[place]
        # Times alone do not add up to the time of the sequence, so the relative saving is kept.
        scale = self._alone_us(stage.operations) / measured.sequential_us
        return self._choice(
            stage,
            measured.latency_us * scale,
            measured.spread_us * scale,
            measured.workspace_bytes,
            ValueSource.MEASURED,
        )

    def _together(
        self, lanes: Lanes, operations: _Operations, measured_places: Sequence[int]
    ) -> list[Choice]:
        measured = {place: self._as_choice(place) for place in measured_places}
        known = {algorithms_of(choice.stage) for choice in measured.values()}
        return [
            choice for place, choice in measured.items() if self._problem.stages[place].wins
        ] + [
            choice
            for choice in self._modelled(lanes, operations)
            if choice.prediction.wins
            and algorithms_of(choice.stage) not in known
            and not any(
                _is_trusted_over(other.prediction, choice.prediction) for other in measured.values()
            )
        ]

    def _alone_us(self, operations: Iterable[int]) -> float:
        # Sorted, because the order decides the last digits.
        return sum(self._algorithms[each][0].latency_us for each in sorted(operations))

    def _modelled(self, lanes: Lanes, operations: _Operations) -> Iterator[Choice]:
        """Branch and bound over the algorithms: only those that can still win are modelled."""
        has_several = any(len(lane) > 1 for lane in lanes)
        if self._modelled_count[has_several] >= self._max_modelled:
            self._over_limit_count += 1
            return
        worth_us = self._alone_us(itertools.chain(*operations)) / (1 + self._model.spread)
        bounded = sorted(
            (bound_us, number, chosen)
            for number, chosen in self._combine(operations)
            if (bound_us := self._model.bound_us(chosen)) < worth_us
        )
        if not bounded or not self._does_a_part_win(lanes):
            return
        does_memory_matter = self._problem.memory_budget_bytes is not None
        left = _MOST_MODELLED_OF_PAIR >> (len(lanes) - 2) or 1
        best: StagePrediction | None = None
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
            choice = self._model_orders(operations, chosen, bound_us)
            if choice is None:
                continue
            if best is None or choice.prediction.latency_us < best.latency_us:
                best = choice.prediction
            yield choice

    def _does_a_part_win(self, lanes: Lanes) -> bool:
        parts = itertools.combinations(lanes, len(lanes) - 1)
        return len(lanes) == 2 or any(map(self.choices, parts))

    def _combine(self, operations: _Operations) -> Iterator[tuple[int, Combination]]:
        """Numbered combinations of algorithms; those that differ only in order come once."""
        step_count = sum(map(len, operations))
        most = 1
        while (most + 1) ** step_count <= _MOST_COMBINATIONS:
            most += 1
        ways = [
            list(itertools.product(*(enumerate(self._choosable[each][:most]) for each in lane)))
            for lane in operations
        ]
        seen = set()
        for number, chosen in enumerate(itertools.product(*ways)):
            places = [tuple(place for place, _ in lane) for lane in chosen]
            alike = tuple(sorted(zip(operations, places, strict=True)))
            if alike not in seen:
                seen.add(alike)
                yield number, tuple(tuple(each for _, each in lane) for lane in chosen)

    def _model_orders(
        self, operations: _Operations, chosen: Combination, bound_us: float
    ) -> Choice | None:
        """The better of two orders: longest first, and shortest first with priority."""
        self._modelled_count[any(len(lane) > 1 for lane in operations)] += 1
        longest_first = sorted(range(len(chosen)), key=lambda place: -latency_us(chosen[place]))
        # If every lane has one kernel, priority is the same as launch order.
        has_later_kernels = any(sum(len(each.kernels) for each in lane) > 1 for lane in chosen)
        equal = [0] * len(chosen)
        rising = list(range(1 - len(chosen), 1)) if has_later_kernels else equal
        best_us, best = math.inf, (longest_first, equal)
        for order, priorities in ((longest_first, equal), (longest_first[::-1], rising)):
            modelled_us = self._model.latency_us([chosen[place] for place in order], priorities)
            if modelled_us is None:
                return None
            if modelled_us < best_us:
                best_us, best = modelled_us, (order, priorities)
            if best_us <= bound_us * _NEAR_BOUND:
                break
        lanes = [
            Lane(
                tuple(
                    Step(operation, each.algorithm)
                    for operation, each in zip(operations[place], chosen[place], strict=True)
                ),
                priority,
            )
            for place, priority in zip(*best, strict=True)
        ]
        return self._choice(
            Stage(tuple(lanes)),
            best_us,
            best_us * self._model.spread,
            _workspace_bytes(chosen),
            ValueSource.MODELLED,
        )


def _workspace_bytes(chosen: Combination) -> int:
    """The steps of a lane share one workspace."""
    return sum(max(each.workspace_bytes for each in lane) for lane in chosen)


def algorithms_of(stage: Stage[int]) -> tuple[object, ...]:
    """A key for the algorithms of convolutions that ignores launch order."""
    lanes = (
        (lane.merged, tuple((step.operation, step.algorithm or "") for step in lane.steps))
        for lane in stage.lanes
    )
    return tuple(sorted(lanes))


def _is_trusted_over(measured: StagePrediction, modelled: StagePrediction) -> bool:
    """Whether the modelled stage may be slower than the measured one, and needs no less memory."""
    return (
        measured.latency_us < modelled.latency_us + modelled.spread_us
        and measured.workspace_bytes <= modelled.workspace_bytes
    )


def _pareto(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """The choices that are faster than any with as little workspace, fastest first."""
    kept: list[Choice] = []
    in_order = sorted(
        choices,
        key=lambda each: (
            each.prediction.latency_us,
            each.prediction.workspace_bytes,
            each.stage.operations,
            [step.algorithm or "" for step in each.stage.steps],
            each.stage.lane_of_step,
        ),
    )
    for choice in in_order:
        if not kept or choice.prediction.workspace_bytes < kept[-1].prediction.workspace_bytes:
            kept.append(choice)
    return tuple(kept)


def _find_places(
    stage: Stage[int],
    offered: Sequence[tuple[int, str | None]],
    readers: Sequence[Collection[int]],
) -> Stage[int] | None:
    """Finds a different node for each step of a stage: the earliest places in `offered` that fit.

    Args:
        stage: its operations are numbers of configurations.
        offered: number of the configuration and merge key of each node.
        readers: places of the nodes that depend on each node.
    """
    if collections.Counter(stage.operations) != collections.Counter(
        number for number, _ in offered
    ):
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
        number, lane = stage.operations[step], lane_of_step[step]
        keys = {offered[taken[each]][1] for each in order[:depth] if lane_of_step[each] == lane}
        tried = set()
        for position, of in enumerate(offered):
            if of[0] != number or position in taken.values():
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
