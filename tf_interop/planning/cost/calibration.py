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

from tf_interop.planning.cost.sm_model import Device, ModelKernel, model_lanes_us
from tf_interop.planning.problem import Candidate, PlanningProblem
from tf_interop.stage import Stage

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

    def describe(self) -> str:
        """How far the model is trusted, for reading."""
        if not self.stages:
            return f"model not calibrated, trusted to {self.spread:.0%}"
        return (
            f"model calibrated on {self.stages} measured stages, factor {self.factor:.2f}, trusted "
            f"to {self.spread:.0%}"
        )


def calibrate_model(problem: PlanningProblem) -> ModelCalibration:
    """Learns from measured stages; as it is, where there are fewer than three.

    Of many stages every second, third, … is taken, so that it does not take longer than planning.
    """
    stride = math.ceil(len(problem.stages) / _MOST_FOR_CALIBRATION) or 1
    ratios = []
    for measured in problem.stages[::stride]:
        candidates = [
            [problem.costs_by_name[step.operation].candidate(step.algorithm) for step in lane.steps]
            for lane in measured.stage.lanes
        ]
        modelled_us = model_stage(problem, measured.stage, candidates)
        if modelled_us is not None:
            ratios.append(measured.latency_us / modelled_us)
    if len(ratios) < _FEWEST_FOR_CALIBRATION:
        return ModelCalibration()
    factor = statistics.median(ratios)
    deviations = sorted(abs(ratio / factor - 1) for ratio in ratios)
    # Nine of ten measured stages lie within it.
    spread = deviations[math.ceil(0.9 * len(deviations)) - 1]
    return ModelCalibration(factor, spread, len(ratios))


def model_stage(
    problem: PlanningProblem, stage: Stage[str], candidates: Sequence[Sequence[Candidate | None]]
) -> float | None:
    """What a stage takes by the model.

    Args:
        problem: says what the device is.
        stage: of the names of costs.
        candidates: what each step of each lane runs; None for what is not known.

    Returns:
        Microseconds; None where a kernel or the device is not known well enough, or a lane is
        merged or has SMs of its own.
    """
    device = device_of(problem)
    if device is None or any(lane.merged or lane.sm_count for lane in stage.lanes):
        return None
    lanes = []
    for lane in candidates:
        kernels = [model_kernels(candidate, device) for candidate in lane]
        if not all(kernels):
            return None
        lanes.append([kernel for each in kernels for kernel in each])
    return model_lanes_us(lanes, [lane.priority for lane in stage.lanes], device)


def device_of(problem: PlanningProblem) -> Device | None:
    """What the kernels of a problem run on; None where that is not known, and for a CPU."""
    if problem.sm_limits is None or problem.sm_count is None:
        return None
    return Device(problem.sm_limits, problem.sm_count)


@functools.lru_cache(maxsize=4096)
def model_kernels(candidate: Candidate | None, device: Device) -> tuple[ModelKernel, ...]:
    """A candidate's kernels as the model wants them; their times add up to the candidate's.

    Empty where one of them is not known, or fits on no SM.
    """
    kernels = () if candidate is None else candidate.kernels
    shares = sum(kernel.time_share for kernel in kernels)
    if candidate is None or not shares:
        return ()
    found = tuple(
        ModelKernel.of(kernel, candidate.latency_us * kernel.time_share / shares, device)
        for kernel in kernels
        if kernel.time_share
    )
    return tuple(each for each in found if each is not None) if None not in found else ()
