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

from tf_interop.planning.cost.sm_model import ModelKernel, demands_of, model_stage_us
from tf_interop.planning.problem import Candidate, MeasuredStage, PlanningProblem
from tf_interop.profile.entries import KernelMeasurement
from tf_interop.profile.occupancy import block_resources
from tf_interop.profile.types import SmLimits
from tf_interop.stage import Lane, Stage, Step

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
        measured: the measurement.
        modelled_us: of the model, not calibrated.
    """

    measured: MeasuredStage
    modelled_us: float

    @property
    def ratio(self) -> float:
        """Measured over modelled."""
        return self.measured.latency_us / self.modelled_us


def compare_model(
    problem: PlanningProblem, stages: Sequence[MeasuredStage] | None = None
) -> tuple[ModelComparison, ...]:
    """Models every measured stage whose kernels are known.

    Args:
        problem: a legal one.
        stages: some of its measured stages; None for all.

    Returns:
        In the order of the stages; those that cannot be modelled are left out.
    """
    compared = []
    for measured in problem.stages if stages is None else stages:
        stage = _candidates_of(problem, measured.stage)
        modelled_us = None if stage is None else model_stage(problem, stage)
        if modelled_us is not None:
            compared.append(ModelComparison(measured, modelled_us))
    return tuple(compared)


def calibrate_model(problem: PlanningProblem) -> ModelCalibration:
    """Learns from measured stages; as it is, where there are fewer than three.

    Of many stages every second, third, … is taken, so that it does not take longer than planning.
    """
    stride = math.ceil(len(problem.stages) / _MOST_FOR_CALIBRATION) or 1
    ratios = [each.ratio for each in compare_model(problem, problem.stages[::stride])]
    if len(ratios) < _FEWEST_FOR_CALIBRATION:
        return ModelCalibration()
    factor = statistics.median(ratios)
    deviations = sorted(abs(ratio / factor - 1) for ratio in ratios)
    # Nine of ten measured stages lie within it.
    spread = deviations[math.ceil(0.9 * len(deviations)) - 1]
    return ModelCalibration(factor, spread, len(ratios))


def model_stage(
    problem: PlanningProblem,
    stage: Stage[Candidate],
    calibration: ModelCalibration | None = None,
) -> float | None:
    """What a stage takes by the model.

    Args:
        problem: says what the device is.
        stage: of the candidates that it runs.
        calibration: what the model is corrected by.

    Returns:
        Microseconds; None where a kernel or the device is not known well enough, or a lane is
        merged.
    """
    if problem.sm_limits is None or problem.sm_count is None:
        return None
    lanes = []
    for lane in stage.lanes:
        kernels = [model_kernels(candidate, problem.sm_limits) for candidate in lane.operations]
        if lane.merged or not all(kernels):
            return None
        steps = tuple(Step(kernel) for each in kernels for kernel in each)
        lanes.append(Lane(steps, lane.priority, lane.sm_count))
    try:
        modelled_us = model_stage_us(Stage(tuple(lanes)), problem.sm_limits, problem.sm_count)
    except ValueError:
        # A kernel that fits on no SM as far as these limits go, or partitions that cannot be had.
        return None
    if calibration is None:
        return modelled_us
    # No stage ends before its longest lane alone, whatever the calibration says.
    longest_us = max(sum(each.latency_us for each in lane.operations) for lane in stage.lanes)
    return max(modelled_us * calibration.factor, longest_us)


def _candidates_of(problem: PlanningProblem, stage: Stage[str]) -> Stage[Candidate] | None:
    """The candidates that a measured stage ran, or None where one of them is not there."""
    candidates = [
        problem.costs_by_name[step.operation].candidate(step.algorithm) for step in stage.steps
    ]
    if None in candidates:
        return None
    in_order = iter([each for each in candidates if each is not None])
    return stage.map(lambda _: next(in_order))


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
        demands = [demands_of(kernel, problem.sm_limits, problem.sm_count) for kernel in kernels]
    except ValueError:
        # As above: the model does not hold for it.
        return ()
    return tuple(sum(each) for each in zip(*demands, strict=True))
