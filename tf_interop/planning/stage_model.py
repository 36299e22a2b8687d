"""The model of stages' times, calibrated with measured stages of the same device."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from tf_interop.planning.problem import PlanningProblem
from tf_interop.planning.sm_model import ModelKernel, model_lanes_us
from tf_interop.profile.entries import AlgorithmMeasurement, StageMeasurement

UNCALIBRATED_SPREAD = 0.2
"""Relative error of a modelled latency without enough measured stages. It is a cautious choice,
not a measurement."""

_FEWEST_FOR_CALIBRATION = 3
_MOST_FOR_CALIBRATION = 400

Combination = Sequence[Sequence[AlgorithmMeasurement]]
"""The algorithm of each step of each lane."""


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
        self._problem = problem
        self._device = problem.device
        # By identity, because a measurement takes long to hash.
        self._kernels = {
            id(each): self._make_kernels(each)
            for measured in problem.algorithms.values()
            for each in measured
        }
        self._demands = {key: self._add_demands(its) for key, its in self._kernels.items()}
        # Samples stages if there are many, because modelling all could take longer than planning.
        stride = math.ceil(len(problem.stages) / _MOST_FOR_CALIBRATION) or 1
        ratios = []
        for measured in problem.stages[::stride]:
            modelled_us = self._model_measured(measured)
            if modelled_us is not None:
                ratios.append(measured.latency_us / modelled_us)
        if len(ratios) >= _FEWEST_FOR_CALIBRATION:
            self.factor = statistics.median(ratios)
            deviations = sorted(abs(ratio / self.factor - 1) for ratio in ratios)
            # 90 % of the measured stages lie within it.
            self.spread = deviations[math.ceil(0.9 * len(deviations)) - 1]
            self.measured_count = len(ratios)

    def knows(self, algorithm: AlgorithmMeasurement) -> bool:
        """Whether all of an algorithm's kernels are known, and each fits on an SM."""
        return bool(self._kernels[id(algorithm)])

    def latency_us(self, lanes: Combination, priorities: Sequence[int]) -> float | None:
        """The time of a stage of unmerged lanes that share all SMs, in microseconds.

        Returns:
            None if a kernel or the device is unknown.
        """
        if self._device is None or not all(self.knows(each) for lane in lanes for each in lane):
            return None
        kernels = [
            [kernel for each in lane for kernel in self._kernels[id(each)]] for lane in lanes
        ]
        modelled_us = model_lanes_us(kernels, priorities, self._device)
        # Whatever the calibration says, no stage ends before its longest lane would alone.
        return max(modelled_us * self.factor, *map(latency_us, lanes))

    def bound_us(self, lanes: Combination) -> float:
        """A lower bound on a stage's time without simulation; all kernels must be known."""
        demands = [self._demands[id(each)] for lane in lanes for each in lane]
        longest_us = max(map(latency_us, lanes))
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

    def _model_measured(self, measured: StageMeasurement) -> float | None:
        lanes = measured.stage.lanes
        if measured.stage.is_merged:
            return None
        algorithms = [[self._problem.alone[step] for step in lane.steps] for lane in lanes]
        return self.latency_us(algorithms, [lane.priority for lane in lanes])

    def _make_kernels(self, algorithm: AlgorithmMeasurement) -> tuple[ModelKernel, ...]:
        """An algorithm's kernels; empty if one is unknown or fits on no SM."""
        shares = sum(kernel.time_share for kernel in algorithm.kernels)
        found = []
        for kernel in algorithm.kernels:
            if kernel.time_share and self._device is not None:
                latency_us = algorithm.latency_us * kernel.time_share / shares
                made = ModelKernel.of(kernel, latency_us, self._device)
                if made is None:
                    return ()
                found.append(made)
        return tuple(found)

    def _add_demands(self, kernels: Sequence[ModelKernel]) -> tuple[float, ...]:
        if self._device is None:
            return ()
        each = [kernel.demands(self._device) for kernel in kernels]
        return tuple(map(sum, zip(*each, strict=True)))


def latency_us(lane: Sequence[AlgorithmMeasurement]) -> float:
    """The time of algorithms one after another."""
    return sum(each.latency_us for each in lane)
