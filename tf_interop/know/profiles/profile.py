"""A profile: what convolutions and stages cost, measured on one device with its software."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

from tf_interop.know.convolution import ConvolutionConfiguration
from tf_interop.know.merged_convolution import merged_configuration

PROFILE_FORMAT = "tf_interop.profile"
PROFILE_VERSION = 2

_ConfigurationSet = frozenset[tuple[ConvolutionConfiguration, int]]

Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
PositiveCount = Annotated[int, msgspec.Meta(ge=1)]
Day = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]


@dataclasses.dataclass(frozen=True, slots=True)
class SmLimits:
    """What one streaming multiprocessor has for the blocks that reside on it.

    Attributes:
        registers: 32-bit registers.
        shared_memory_bytes: shared memory.
        threads: threads.
        blocks: thread blocks.
        reserved_shared_memory_bytes: what each block takes beside what it asks for.
    """

    registers: PositiveCount
    shared_memory_bytes: PositiveCount
    threads: PositiveCount
    blocks: PositiveCount
    reserved_shared_memory_bytes: Count = 0


@dataclasses.dataclass(frozen=True, slots=True)
class ProfiledDevice:
    """What was measured on; results do not carry over to another device or version.

    The first five fields decide whether a profile fits a device (`foreign_device.py`).

    Attributes:
        backend: `cudnn`, or `host` for a CPU.
        name: the device's name, as its driver or the operating system gives it.
        compute_capability: such as `9.0`; empty for a CPU.
        sm_count: streaming multiprocessors; for a CPU the cores that the process may use.
        cudnn: cuDNN's version such as `9.10.2`; empty for a CPU.
        memory_bytes: device memory.
        driver: version of the driver; empty for a CPU.
        cuda: version of CUDA that the driver supports, such as `12.8`; empty for a CPU.
        clocks_mhz: what NVML reports when measuring begins, such as {"sm": 1980, "memory": 2619}.
        sm_limits: None for a CPU.
        date: day of the measurements in UTC, such as `2026-11-21`.
    """

    backend: str
    name: str
    compute_capability: str
    sm_count: PositiveCount
    cudnn: str
    memory_bytes: Count
    driver: str
    cuda: str
    clocks_mhz: dict[str, Count]
    sm_limits: SmLimits | None
    date: Day


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
        alu_utilization: share of the time in which the busiest arithmetic pipe worked; None where
            Nsight Compute's figures were not imported.
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
class MeasuredConvolution:
    """A convolution with the algorithm that computes it.

    Attributes:
        configuration: what it computes; all its shapes are known.
        algorithm: what it was computed with; None where the runner chose.
    """

    configuration: ConvolutionConfiguration
    algorithm: str | None = None


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
            largest value of that; None where the convolution was too large to check. A result that
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
    relative_error: NotNegative | None
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
        convolutions: what ran, in launch order.
        lanes: the lane of each, numbered 0, 1, 2, … in the order in which they appear.
        concurrent_us: the stage's time from fork to join.
        same_sequential_us: time of the same convolutions with the same algorithms, one after
            another on one stream.
        sequential_us: likewise, but each with the algorithm that is fastest alone: what the stage
            has to beat.
        spread_us: how far the difference of `concurrent_us` and `sequential_us` may be off.
        workspace_bytes: what all lanes need together.
        source: what measured, and how.
        sequential_algorithms: the algorithms of `sequential_us`, in the order of `convolutions`.
        tf32: whether TF32 was allowed.
        sm_counts: the SMs of each lane's partition, as the device gave them; empty where lanes
            shared all.
        priorities: the priority of each lane's stream; empty where all are 0.
        asked_sm_counts: the SMs that were asked for, where the device gave others; else empty.
        merged: whether the convolutions of each lane ran as one wider convolution; empty where
            none did.
    """

    convolutions: Annotated[tuple[MeasuredConvolution, ...], msgspec.Meta(min_length=1)]
    lanes: tuple[Count, ...]
    concurrent_us: Positive
    same_sequential_us: Positive
    sequential_us: Positive
    spread_us: NotNegative
    workspace_bytes: Count
    source: str
    sequential_algorithms: tuple[str | None, ...] = ()
    tf32: bool = True
    sm_counts: tuple[Count, ...] = ()
    priorities: tuple[int, ...] = ()
    asked_sm_counts: tuple[Count, ...] = ()
    merged: tuple[bool, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class StageFailure:
    """A stage that could not be measured; it is not tried again.

    Attributes:
        convolutions: what was to run, in launch order.
        lanes: the lane of each.
        tf32: whether TF32 was allowed.
        kind: the class of the reason.
        reason: what was expected and what came.
        source: what measured, and how.
        sm_counts: the SMs that were asked for, for each lane; empty where lanes were to share all.
        priorities: the priority of each lane's stream; empty where all are 0.
        merged: which lanes were to run as one wider convolution; empty where none was.
    """

    convolutions: Annotated[tuple[MeasuredConvolution, ...], msgspec.Meta(min_length=1)]
    lanes: tuple[Count, ...]
    tf32: bool
    kind: FailureKind
    reason: str
    source: str
    sm_counts: tuple[Count, ...] = ()
    priorities: tuple[int, ...] = ()
    merged: tuple[bool, ...] = ()


Entry = AlgorithmMeasurement | AlgorithmFailure | StageMeasurement | StageFailure
"""What one measurement leaves in a profile."""


class AlgorithmKey(NamedTuple):
    """What tells the entries of algorithms apart; the attributes are theirs."""

    configuration: ConvolutionConfiguration
    algorithm: str
    tf32: bool


class StageKey(NamedTuple):
    """What tells the entries of stages apart: all that was asked for; the attributes are theirs."""

    convolutions: tuple[MeasuredConvolution, ...]
    lanes: tuple[int, ...]
    tf32: bool
    sm_counts: tuple[int, ...]
    priorities: tuple[int, ...]
    merged: tuple[bool, ...] = ()


EntryKey = AlgorithmKey | StageKey


def entry_key(entry: Entry) -> EntryKey:
    """What a profile holds at most one entry for, a measurement or a failure."""
    if isinstance(entry, (AlgorithmMeasurement, AlgorithmFailure)):
        return AlgorithmKey(entry.configuration, entry.algorithm, entry.tf32)
    sm_counts = entry.sm_counts
    if isinstance(entry, StageMeasurement):
        sm_counts = entry.asked_sm_counts or sm_counts
    return StageKey(
        entry.convolutions, entry.lanes, entry.tf32, sm_counts, entry.priorities, entry.merged
    )


# Without slots: the lookup tables are kept in the instance.
@dataclasses.dataclass(frozen=True)
class Profile:
    """What a profile file holds.

    No two entries, measurements or failures, have one `entry_key`.

    Attributes:
        device: what was measured on.
        algorithms: what algorithms cost.
        algorithm_failures: algorithms that could not be measured.
        stages: what stages cost. One set of configurations may be there several times, with
            different algorithms, lanes or SMs.
        stage_failures: stages that could not be measured.
        format: always `tf_interop.profile`.
        version: version of the format.
    """

    device: ProfiledDevice
    algorithms: tuple[AlgorithmMeasurement, ...] = ()
    algorithm_failures: tuple[AlgorithmFailure, ...] = ()
    stages: tuple[StageMeasurement, ...] = ()
    stage_failures: tuple[StageFailure, ...] = ()
    format: str = PROFILE_FORMAT
    version: int = PROFILE_VERSION

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, in the order of the attributes."""
        return (*self.algorithms, *self.algorithm_failures, *self.stages, *self.stage_failures)

    def find_stages(
        self, configurations: Iterable[ConvolutionConfiguration]
    ) -> tuple[StageMeasurement, ...]:
        """The measurements of stages of exactly these configurations, fastest first.

        Args:
            configurations: of the stage, in any order, a repeated one repeated. They match only
                where all is equal, batch and image size too: one with an unknown dimension never
                does.
        """
        return self._by_configurations.get(_as_set(configurations), ())

    def find_algorithms(
        self, configuration: ConvolutionConfiguration, *, allow_tf32: bool = True
    ) -> tuple[AlgorithmMeasurement, ...]:
        """The measured algorithms of a convolution, each once, fastest first.

        Args:
            configuration: matches only where all is equal.
            allow_tf32: TensorFlow's switch for TF32; see `as_with_tf32`.
        """
        return as_with_tf32(self._by_configuration.get(configuration, ()), allow_tf32=allow_tf32)

    @functools.cached_property
    def stage_batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes that stages were measured with, ascending."""
        configurations = {
            measured.configuration for stage in self.stages for measured in stage.convolutions
        }
        return tuple(
            sorted(
                {
                    each.image_shape[0]
                    for each in configurations
                    if each.image_shape is not None and each.image_shape[0] is not None
                }
            )
        )

    @functools.cached_property
    def deterministic_part(self) -> Profile:
        """What holds where TensorFlow has to give the same bits every time.

        Algorithms that did not in two runs are left out, and stages that use one of them, or one
        that was not measured alone. A merged lane uses that of its wider convolution.
        """
        deterministic = {
            MeasuredConvolution(each.configuration, each.algorithm)
            for each in self.algorithms
            if each.deterministic
        }
        deterministic.difference_update(
            MeasuredConvolution(each.configuration, each.algorithm)
            for each in self.algorithms
            if not each.deterministic
        )
        return dataclasses.replace(
            self,
            algorithms=tuple(
                each
                for each in self.algorithms
                if MeasuredConvolution(each.configuration, each.algorithm) in deterministic
            ),
            stages=tuple(
                stage for stage in self.stages if deterministic.issuperset(_launched(stage))
            ),
        )

    @functools.cached_property
    def _by_configurations(self) -> Mapping[_ConfigurationSet, tuple[StageMeasurement, ...]]:
        grouped = collections.defaultdict(list)
        for measurement in self.stages:
            key = _as_set(measured.configuration for measured in measurement.convolutions)
            grouped[key].append(measurement)
        return {
            key: tuple(sorted(group, key=lambda each: each.concurrent_us))
            for key, group in grouped.items()
        }

    @functools.cached_property
    def _by_configuration(
        self,
    ) -> Mapping[ConvolutionConfiguration, tuple[AlgorithmMeasurement, ...]]:
        grouped = collections.defaultdict(list)
        for measurement in self.algorithms:
            grouped[measurement.configuration].append(measurement)
        return {configuration: fastest_first(group) for configuration, group in grouped.items()}


def profile_of(device: ProfiledDevice, entries: Iterable[Entry]) -> Profile:
    """A profile of these entries; of those with one key the last counts, at the first's place."""
    latest = {entry_key(entry): entry for entry in entries}.values()
    return Profile(
        device,
        tuple(each for each in latest if isinstance(each, AlgorithmMeasurement)),
        tuple(each for each in latest if isinstance(each, AlgorithmFailure)),
        tuple(each for each in latest if isinstance(each, StageMeasurement)),
        tuple(each for each in latest if isinstance(each, StageFailure)),
    )


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

    Args:
        measurements: with TF32 allowed, and without.
        allow_tf32: the switch.
    """
    rounding = {each.algorithm for each in measurements if each.tf32}
    return tuple(
        each
        for each in measurements
        if (allow_tf32 if each.tf32 else not allow_tf32 or each.algorithm not in rounding)
    )


def wins(measurement: StageMeasurement) -> bool:
    """Whether the stage is faster than its convolutions in sequence, by more than the spread."""
    return measurement.concurrent_us + measurement.spread_us < measurement.sequential_us


def is_measured_as_it_runs(
    measurement: StageMeasurement, device: ProfiledDevice, *, allow_tf32: bool
) -> bool:
    """Whether a stage was measured with TensorFlow's switch for TF32 as it is, where that matters.

    Args:
        measurement: of a stage.
        device: that it was measured on; a CPU has no TF32.
        allow_tf32: the switch.
    """
    can_round_to_tf32 = device.backend == "cudnn" and any(
        measured.configuration.dtype == "float32" for measured in measurement.convolutions
    )
    return measurement.tf32 == allow_tf32 or not can_round_to_tf32


def _launched(stage: StageMeasurement) -> tuple[MeasuredConvolution, ...]:
    """What the lanes of a stage launch: its convolutions, and of a merged lane the wider one."""
    launched = []
    merged: dict[int, list[MeasuredConvolution]] = {}
    for lane, each in zip(stage.lanes, stage.convolutions, strict=True):
        if stage.merged and stage.merged[lane]:
            merged.setdefault(lane, []).append(each)
        else:
            launched.append(each)
    for parts in merged.values():
        wider = merged_configuration([each.configuration for each in parts])
        launched.append(MeasuredConvolution(wider, parts[0].algorithm))
    return tuple(launched)


def _as_set(configurations: Iterable[ConvolutionConfiguration]) -> _ConfigurationSet:
    return frozenset(collections.Counter(configurations).items())
