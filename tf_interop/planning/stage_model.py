"""The model of stages' times, calibrated with measured stages of the same device."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence

from tf_interop.planning.problem import Candidate, PlanningProblem
from tf_interop.planning.sm_model import ModelKernel, model_lanes_us
from tf_interop.stage import Stage

UNCALIBRATED_SPREAD = 0.2
"""Relative error of a modelled latency without enough measured stages. It is a cautious choice,
not a measurement."""

_FEWEST_FOR_CALIBRATION = 3
_MOST_FOR_CALIBRATION = 400

Candidates = Sequence[Sequence[Candidate]]
"""The candidate for each step of each lane."""


class StageModel:
    """The modelled times of stages, calibrated with measured stages of the same device.

    Modelled times are multiplied by the median ratio of measured to modelled times. The scatter of
    these ratios is the error.

    Attributes:
        factor: the median ratio.
        spread: relative error of a modelled time.
        measured_count: number of stages that calibrated the model.
    """

    def __init__(self, problem: PlanningProblem) -> None:
        self.factor, self.spread, self.measured_count = 1.0, UNCALIBRATED_SPREAD, 0
        self._device = problem.device
        self._costs = problem.costs_by_name
        self._kernels = functools.cache(self._make_kernels)
        self._demands = functools.cache(self._make_demands)
        # Samples stages if there are many, because modelling all could take longer than planning.
        stride = math.ceil(len(problem.stages) / _MOST_FOR_CALIBRATION) or 1
        ratios = []
        for measured in problem.stages[::stride]:
            modelled_us = self.latency_us(measured.stage)
            if modelled_us is not None:
                ratios.append(measured.latency_us / modelled_us)
        if len(ratios) >= _FEWEST_FOR_CALIBRATION:
            self.factor = statistics.median(ratios)
            deviations = sorted(abs(ratio / self.factor - 1) for ratio in ratios)
            # 90 % of the measured stages lie within it.
            self.spread = deviations[math.ceil(0.9 * len(deviations)) - 1]
            self.measured_count = len(ratios)

    def knows(self, candidate: Candidate) -> bool:
        """Whether all of a candidate's kernels are known, and each fits on an SM."""
        return bool(self._kernels(candidate))

    def latency_us(self, stage: Stage[str]) -> float | None:
        """The time of a stage of costs, in microseconds.

        Returns:
            None if a kernel or the device is unknown, or a lane is merged or has SMs of its own.
        """
        device = self._device
        if device is None or any(lane.merged or lane.sm_count for lane in stage.lanes):
            return None
        lanes = []
        longest_us = 0.0
        for lane in stage.lanes:
            candidates = [
                self._costs[each.operation].candidate(each.algorithm) for each in lane.steps
            ]
            found = [each for each in candidates if each and self.knows(each)]
            if len(found) < len(candidates):
                return None
            lanes.append([kernel for each in found for kernel in self._kernels(each)])
            longest_us = max(longest_us, latency_us(found))
        modelled_us = model_lanes_us(lanes, [lane.priority for lane in stage.lanes], device)
        # Whatever the calibration says, no stage ends before its longest lane would alone.
        return max(modelled_us * self.factor, longest_us)

    def bound_us(self, candidates: Candidates) -> float:
        """A lower bound on a stage's time without simulation; all kernels must be known."""
        demands = [self._demands(candidate) for lane in candidates for candidate in lane]
        longest_us = max(map(latency_us, candidates))
        together_us = max(map(sum, zip(*demands, strict=True)))
        return max(longest_us, max(longest_us, together_us) * self.factor)

    def describe(self) -> str:
        """Describes the model's error."""
        if not self.measured_count:
            return f"model not calibrated, trusted to {self.spread:.0%}"
        return (
            f"model calibrated on {self.measured_count} measured stages, factor {self.factor:.2f}, "
            f"trusted to {self.spread:.0%}"
        )

    def _make_kernels(self, candidate: Candidate) -> tuple[ModelKernel, ...]:
        """A candidate's kernels; empty if one is unknown or fits on no SM."""
        shares = sum(kernel.time_share for kernel in candidate.kernels)
        found = []
        for kernel in candidate.kernels:
            if kernel.time_share and self._device is not None:
                latency_us = candidate.latency_us * kernel.time_share / shares
                made = ModelKernel.of(kernel, latency_us, self._device)
                if made is None:
                    return ()
                found.append(made)
        return tuple(found)

    def _make_demands(self, candidate: Candidate) -> tuple[float, ...]:
        assert self._device is not None
        each = [kernel.demands(self._device) for kernel in self._kernels(candidate)]
        return tuple(map(sum, zip(*each, strict=True)))


def latency_us(lane: Sequence[Candidate]) -> float:
    """The time of candidates one after another."""
    return sum(each.latency_us for each in lane)
