"""Made-up profiles, and a list of configurations, for tests."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from convolution_values import CONFIGURATION, TINY

from tf_interop.convolution import ConvolutionConfiguration, ConvolutionKind
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmMeasurement,
    Entry,
    FailureKind,
    KernelMeasurement,
    StageFailure,
    StageMeasurement,
)
from tf_interop.profile.types import Profile, ProfiledDevice, SmLimits, profile_of
from tf_interop.profile.worklist import ConfigurationList, ListedConvolution, ListedStage
from tf_interop.stage import Lane, Stage, Step

# The limits of compute capability 9.0: CUDA C++ Programming Guide, "Technical Specifications per
# Compute Capability".
HOPPER_SM = SmLimits(
    registers=65536,
    shared_memory_bytes=233472,
    threads=2048,
    blocks=32,
    reserved_shared_memory_bytes=1024,
)
GPU = ProfiledDevice(
    backend="cudnn",
    name="NVIDIA H200",
    compute_capability="9.0",
    sm_count=132,
    cudnn="9.10.2",
    memory_bytes=150754820096,
    driver="570.86.15",
    cuda="12.8",
    clocks_mhz={"memory": 3201, "sm": 1980},
    sm_limits=HOPPER_SM,
    date="2026-11-20",
)
CPU = ProfiledDevice(
    backend="host",
    name="Some CPU",
    compute_capability="",
    sm_count=2,
    cudnn="",
    memory_bytes=8 << 30,
    driver="",
    cuda="",
    clocks_mhz={},
    sm_limits=None,
    date="2026-11-20",
)

SMALL = dataclasses.replace(CONFIGURATION, filter_shape=(1, 1, 16, 32))
LARGE = dataclasses.replace(SMALL, filter_shape=(5, 5, 16, 32))
WIDER = dataclasses.replace(SMALL, filter_shape=(1, 1, 16, 48), output_shape=(8, 28, 28, 48))
BACKWARD = dataclasses.replace(SMALL, op="Conv2DBackpropInput", kind=ConvolutionKind.BACKWARD_INPUT)

KERNEL = KernelMeasurement(
    name="implicit_gemm",
    grid=(98, 1, 1),
    block=(256, 1, 1),
    registers_per_thread=120,
    shared_memory_bytes=49152,
    time_share=1.0,
)


ALGORITHM = AlgorithmMeasurement(
    configuration=SMALL,
    algorithm="eng4_k2=1",
    tf32=True,
    latency_us=12.5,
    spread_us=0.25,
    workspace_bytes=4096,
    relative_error=3.0e-4,
    deterministic=True,
    kernels=(KERNEL,),
    source="by hand",
)


def make_algorithm(
    configuration: ConvolutionConfiguration = SMALL, algorithm: str = "eng4_k2=1", **changes: Any
) -> AlgorithmMeasurement:
    """`ALGORITHM` with changes."""
    return dataclasses.replace(
        ALGORITHM, configuration=configuration, algorithm=algorithm, **changes
    )


def make_algorithm_failure(
    configuration: ConvolutionConfiguration = SMALL, algorithm: str = "FFT"
) -> AlgorithmFailure:
    reason = "Expected support, got none."
    return AlgorithmFailure(
        configuration, algorithm, True, FailureKind.UNSUPPORTED, reason, "by hand"
    )


Pair = tuple[ConvolutionConfiguration, str | None]


def stage_of(
    *pairs: Pair,
    lanes: Sequence[int] | None = None,
    priorities: Sequence[int] = (),
    merged: Sequence[bool] = (),
) -> Stage[ConvolutionConfiguration]:
    """A stage of configurations and algorithms; `lanes` has the lane of each one."""
    numbers = range(len(pairs)) if lanes is None else lanes
    by_lane = collections.defaultdict(list)
    for number, pair in zip(numbers, pairs, strict=True):
        by_lane[number].append(Step(*pair))
    steps = [tuple(by_lane[number]) for number in range(len(by_lane))]
    none = (0,) * len(steps)
    options = (priorities or none, merged or [False] * len(steps))
    return Stage(tuple(itertools.starmap(Lane, zip(steps, *options, strict=True))))


LANE_OPTIONS = ("lanes", "priorities", "merged")


def make_stage(*pairs: Pair, **changes: Any) -> StageMeasurement:
    """A measurement of `stage_of(*pairs)` with changed fields, or options of `stage_of`."""
    options = {name: changes.pop(name) for name in LANE_OPTIONS if name in changes}
    measured = StageMeasurement(
        stage=stage_of(*pairs, **options),
        tf32=True,
        latency_us=20.0,
        same_sequential_us=32.0,
        sequential_us=30.0,
        spread_us=1.5,
        workspace_bytes=8192,
        source="by hand",
    )
    return dataclasses.replace(measured, **changes)


def make_stage_failure(
    *pairs: Pair, kind: FailureKind = FailureKind.FAILED, **lanes: Any
) -> StageFailure:
    reason = "Expected the pinned algorithm to run, got a fallback."
    return StageFailure(stage_of(*pairs, **lanes), True, kind, reason, "by hand")


def make_profile(*entries: Entry, device: ProfiledDevice = GPU) -> Profile:
    return profile_of(device, entries)


EVERY_KIND_OF_ENTRY: tuple[Entry, ...] = (
    make_algorithm(),
    make_algorithm(LARGE, "IMPLICIT_PRECOMP_GEMM", kernels=()),
    make_algorithm_failure(),
    make_stage(
        (SMALL, "IMPLICIT_PRECOMP_GEMM"), (LARGE, None), sequential_algorithms=("GEMM",) * 2
    ),
    make_stage_failure((SMALL, "FFT"), (LARGE, "FFT")),
)
MERGED: tuple[Entry, ...] = (
    make_stage(
        *((SMALL, "WINOGRAD"), (LARGE, None), (WIDER, "WINOGRAD")),
        lanes=(0, 1, 0),
        merged=(True, False),
    ),
    make_stage_failure((SMALL, "FFT"), (WIDER, "FFT"), lanes=(0, 0), merged=(True,)),
)

TINY_1X1 = dataclasses.replace(TINY, filter_shape=(1, 1, 3, 4))
TINY_5X5 = dataclasses.replace(TINY, filter_shape=(5, 5, 3, 4))
LIST = ConfigurationList(
    (ListedConvolution(TINY_1X1, 2), ListedConvolution(TINY_5X5)),
    (ListedStage(Stage.side_by_side((Step(0), Step(1))), origins=("a, level",)),),
    made_with={"tensorflow": "2.21.0"},
)
