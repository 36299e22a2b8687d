"""What stages cost, and the best algorithms for each: measured where that was done, else modelled.

A stage is worth making where it beats its convolutions one after another, each with the algorithm
that is fastest alone, by more than the figures may be off. What is not worth it is no option here:
the search can then only find plans that are no slower than sequential.

In order of trust:

1. The stage was measured, with these algorithms.
2. The model (`sm_model`), corrected by how it did on the measured stages of the same device: by the
   median of measured over modelled, and trusted as far as those ratios scatter.
3. The model as it is, trusted to `UNCALIBRATED_SPREAD`.

Convolutions that read one image are merged into a wider one only where that was measured: the model
knows no kernel of the wider one.

Which algorithms run together is a search of its own (branch and bound over the candidates of each
convolution), because a slower algorithm may let a neighbour in.

A model takes a hundred times as long to ask as a table. So of each set of convolutions only the few
combinations of algorithms with the lowest bounds are modelled, three or more convolutions only
where all but one of them are worth a stage, and none once a limit for the whole plan is reached.
`StageCosts.describe` says what was left out.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

from tf_interop.plan.cost.calibration import ModelCalibration, demands_of_candidate, model_stage
from tf_interop.plan.lane_places import find_places
from tf_interop.plan.problem import (
    Candidate,
    FigureSource,
    KnownStage,
    PlanningProblem,
)

# Of the algorithms of a stage: so many combinations are bounded, those of the fastest candidates.
_MOST_COMBINATIONS = 64
# And so many are modelled of a pair, half as many of three convolutions, and so on.
_MOST_MODELLED_OF_PAIR = 8
# A modelled stage this close to its bound is good enough: what could only be better by less is not
# modelled.
_NEAR_BOUND = 1.01

_Names = tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class StageChoice:
    """One way to run convolutions at the same time.

    Attributes:
        costs: the names of their ConvolutionCosts, in the order of launch.
        algorithms: the algorithm of each.
        latency_us: what the stage takes, as far as sums over stages go: where its sequence was
            measured in the same run, what its convolutions take alone less the share that was
            saved.
        spread_us: how far that may be off.
        workspace_bytes: of all lanes together.
        source: whether it was measured.
        priorities: of each lane's stream; empty where all are 0.
        sm_counts: the SMs of each lane's partition; empty where lanes share all.
        lanes: the lane of each convolution; empty where each has a lane of its own.
        merged: of each lane whether it is merged; empty where none is.
    """

    costs: tuple[str, ...]
    algorithms: tuple[str | None, ...]
    latency_us: float
    spread_us: float
    workspace_bytes: int
    source: FigureSource
    priorities: tuple[int, ...] = ()
    sm_counts: tuple[int, ...] = ()
    lanes: tuple[int, ...] = ()
    merged: tuple[bool, ...] = ()


class StageCosts:
    """Answers what the best ways are to run convolutions together. Remembers every answer."""

    def __init__(
        self, problem: PlanningProblem, calibration: ModelCalibration, *, max_modelled: int
    ) -> None:
        """Prepares to answer.

        Args:
            problem: a legal one.
            calibration: how far the model is to be trusted.
            max_modelled: combinations of algorithms to be modelled, all questions together.
        """
        self._problem = problem
        self._calibration = calibration
        self._max_modelled = max_modelled
        self._measured: Mapping[_Names, list[KnownStage]] = collections.defaultdict(list)
        self._merged: Mapping[_Names, list[KnownStage]] = collections.defaultdict(list)
        for stage in problem.stages:
            stages = self._merged if stage.merged else self._measured
            stages[tuple(sorted(stage.costs))].append(stage)
        self._known: dict[tuple[_Names, tuple[KnownStage, ...]], tuple[StageChoice, ...]] = {}
        self._demands: dict[Candidate, tuple[float, ...]] = {}
        self._choosable: dict[str, list[Candidate]] = {}
        self._modelled_count = 0
        self._parts_lose_count = 0
        self._over_limit_count = 0

    def choices(
        self, costs: Sequence[str], merge_keys: Sequence[str | None] = ()
    ) -> tuple[StageChoice, ...]:
        """The ways to run convolutions together that are worth it.

        Args:
            costs: the names of their ConvolutionCosts, a repeated one repeated.
            merge_keys: the merge key of each; empty where none may be merged.

        Returns:
            Fastest first; each later one needs less workspace than those before it. For a single
            convolution its algorithms, for several only what beats them one after another.
        """
        names = tuple(sorted(costs))
        key = names, self._mergeable(names, costs, merge_keys)
        if key not in self._known:
            found = self._alone(names[0]) if len(names) == 1 else self._together(*key)
            self._known[key] = _pareto(found)
        return self._known[key]

    def describe(self) -> str:
        """What was modelled and what was left out, for reading."""
        parts = [f"{self._modelled_count} combinations of algorithms modelled"]
        if self._parts_lose_count:
            parts.append(
                f"{self._parts_lose_count} sets of convolutions left out of which no smaller set "
                "is worth a stage"
            )
        if self._over_limit_count:
            parts.append(
                f"{self._over_limit_count} sets left out behind the limit of {self._max_modelled} "
                "modelled combinations"
            )
        return ", ".join(parts)

    def _alone(self, name: str) -> list[StageChoice]:
        return [
            StageChoice(
                costs=(name,),
                algorithms=(candidate.algorithm,),
                latency_us=candidate.latency_us,
                spread_us=candidate.spread_us,
                workspace_bytes=candidate.workspace_bytes,
                source=FigureSource.MEASURED,
            )
            for candidate in self._problem.costs_by_name[name].candidates
        ]

    def _mergeable(
        self, names: _Names, costs: Sequence[str], merge_keys: Sequence[str | None]
    ) -> tuple[KnownStage, ...]:
        """Measured stages with merged lanes that convolutions with these merge keys can make."""
        stages = self._merged.get(names)
        if not stages or not any(merge_keys):
            return ()
        offered = list(zip(costs, merge_keys, strict=True))
        return tuple(
            stage
            for stage in stages
            if find_places(stage.costs, stage.lanes, stage.merged, offered) is not None
        )

    def _together(self, key: _Names, mergeable: Sequence[KnownStage]) -> list[StageChoice]:
        alone_us = sum(self._problem.costs_by_name[name].fastest.latency_us for name in key)
        measured: list[StageChoice] = []
        winning: list[StageChoice] = []
        for stage in (*self._measured.get(key, ()), *mergeable):
            choice = self._as_choice(stage, alone_us)
            if choice is not None:
                measured.append(choice)
                if _wins(stage, alone_us):
                    winning.append(choice)
        known = {_algorithms_of(choice) for choice in measured if not choice.merged}
        return winning + [
            choice
            for choice in self._modelled(key, alone_us)
            if choice.latency_us + choice.spread_us < alone_us
            and _algorithms_of(choice) not in known
            and not any(_is_trusted_over(other, choice) for other in measured)
        ]

    def _as_choice(self, stage: KnownStage, alone_us: float) -> StageChoice | None:
        if not _runs_candidates(self._problem, stage):
            return None
        # The sum of times alone is not the time of the sequence; the share that was saved stays.
        scale = 1.0 if stage.sequential_us is None else alone_us / stage.sequential_us
        return StageChoice(
            costs=stage.costs,
            algorithms=stage.algorithms,
            latency_us=stage.latency_us * scale,
            spread_us=stage.spread_us * scale,
            workspace_bytes=stage.workspace_bytes,
            source=FigureSource.MEASURED,
            priorities=stage.priorities,
            sm_counts=stage.sm_counts,
            lanes=stage.lanes,
            merged=stage.merged,
        )

    def _modelled(self, key: tuple[str, ...], alone_us: float) -> Iterator[StageChoice]:
        """Branch and bound over the candidates: what cannot win any more is not modelled."""
        worth_us = alone_us / (1 + self._calibration.spread)
        bounded = sorted(
            (bound_us, place, chosen)
            for place, chosen in self._combine(key)
            if (bound_us := self._bound_us(chosen)) < worth_us
        )
        if not bounded or not self._may_model(key):
            return
        does_memory_matter = self._problem.memory_budget_bytes is not None
        left = _MOST_MODELLED_OF_PAIR >> (len(key) - 2) or 1
        best: StageChoice | None = None
        for bound_us, _, chosen in bounded:
            workspace_bytes = sum(each.workspace_bytes for each in chosen)
            if (
                best is not None
                and bound_us * _NEAR_BOUND >= best.latency_us
                and (not does_memory_matter or workspace_bytes >= best.workspace_bytes)
            ):
                continue
            if not left:
                return
            left -= 1
            choice = self._model_orders(key, chosen, bound_us)
            if choice is None:
                continue
            if best is None or choice.latency_us < best.latency_us:
                best = choice
            yield choice

    def _may_model(self, key: tuple[str, ...]) -> bool:
        if self._modelled_count >= self._max_modelled:
            self._over_limit_count += 1
            return False
        if len(key) > 2 and not any(
            self.choices(part) for part in itertools.combinations(key, len(key) - 1)
        ):
            self._parts_lose_count += 1
            return False
        return True

    def _combine(self, key: tuple[str, ...]) -> Iterator[tuple[int, tuple[Candidate, ...]]]:
        """Combinations of candidates, numbered; those that differ in order alone come once."""
        most = 2
        while (most + 1) ** len(key) <= _MOST_COMBINATIONS:
            most += 1
        choosable = [self._choosable_of(name)[:most] for name in key]
        for number, places in enumerate(itertools.product(*(range(len(c)) for c in choosable))):
            repeats = any(
                name == after and place > later
                for name, after, place, later in zip(key, key[1:], places, places[1:], strict=False)
            )
            if not repeats:
                yield number, tuple(c[place] for c, place in zip(choosable, places, strict=True))

    def _bound_us(self, chosen: Sequence[Candidate]) -> float:
        """What the calibrated model cannot be below."""
        demands = [self._demands_of(candidate) for candidate in chosen]
        longest_us = max(candidate.latency_us for candidate in chosen)
        together_us = max(map(sum, zip(*demands, strict=True)))
        return max(longest_us, max(longest_us, together_us) * self._calibration.factor)

    def _demands_of(self, candidate: Candidate) -> tuple[float, ...]:
        if candidate not in self._demands:
            self._demands[candidate] = demands_of_candidate(self._problem, candidate)
        return self._demands[candidate]

    def _model_orders(
        self, key: tuple[str, ...], chosen: tuple[Candidate, ...], bound_us: float
    ) -> StageChoice | None:
        """The better of longest first, and shortest first with priority."""
        self._modelled_count += 1
        places = sorted(range(len(key)), key=lambda place: -chosen[place].latency_us)
        longest_us = chosen[places[0]].latency_us
        # Where every lane has one kernel, the order of launch is all that priority would change.
        has_later_kernels = any(len(each.kernels) > 1 for each in chosen)
        best: StageChoice | None = None
        for order, has_priority in ((places, False), (places[::-1], has_later_kernels)):
            candidates = tuple(chosen[place] for place in order)
            priorities = tuple(range(-len(order) + 1, 1)) if has_priority else ()
            modelled = model_stage(self._problem, candidates, priorities, ())
            if modelled is None:
                return None
            # No stage ends before its longest convolution alone, whatever the calibration says.
            latency_us = max(modelled * self._calibration.factor, longest_us)
            if best is None or latency_us < best.latency_us:
                best = StageChoice(
                    costs=tuple(key[place] for place in order),
                    algorithms=tuple(each.algorithm for each in candidates),
                    latency_us=latency_us,
                    spread_us=latency_us * self._calibration.spread,
                    workspace_bytes=sum(each.workspace_bytes for each in candidates),
                    source=FigureSource.MODELLED,
                    priorities=priorities,
                )
            if best.latency_us <= bound_us * _NEAR_BOUND:
                break
        return best

    def _choosable_of(self, name: str) -> list[Candidate]:
        """Candidates that can be modelled, fastest first."""
        known = self._choosable.get(name)
        if known is None:
            candidates = self._problem.costs_by_name[name].candidates
            known = sorted(
                (each for each in candidates if self._demands_of(each)),
                key=lambda each: (each.latency_us, each.workspace_bytes, each.algorithm or ""),
            )
            self._choosable[name] = known
        return known


def _wins(stage: KnownStage, alone_us: float) -> bool:
    """Whether a measured stage wins by more than its spread, judged by the figures as measured."""
    whole_us = alone_us if stage.sequential_us is None else stage.sequential_us
    return stage.latency_us + stage.spread_us < whole_us


def _algorithms_of(choice: StageChoice) -> tuple[tuple[str, str], ...]:
    """Which convolutions run with which algorithms, whatever the order of launch."""
    return tuple(
        sorted(
            (name, algorithm or "")
            for name, algorithm in zip(choice.costs, choice.algorithms, strict=True)
        )
    )


def _is_trusted_over(measured: StageChoice, modelled: StageChoice) -> bool:
    """Whether the modelled stage may be slower than the measured one, and needs as much."""
    return (
        measured.latency_us < modelled.latency_us + modelled.spread_us
        and measured.workspace_bytes <= modelled.workspace_bytes
    )


def _runs_candidates(problem: PlanningProblem, stage: KnownStage) -> bool:
    """Whether all that a measured stage ran by itself are candidates."""
    lanes = stage.lanes or range(len(stage.costs))
    return all(
        (stage.merged and stage.merged[lane])
        or any(algorithm == each.algorithm for each in problem.costs_by_name[name].candidates)
        for name, algorithm, lane in zip(stage.costs, stage.algorithms, lanes, strict=True)
    )


def _pareto(choices: Sequence[StageChoice]) -> tuple[StageChoice, ...]:
    """Those that are faster than all that need as little workspace, fastest first."""
    kept: list[StageChoice] = []
    in_order = sorted(
        choices,
        key=lambda each: (
            each.latency_us,
            each.workspace_bytes,
            each.costs,
            [algorithm or "" for algorithm in each.algorithms],
            each.lanes,
        ),
    )
    for choice in in_order:
        if not kept or choice.workspace_bytes < kept[-1].workspace_bytes:
            kept.append(choice)
    return tuple(kept)
