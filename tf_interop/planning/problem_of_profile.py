"""Turns a profile into what the planner works from: costs of convolutions, and measured stages."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tf_interop.convolution import DTYPE_BYTES, ConvolutionConfiguration, ConvolutionKind
from tf_interop.planning.problem import (
    Candidate,
    ConvolutionCosts,
    MeasuredStage,
    PlanningProblem,
)
from tf_interop.profile.entries import StageMeasurement
from tf_interop.profile.types import Profile, is_measured_as_it_runs

_Costs = dict[ConvolutionConfiguration, ConvolutionCosts]


def problem_of_profile(
    profile: Profile,
    named: Mapping[ConvolutionConfiguration, str] | None = None,
    *,
    allow_tf32: bool = True,
    deterministic: bool = False,
) -> PlanningProblem:
    """A problem without nodes: costs and measured stages of a profile.

    Args:
        profile: the measurements.
        named: the configurations to take, with names for their costs; None for all that algorithms
            were measured for, by number.
        allow_tf32: TensorFlow's switch for TF32.
        deterministic: whether the plan is for TensorFlow with op determinism on: algorithms that
            give other bits every time are then no candidates.
    """
    if deterministic:
        profile = profile.deterministic_part
    if named is None:
        measured = dict.fromkeys(each.configuration for each in profile.algorithms)
        named = {configuration: str(number) for number, configuration in enumerate(measured)}
    costs = _costs_of(named, profile, allow_tf32=allow_tf32)
    device = profile.device
    return PlanningProblem(
        costs=tuple(costs.values()),
        nodes=(),
        stages=tuple(
            stage
            for measured in profile.stages
            if (stage := _measured_stage(measured, profile, costs, allow_tf32=allow_tf32))
        ),
        # A CPU's cores are no SMs.
        sm_count=None if device.sm_limits is None else device.sm_count,
        sm_limits=device.sm_limits,
        made_with={"device": device.name, "profiled": device.date}
        | ({"cudnn": device.cudnn} if device.cudnn else {}),
    )


def output_bytes(configuration: ConvolutionConfiguration) -> int:
    """The size of what a convolution of known shapes computes."""
    shape = {
        ConvolutionKind.FORWARD: configuration.output_shape,
        ConvolutionKind.BACKWARD_INPUT: configuration.image_shape,
        ConvolutionKind.BACKWARD_FILTER: configuration.filter_shape,
    }[configuration.kind]
    assert shape is not None
    return math.prod(size for size in shape if size is not None) * DTYPE_BYTES[configuration.dtype]


def _costs_of(
    named: Mapping[ConvolutionConfiguration, str], profile: Profile, *, allow_tf32: bool
) -> _Costs:
    """Costs of the configurations that algorithms were measured for."""
    costs = {}
    for configuration, name in named.items():
        measured = profile.find_algorithms(configuration, allow_tf32=allow_tf32)
        if measured:
            costs[configuration] = ConvolutionCosts(
                name,
                output_bytes(configuration),
                tuple(
                    Candidate(
                        each.algorithm,
                        each.latency_us,
                        each.workspace_bytes,
                        each.spread_us,
                        each.kernels,
                    )
                    for each in measured
                ),
                configuration,
            )
    return costs


def _measured_stage(
    measured: StageMeasurement, profile: Profile, costs: _Costs, *, allow_tf32: bool
) -> MeasuredStage | None:
    """A measured stage; None where the planner cannot make it as it was measured."""
    lanes = measured.stage.lanes
    if len(lanes) == 1 and not lanes[0].merged:
        return None
    if not is_measured_as_it_runs(measured, profile.device, allow_tf32=allow_tf32):
        return None
    for lane in lanes:
        for step in lane.steps:
            if step.operation not in costs:
                return None
            candidates = costs[step.operation].candidates
            # What is merged runs with an algorithm of the wider convolution.
            if not lane.merged and all(step.algorithm != each.algorithm for each in candidates):
                return None
    return MeasuredStage(
        stage=measured.stage.map(lambda configuration: costs[configuration].name),
        latency_us=measured.latency_us,
        sequential_us=measured.sequential_us,
        spread_us=measured.spread_us,
        workspace_bytes=measured.workspace_bytes,
    )
