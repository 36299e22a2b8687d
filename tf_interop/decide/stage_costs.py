"""What stages cost, and the best algorithms for each: measured where that was done, else modelled.

A stage is worth making where it beats its convolutions one after another, each with the algorithm
that is fastest alone, by more than the figures may be off. What is not worth it is no option here:
the search can then only find plans that are no slower than sequential.

In order of trust:

1. The stage was measured, with these algorithms.
2. The model (`sm_model`), corrected by how it did on the measured stages of the same device: by the
   median of measured over modelled, and trusted as far as those ratios scatter.
3. The model as it is, trusted to `UNCALIBRATED_SPREAD`.

Which algorithms run together is a search of its own (branch and bound over the candidates of each
convolution), because a slower algorithm may let a neighbour in.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from tf_interop.decide.sm_model import ModelKernel, demands_of, model_stage_us
from tf_interop.know.planning_problem import (
    Candidate,
    ConvolutionCosts,
    FigureSource,
    KnownStage,
    PlanningProblem,
)
from tf_interop.know.profile import KernelMeasurement, SmLimits

UNCALIBRATED_SPREAD = 0.2
"""Share of a modelled latency that it may be off, where no measured stage says better. A choice to
be careful by, not a measurement."""

_FEWEST_FOR_CALIBRATION = 3
# Of the algorithms of a stage: so many are bounded, those of the fastest candidates.
_MOST_COMBINATIONS = 64

# What cuobjdump and CUPTI report is per thread; the hardware allocates registers per warp in
# units of this (CUDA C++ Programming Guide, "Compute Capabilities").
_WARP = 32
_REGISTER_UNIT = 256


@dataclasses.dataclass(frozen=True, slots=True)
class StageChoice:
    """One way to run convolutions at the same time, each on a lane of its own.

    Attributes:
        costs: the names of their ConvolutionCosts, in the order of launch.
        candidates: the algorithm of each.
        latency_us: what the stage takes, as far as sums over stages go: where its sequence was
            measured in the same run, what its convolutions take alone less what was saved.
        spread_us: how far that may be off.
        workspace_bytes: of all lanes together.
        source: whether it was measured.
        priorities: of each lane's stream; empty where all are 0.
        sm_counts: the SMs of each lane's partition; empty where lanes share all.
    """

    costs: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    latency_us: float
    spread_us: float
    workspace_bytes: int
    source: FigureSource
    priorities: tuple[int, ...] = ()
    sm_counts: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ModelCalibration:
    """How the model did on stages that were measured.

    Attributes:
        factor: what modelled latencies are multiplied with.
        spread: share of the result that it may be off.
        stages: how many stages that was learned from; 0 where it was not.
    """

    factor: float = 1.0
    spread: float = UNCALIBRATED_SPREAD
    stages: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class ModelComparison:
    """A measured stage beside what the model says of it.

    Attributes:
        stage: the measurement.
        modelled_us: the model's figure, not calibrated.
    """

    stage: KnownStage
    modelled_us: float

    @property
    def ratio(self) -> float:
        """Measured over modelled."""
        return self.stage.latency_us / self.modelled_us


def compare_model(problem: PlanningProblem) -> tuple[ModelComparison, ...]:
    """Models every measured stage whose kernels are known.

    Returns:
        In the order of the problem's stages; those that cannot be modelled are left out.
    """
    compared = []
    for stage in problem.stages:
        candidates = _candidates_of(problem, stage)
        if candidates is None:
            continue
        modelled = _model(problem, candidates, stage.priorities, stage.sm_counts)
        if modelled is not None:
            compared.append(ModelComparison(stage, modelled))
    return tuple(compared)


def calibrate_model(problem: PlanningProblem) -> ModelCalibration:
    """Learns from measured stages; as it is, where there are fewer than three."""
    ratios = [each.ratio for each in compare_model(problem)]
    if len(ratios) < _FEWEST_FOR_CALIBRATION:
        return ModelCalibration()
    factor = statistics.median(ratios)
    deviations = sorted(abs(ratio / factor - 1) for ratio in ratios)
    # Nine of ten measured stages lie within it.
    spread = deviations[math.ceil(0.9 * len(deviations)) - 1]
    return ModelCalibration(factor, spread, len(ratios))


class StageCosts:
    """Answers what the best ways are to run convolutions together. Remembers every answer."""

    def __init__(self, problem: PlanningProblem, calibration: ModelCalibration) -> None:
        self._problem = problem
        self._calibration = calibration
        self._measured: Mapping[tuple[str, ...], list[KnownStage]] = collections.defaultdict(list)
        for stage in problem.stages:
            self._measured[tuple(sorted(stage.costs))].append(stage)
        self._known: dict[tuple[str, ...], tuple[StageChoice, ...]] = {}
        self._demands: dict[Candidate, tuple[float, ...]] = {}
        self.combinations = 0
        """Combinations of algorithms that were looked at."""

    def choices(self, costs: Sequence[str]) -> tuple[StageChoice, ...]:
        """The ways to run convolutions together that are worth it.

        Args:
            costs: the names of their ConvolutionCosts, a repeated one repeated.

        Returns:
            Fastest first; each later one needs less workspace than those before it. For a single
            convolution its algorithms, for several only what beats them one after another.
        """
        key = tuple(sorted(costs))
        if key not in self._known:
            found = self._alone(key[0]) if len(key) == 1 else self._together(key)
            self._known[key] = _pareto(found)
        return self._known[key]

    def _alone(self, name: str) -> list[StageChoice]:
        return [
            StageChoice(
                costs=(name,),
                candidates=(candidate,),
                latency_us=candidate.latency_us,
                spread_us=candidate.spread_us,
                workspace_bytes=candidate.workspace_bytes,
                source=FigureSource.MEASURED,
            )
            for candidate in self._problem.costs_by_name[name].candidates
        ]

    def _together(self, key: tuple[str, ...]) -> list[StageChoice]:
        alone_us = sum(self._problem.costs_by_name[name].fastest.latency_us for name in key)
        measured = [self._as_choice(stage, alone_us) for stage in self._measured.get(key, ())]
        known = {(choice.costs, choice.candidates) for choice in measured if choice}
        modelled = [
            choice
            for choice in self._modelled(key, alone_us)
            if (choice.costs, choice.candidates) not in known
        ]
        return [
            choice
            for choice in (*measured, *modelled)
            if choice is not None and choice.latency_us + choice.spread_us < alone_us
        ]

    def _as_choice(self, stage: KnownStage, alone_us: float) -> StageChoice | None:
        candidates = _candidates_of(self._problem, stage)
        if candidates is None:
            return None
        latency_us = stage.latency_us
        if stage.sequential_us is not None:
            # The sum of times alone is not the time of the sequence; what was saved stays.
            latency_us = max(alone_us - (stage.sequential_us - stage.latency_us), 0.0)
        return StageChoice(
            costs=stage.costs,
            candidates=candidates,
            latency_us=latency_us,
            spread_us=stage.spread_us,
            workspace_bytes=stage.workspace_bytes,
            source=FigureSource.MEASURED,
            priorities=stage.priorities,
            sm_counts=stage.sm_counts,
        )

    def _modelled(self, key: tuple[str, ...], alone_us: float) -> Iterator[StageChoice]:
        """Branch and bound over the candidates: what cannot win any more is not modelled."""
        worth_us = alone_us / (1 + self._calibration.spread) / self._calibration.factor
        bounded = sorted(
            ((self._bound_us(chosen), place, chosen) for place, chosen in self._combine(key)),
        )
        best: StageChoice | None = None
        for bound_us, _, chosen in bounded:
            if bound_us >= worth_us:
                return
            workspace_bytes = sum(each.workspace_bytes for each in chosen)
            if (
                best is not None
                and bound_us * self._calibration.factor >= best.latency_us
                and workspace_bytes >= best.workspace_bytes
            ):
                continue
            self.combinations += 1
            for choice in self._model_orders(key, chosen):
                if best is None or choice.latency_us < best.latency_us:
                    best = choice
                yield choice

    def _combine(self, key: tuple[str, ...]) -> Iterator[tuple[int, tuple[Candidate, ...]]]:
        """Combinations of candidates, numbered; those that differ in order alone come once."""
        most = max(2, int(_MOST_COMBINATIONS ** (1 / len(key))))
        choosable = [self._choosable(name)[:most] for name in key]
        for number, places in enumerate(itertools.product(*(range(len(c)) for c in choosable))):
            repeats = any(
                name == after and place > later
                for name, after, place, later in zip(key, key[1:], places, places[1:], strict=False)
            )
            if not repeats:
                yield number, tuple(c[place] for c, place in zip(choosable, places, strict=True))

    def _bound_us(self, chosen: Sequence[Candidate]) -> float:
        """What the model cannot be below."""
        demands = [self._demands_of(candidate) for candidate in chosen]
        longest_us = max(candidate.latency_us for candidate in chosen)
        return max([longest_us, *map(sum, zip(*demands, strict=True))])

    def _demands_of(self, candidate: Candidate) -> tuple[float, ...]:
        if candidate not in self._demands:
            self._demands[candidate] = _demands(self._problem, candidate)
        return self._demands[candidate]

    def _model_orders(
        self, key: tuple[str, ...], chosen: tuple[Candidate, ...]
    ) -> Iterator[StageChoice]:
        """The longest first, and the shortest first; in the second with priority, too."""
        places = sorted(range(len(key)), key=lambda place: -chosen[place].latency_us)
        best: StageChoice | None = None
        for order, has_priority in ((places, False), (places[::-1], False), (places[::-1], True)):
            candidates = tuple(chosen[place] for place in order)
            priorities = tuple(range(-len(order) + 1, 1)) if has_priority else ()
            modelled = _model(self._problem, candidates, priorities, ())
            if modelled is None:
                return
            latency_us = modelled * self._calibration.factor
            if best is None or latency_us < best.latency_us:
                best = StageChoice(
                    costs=tuple(key[place] for place in order),
                    candidates=candidates,
                    latency_us=latency_us,
                    spread_us=latency_us * self._calibration.spread,
                    workspace_bytes=sum(each.workspace_bytes for each in candidates),
                    source=FigureSource.MODELLED,
                    priorities=priorities,
                )
        if best is not None:
            yield best

    def _choosable(self, name: str) -> list[Candidate]:
        """Candidates that can be modelled, fastest first."""
        if self._problem.sm_limits is None or self._problem.sm_count is None:
            return []
        costs: ConvolutionCosts = self._problem.costs_by_name[name]
        known = [each for each in costs.candidates if self._demands_of(each)]
        known.sort(key=lambda each: (each.latency_us, each.workspace_bytes, each.algorithm or ""))
        return known


def _demands(problem: PlanningProblem, candidate: Candidate) -> tuple[float, ...]:
    """What all kernels of a candidate take of the device; empty where it cannot be modelled."""
    if problem.sm_limits is None or problem.sm_count is None:
        return ()
    kernels = model_kernels(candidate, problem.sm_limits)
    try:
        demands = [
            dataclasses.astuple(demands_of(kernel, problem.sm_limits, problem.sm_count))
            for kernel in kernels
        ]
    except ValueError:
        # A kernel that fits on no SM as far as these limits go: the model does not hold for it.
        return ()
    return tuple(sum(each) for each in zip(*demands, strict=True))


def _candidates_of(problem: PlanningProblem, stage: KnownStage) -> tuple[Candidate, ...] | None:
    """The candidates that a measured stage ran, or None where one of them is not there."""
    found = []
    for name, algorithm in zip(stage.costs, stage.algorithms, strict=True):
        candidates = problem.costs_by_name[name].candidates
        match = next((each for each in candidates if each.algorithm == algorithm), None)
        if match is None:
            return None
        found.append(match)
    return tuple(found)


def _model(
    problem: PlanningProblem,
    candidates: Sequence[Candidate],
    priorities: Sequence[int],
    sm_counts: Sequence[int],
) -> float | None:
    """The model's figure, or None where a kernel or the device is not known well enough."""
    if problem.sm_limits is None or problem.sm_count is None:
        return None
    lanes = [model_kernels(candidate, problem.sm_limits) for candidate in candidates]
    if not all(lanes):
        return None
    try:
        return model_stage_us(
            lanes,
            problem.sm_limits,
            problem.sm_count,
            sm_counts=sm_counts,
            priorities=priorities,
        )
    except ValueError:
        # As above, or partitions that this device cannot have.
        return None


