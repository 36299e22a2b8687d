"""The model of stages (`sm_model`) beside what was measured of the same device.

It is corrected by how far it was off on measured stages that it can model: multiplied by the median
of measured over modelled, and trusted as far as those ratios scatter. What was measured merged it
cannot model: it knows no kernel of a wider convolution.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence

from tf_interop.plan.cost.model_kernel import ModelKernel, demands_of
from tf_interop.plan.cost.sm_model import model_stage_us
from tf_interop.plan.problem import Candidate, KnownStage, PlanningProblem
from tf_interop.profile.entries import KernelMeasurement
from tf_interop.profile.occupancy import block_resources
from tf_interop.profile.types import SmLimits

UNCALIBRATED_SPREAD = 0.2
"""Share of a modelled latency that it may be off, where no measured stage says better. A choice to
be careful by, not a measurement."""

_FEWEST_FOR_CALIBRATION = 3
_MOST_FOR_CALIBRATION = 400


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
    return _compare(problem, problem.stages)


def _compare(problem: PlanningProblem, stages: Sequence[KnownStage]) -> tuple[ModelComparison, ...]:
    compared = []
    for stage in stages:
        candidates = _candidates_of(problem, stage)
        if candidates is None or stage.merged:
            continue
        modelled = model_stage(problem, candidates, stage.priorities, stage.sm_counts)
        if modelled is not None:
            compared.append(ModelComparison(stage, modelled))
    return tuple(compared)


def calibrate_model(problem: PlanningProblem) -> ModelCalibration:
    """Learns from measured stages; as it is, where there are fewer than three.

    Of many stages every second, third, … is taken, so that it does not take longer than planning.
    """
    step = math.ceil(len(problem.stages) / _MOST_FOR_CALIBRATION) or 1
    ratios = [each.ratio for each in _compare(problem, problem.stages[::step])]
    if len(ratios) < _FEWEST_FOR_CALIBRATION:
        return ModelCalibration()
    factor = statistics.median(ratios)
    deviations = sorted(abs(ratio / factor - 1) for ratio in ratios)
    # Nine of ten measured stages lie within it.
    spread = deviations[math.ceil(0.9 * len(deviations)) - 1]
    return ModelCalibration(factor, spread, len(ratios))


def model_fastest_us(
    problem: PlanningProblem, costs: Sequence[str], calibration: ModelCalibration
) -> float | None:
    """What convolutions take together with what is fastest alone, each on a lane of its own.

    Args:
        problem: a legal one.
        costs: the names of their ConvolutionCosts.
        calibration: what the model is corrected by.

    Returns:
        The better of longest first and shortest first; None where kernels or device are not known.
    """
    return model_candidates_us(
        problem, [problem.costs_by_name[name].fastest for name in costs], calibration
    )


def model_candidates_us(
    problem: PlanningProblem, candidates: Sequence[Candidate], calibration: ModelCalibration
) -> float | None:
    """As `model_fastest_us`, with these algorithms."""
    in_order = sorted(candidates, key=lambda each: -each.latency_us)
    modelled = [model_stage(problem, order, (), ()) for order in (in_order, in_order[::-1])]
    known = [each for each in modelled if each is not None]
    if not known:
        return None
    # No stage ends before its longest convolution alone, whatever the calibration says.
    return max(min(known) * calibration.factor, in_order[0].latency_us)


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


def model_stage(
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
        # A kernel that fits on no SM as far as these limits go, or partitions that cannot be had.
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
    block = block_resources(kernel, limits)
    return ModelKernel(
        blocks=math.prod(kernel.grid),
        registers=block.registers,
        shared_memory_bytes=block.shared_memory_bytes,
        threads=block.threads,
        latency_us=latency_us,
        alu_utilization=kernel.alu_utilization,
        dram_utilization=kernel.dram_utilization,
    )


def demands_of_candidate(problem: PlanningProblem, candidate: Candidate) -> tuple[float, ...]:
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
        # As above: the model does not hold for it.
        return ()
    return tuple(sum(each) for each in zip(*demands, strict=True))
