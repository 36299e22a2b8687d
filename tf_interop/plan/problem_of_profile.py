"""Turns a profile into what the planner works from: costs of convolutions, and measured stages."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping, Sequence

from tf_interop.convolution import ConvolutionConfiguration, ConvolutionKind
from tf_interop.plan.problem import (
    Candidate,
    ConvolutionCosts,
    KnownStage,
    PlanningProblem,
)
from tf_interop.profile.entries import (
    AlgorithmMeasurement,
    MeasuredConvolution,
    StageMeasurement,
)
from tf_interop.profile.types import Profile, is_measured_as_it_runs

_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}

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
        stages=_known_stages(profile, costs, allow_tf32=allow_tf32),
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
    return math.prod(size for size in shape if size is not None) * _DTYPE_BYTES[configuration.dtype]


def _costs_of(
    named: Mapping[ConvolutionConfiguration, str], profile: Profile, *, allow_tf32: bool
) -> _Costs:
    """Costs of the configurations that algorithms were measured for."""
    costs = {}
    for configuration, name in named.items():
        measured = profile.find_algorithms(configuration, allow_tf32=allow_tf32)
        if measured:
            costs[configuration] = ConvolutionCosts(
                name, output_bytes(configuration), _candidates(measured, allow_tf32), configuration
            )
    return costs


def _candidates(
    measured: Sequence[AlgorithmMeasurement], allow_tf32: bool
) -> tuple[Candidate, ...]:
    by_name: dict[str, AlgorithmMeasurement] = {}
    for each in measured:
        # Measured with the switch on and off: what it takes with the switch as it will be.
        if each.algorithm not in by_name or each.tf32 == allow_tf32:
            by_name[each.algorithm] = each
    return tuple(
        Candidate(
            each.algorithm, each.latency_us, each.workspace_bytes, each.spread_us, each.kernels
        )
        for each in by_name.values()
    )


def _known_stages(profile: Profile, costs: _Costs, *, allow_tf32: bool) -> tuple[KnownStage, ...]:
    """The stages that the planner can make as they were measured."""
    algorithms = {
        configuration: {candidate.algorithm for candidate in each.candidates}
        for configuration, each in costs.items()
    }

    def is_known(measured: MeasuredConvolution, is_merged: bool) -> bool:
        # What is merged runs with an algorithm of the wider convolution.
        return measured.configuration in algorithms and (
            is_merged or measured.algorithm in algorithms[measured.configuration]
        )

    def can_be_made(stage: StageMeasurement) -> bool:
        # The planner gives each convolution a lane of its own or merges all of a lane, and pins
        # what was measured alone.
        merged = stage.merged or (False,) * (max(stage.lanes) + 1)
        return (
            len(stage.convolutions) > 1
            and is_measured_as_it_runs(stage, profile.device, allow_tf32=allow_tf32)
            and all(
                merged[lane] or count == 1
                for lane, count in collections.Counter(stage.lanes).items()
            )
            and all(
                is_known(measured, merged[lane])
                for measured, lane in zip(stage.convolutions, stage.lanes, strict=True)
            )
        )

    return tuple(_known_stage(stage, costs) for stage in filter(can_be_made, profile.stages))


def _known_stage(stage: StageMeasurement, costs: _Costs) -> KnownStage:
    # A merged lane is launched as one, at the place of its first convolution.
    order = sorted(range(len(stage.lanes)), key=lambda place: stage.lanes[place])
    convolutions = [stage.convolutions[place] for place in order]
    is_merged = any(stage.merged)
    return KnownStage(
        costs=tuple(costs[each.configuration].name for each in convolutions),
        algorithms=tuple(each.algorithm for each in convolutions),
        latency_us=stage.concurrent_us,
        sequential_us=stage.sequential_us,
        spread_us=stage.spread_us,
        workspace_bytes=stage.workspace_bytes,
        priorities=stage.priorities,
        # What is asked for again gives what was given again.
        sm_counts=stage.asked_sm_counts or stage.sm_counts,
        lanes=tuple(stage.lanes[place] for place in order) if is_merged else (),
        merged=stage.merged if is_merged else (),
    )