@functools.lru_cache(maxsize=4096)
def model_kernels(candidate: Candidate, limits: SmLimits) -> tuple[ModelKernel, ...]:
    """A candidate's kernels as the model wants them; their times add up to the candidate's."""
    shares = sum(kernel.time_share for kernel in candidate.kernels)
    if not shares:
        return ()
    return tuple(
        _model_kernel(kernel, candidate.latency_us * kernel.time_share / shares, limits)
        for kernel in candidate.kernels
        if kernel.time_share
    )


def _model_kernel(kernel: KernelMeasurement, latency_us: float, limits: SmLimits) -> ModelKernel:
    threads = math.prod(kernel.block)
    warps = math.ceil(threads / _WARP)
    registers = math.ceil(kernel.registers_per_thread * _WARP / _REGISTER_UNIT) * _REGISTER_UNIT
    return ModelKernel(
        blocks=math.prod(kernel.grid),
        registers=registers * warps,
        shared_memory_bytes=kernel.shared_memory_bytes + limits.reserved_shared_memory_bytes,
        threads=warps * _WARP,
        latency_us=latency_us,
        alu_utilization=kernel.alu_utilization,
        dram_utilization=kernel.dram_utilization,
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
            [candidate.algorithm or "" for candidate in each.candidates],
        ),
    )
    for choice in in_order:
        if not kept or choice.workspace_bytes < kept[-1].workspace_bytes:
            kept.append(choice)
    return tuple(kept)
