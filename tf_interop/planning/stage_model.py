"""The model of stages (`sm_model`), calibrated with measurements of the same device.

Measured stages that it can model correct it: its times are multiplied by the median of measured
over modelled, and the scatter of these ratios is its error. It cannot model merged convolutions,
because it does not know the kernels of the wider one.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence

from tf_interop.planning.problem import Candidate, PlanningProblem
from tf_interop.planning.sm_model import Device, ModelKernel, model_lanes_us
from tf_interop.stage import Stage

UNCALIBRATED_SPREAD = 0.2
"""Share of a modelled latency that it may be off, where no measured stage says better. A choice to
be careful by, not a measurement."""

_FEWEST_FOR_CALIBRATION = 3
_MOST_FOR_CALIBRATION = 400

Candidates = Sequence[Sequence[Candidate]]
"""What each step of each lane runs."""


class StageModel:
    """The times of stages by the model.

    Attributes:
        factor: what modelled latencies are multiplied with.
        spread: relative error of the result.
        measured_count: how many measured stages calibrated it; 0 for none.
    """

    def __init__(self, problem: PlanningProblem) -> None:
        """Learns from the measured stages; nothing, if there are fewer than three.

        Of many stages every second, third, … is taken, so that it does not take longer than
        planning.
        """
        self.factor, self.spread, self.measured_count = 1.0, UNCALIBRATED_SPREAD, 0
        self._device = None
        if problem.sm_limits is not None and problem.sm_count is not None:
            self._device = Device(problem.sm_limits, problem.sm_count)
        self._kernels = functools.cache(self._make_kernels)
        self._demands = functools.cache(self._make_demands)
        stride = math.ceil(len(problem.stages) / _MOST_FOR_CALIBRATION) or 1
        ratios = []
        for measured in problem.stages[::stride]:
            costs = problem.costs_by_name
            candidates = [
                [costs[step.operation].candidate(step.algorithm) for step in lane.steps]
                for lane in measured.stage.lanes
            ]
            modelled_us = self.latency_us(measured.stage, candidates)
            if modelled_us is not None:
                ratios.append(measured.latency_us / modelled_us)
        if len(ratios) >= _FEWEST_FOR_CALIBRATION:
            self.factor = statistics.median(ratios)
            deviations = sorted(abs(ratio / self.factor - 1) for ratio in ratios)
            # Nine of ten measured stages lie within it.
            self.spread = deviations[math.ceil(0.9 * len(deviations)) - 1]
            self.measured_count = len(ratios)

    def knows(self, candidate: Candidate) -> bool:
        """Whether all kernels of a candidate are known, and each fits on an SM."""
        return bool(self._kernels(candidate))

    def latency_us(
        self, stage: Stage[str], candidates: Sequence[Sequence[Candidate | None]]
    ) -> float | None:
        """The time of a stage.

        Returns:
            Microseconds; None if a kernel or the device is not known well enough, or a lane is
            merged or has SMs of its own.
        """
        device = self._device
        if device is None or any(lane.merged or lane.sm_count for lane in stage.lanes):
            return None
        lanes = []
        longest_us = 0.0
        for lane in candidates:
            found = [candidate for candidate in lane if candidate and self.knows(candidate)]
            if len(found) < len(lane):
                return None
            lanes.append([kernel for each in found for kernel in self._kernels(each)])
            longest_us = max(longest_us, latency_us(found))
        modelled_us = model_lanes_us(lanes, [lane.priority for lane in stage.lanes], device)
        # No stage ends before its longest lane alone, whatever the calibration says.
        return max(modelled_us * self.factor, longest_us)

    def bound_us(self, candidates: Candidates) -> float:
        """A lower bound of a stage's time, without a simulation; needs all kernels."""
        demands = [self._demands(candidate) for lane in candidates for candidate in lane]
        longest_us = max(map(latency_us, candidates))
        together_us = max(map(sum, zip(*demands, strict=True)))
        return max(longest_us, max(longest_us, together_us) * self.factor)

    def describe(self) -> str:
        """How far it is trusted, for reading."""
        if not self.measured_count:
            return f"model not calibrated, trusted to {self.spread:.0%}"
        return (
            f"model calibrated on {self.measured_count} measured stages, factor {self.factor:.2f}, "
            f"trusted to {self.spread:.0%}"
        )

    def _make_kernels(self, candidate: Candidate) -> tuple[ModelKernel, ...]:
        """A candidate's kernels, in its time; empty if one is not known, or fits on no SM."""
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
        """What all its kernels take of the device."""
        assert self._device is not None
        each = [kernel.demands(self._device) for kernel in self._kernels(candidate)]
        return tuple(map(sum, zip(*each, strict=True)))


def latency_us(lane: Sequence[Candidate]) -> float:
    """The time of candidates one after another."""
    return sum(each.latency_us for each in lane)
