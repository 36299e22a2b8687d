"""The entries of a profile: measurements of algorithms and stages, and those that failed."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import msgspec

from tf_interop.convolution import ConvolutionConfiguration, merged_configuration
from tf_interop.stage import Stage, Step

LARGEST_COUNT = 2**63 - 1
"""What the core's integers hold; a number beyond them could be no float either."""

Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]
PositiveCount = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_COUNT)]
Day = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]


@dataclasses.dataclass(frozen=True, slots=True)
class KernelMeasurement:
    """One GPU kernel that an algorithm launches.

    Attributes:
        name: as CUPTI gives it.
        grid: blocks in x, y and z.
        block: threads of a block in x, y and z.
        registers_per_thread: 32-bit registers.
        shared_memory_bytes: static and dynamic, per block.
        time_share: of the time that all kernels of the algorithm took.
        alu_utilization: share of the time in which the busiest arithmetic pipe worked; None if
            Nsight Compute's values were not imported.
        dram_utilization: DRAM throughput relative to its peak; likewise.
        memory_stall: share of the warps' stalls that wait for memory; likewise.
    """

    name: str
    grid: tuple[PositiveCount, PositiveCount, PositiveCount]
    block: tuple[PositiveCount, PositiveCount, PositiveCount]
    registers_per_thread: Count
    shared_memory_bytes: Count
    time_share: Share
    alu_utilization: Share | None = None
    dram_utilization: Share | None = None
    memory_stall: Share | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class AlgorithmMeasurement:
    """What one algorithm costs for one convolution, alone on the device.

    Attributes:
        configuration: what was computed; all its shapes are known.
        algorithm: what it was computed with.
        tf32: whether the algorithm may round float operands to TF32 or less. Where TensorFlow's
            switch for TF32 is off, such an algorithm is not taken.
        latency_us: median of the timed runs.
        spread_us: half the distance between their 10th and 90th percentile.
        workspace_bytes: what the algorithm needs.
        relative_error: the largest difference from the result in double precision, relative to the
            largest value of that; of a large convolution, of up to 4,096 elements. A result that
            is not finite is a failure.
        deterministic: whether two runs gave the same bits.
        kernels: the GPU kernels of one run in order; empty on a CPU, and where CUPTI was not there.
        source: what measured, and how.
    """

    configuration: ConvolutionConfiguration
    algorithm: str
    tf32: bool
    latency_us: Positive
    spread_us: NotNegative
    workspace_bytes: Count
    relative_error: NotNegative
    deterministic: bool
    kernels: tuple[KernelMeasurement, ...]
    source: str


class FailureKind(enum.Enum):
    """Why an algorithm could not be measured."""

    UNSUPPORTED = "unsupported"
    OUT_OF_MEMORY = "out of memory"
    WRONG_RESULT = "wrong result"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class AlgorithmFailure:
    """An algorithm that could not be measured for a convolution; it is not tried again.

    Attributes:
        configuration: what was to be computed.
        algorithm: what it was to be computed with.
        tf32: whether TF32 was allowed.
        kind: the class of the reason, for counting.
        reason: what was expected and what came, for reading.
        source: what measured, and how.
    """

    configuration: ConvolutionConfiguration
    algorithm: str
    tf32: bool
    kind: FailureKind
    reason: str
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class StageMeasurement:
    """The cost of one stage. All three times come from one run, which took them by turns.

    Attributes:
        stage: what was asked for. Its algorithms are those that ran.
        tf32: whether TF32 was allowed.
        latency_us: the stage's time from fork to join.
        same_sequential_us: time of the same steps with the same algorithms, one after another on
            one stream.
        sequential_us: likewise, but each with the algorithm that is fastest alone: what the stage
            has to beat.
        spread_us: how far the difference of `latency_us` and `sequential_us` may be off.
        workspace_bytes: what all lanes need together.
        source: what measured, and how.
        sequential_algorithms: the algorithms of `sequential_us`, one for each of `stage.steps`;
            empty if they are the stage's own.
        granted_sm_counts: the SMs of each lane's partition, where the device gave others than were
            asked for; else empty.
    """

    stage: Stage[ConvolutionConfiguration]
    tf32: bool
    latency_us: Positive
    same_sequential_us: Positive
    sequential_us: Positive
    spread_us: NotNegative
    workspace_bytes: Count
    source: str
    sequential_algorithms: tuple[str | None, ...] = ()
    granted_sm_counts: tuple[Count, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class StageFailure:
    """A stage that could not be measured; it is not tried again.

    Attributes:
        stage: what was asked for.
        tf32: whether TF32 was allowed.
        kind: the class of the reason.
        reason: what was expected and what came.
        source: what measured, and how.
    """

    stage: Stage[ConvolutionConfiguration]
    tf32: bool
    kind: FailureKind
    reason: str
    source: str


Entry = AlgorithmMeasurement | AlgorithmFailure | StageMeasurement | StageFailure
"""The result of one measurement."""


class AlgorithmKey(NamedTuple):
    """What tells the entries of algorithms apart; the attributes are theirs."""

    configuration: ConvolutionConfiguration
    algorithm: str
    tf32: bool


class StageKey(NamedTuple):
    """What tells the entries of stages apart; the attributes are theirs."""

    stage: Stage[ConvolutionConfiguration]
    tf32: bool


EntryKey = AlgorithmKey | StageKey


def entry_key(entry: Entry) -> EntryKey:
    """What a profile holds at most one entry for, a measurement or a failure."""
    if isinstance(entry, (AlgorithmMeasurement, AlgorithmFailure)):
        return AlgorithmKey(entry.configuration, entry.algorithm, entry.tf32)
    return StageKey(entry.stage, entry.tf32)


def fastest_first(
    measurements: Iterable[AlgorithmMeasurement],
) -> tuple[AlgorithmMeasurement, ...]:
    """Measurements of one convolution, in an order that depends on nothing but them."""
    return tuple(
        sorted(measurements, key=lambda each: (each.latency_us, each.algorithm, each.tf32))
    )


def as_with_tf32(
    measurements: Sequence[AlgorithmMeasurement], *, allow_tf32: bool
) -> tuple[AlgorithmMeasurement, ...]:
    """Of measurements of one convolution those of what would run under a switch for TF32.

    Where an algorithm was measured both with rounding and without, it would round if it may.
    """
    rounding = {each.algorithm for each in measurements if each.tf32}
    return tuple(
        each
        for each in measurements
        if (allow_tf32 if each.tf32 else not allow_tf32 or each.algorithm not in rounding)
    )


def wins(measurement: StageMeasurement) -> bool:
    """Whether the stage is faster than its steps in sequence, by more than the spread."""
    return measurement.latency_us + measurement.spread_us < measurement.sequential_us


def launched_steps(
    stage: Stage[ConvolutionConfiguration],
) -> tuple[Step[ConvolutionConfiguration], ...]:
    """What the lanes of a stage launch: their steps, and of a merged lane one wider convolution."""
    launched: list[Step[ConvolutionConfiguration]] = []
    for lane in stage.lanes:
        if lane.merged:
            launched.append(Step(merged_configuration(lane.operations), lane.steps[0].algorithm))
        else:
            launched.extend(lane.steps)
    return tuple(launched)
