"""The entries of a profile, and the rules for them.

An entry is a measurement of an algorithm or of a stage, or the failure of one.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import msgspec

from tf_interop.convolution import (
    DTYPE_BYTES,
    SPATIAL_AXES,
    ConvolutionConfiguration,
    ConvolutionKind,
    can_merge,
    merged_configuration,
)
from tf_interop.stage import Stage, Step

_LARGEST_INT32 = 2**31 - 1
_LARGEST_INT64 = 2**63 - 1

Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
# The core has 64-bit integers.
Count = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST_INT64)]
PositiveCount = Annotated[int, msgspec.Meta(ge=1, le=_LARGEST_INT64)]
Day = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]


@dataclasses.dataclass(frozen=True, slots=True)
class KernelMeasurement:
    """One GPU kernel that an algorithm launches.

    Attributes:
        name: as CUPTI reports it.
        grid: blocks in x, y and z.
        block: threads of a block in x, y and z.
        registers_per_thread: 32-bit registers.
        shared_memory_bytes: static and dynamic, per block.
        time_share: share of the time of all kernels of the algorithm.
        alu_utilization: share of the time in which the busiest arithmetic pipe worked; None
            without values from Nsight Compute.
        dram_utilization: DRAM throughput relative to its peak; None without such values.
        memory_stall: share of the warps' stalls that wait for memory; None without such values.
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
    """The cost of one algorithm for one convolution, alone on the device.

    Attributes:
        configuration: all its shapes are known.
        tf32: whether the algorithm may round float operands to TF32 or less. It is not used if
            TensorFlow's switch for TF32 is off.
        latency_us: median of the timed runs.
        spread_us: half the distance between their 10th and 90th percentiles.
        relative_error: largest difference from the result in double precision, relative to that
            result's largest value; for a large convolution, among at most 4,096 elements. A result
            that is not finite is a failure.
        deterministic: whether two runs returned the same bits.
        kernels: the GPU kernels of one run in order; empty on a CPU and without CUPTI.
        source: the method of the measurement.
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
    """Why something could not be measured."""

    UNSUPPORTED = "unsupported"
    OUT_OF_MEMORY = "out of memory"
    WRONG_RESULT = "wrong result"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class AlgorithmFailure:
    """An algorithm that could not be measured for a convolution; it is not tried again.

    Attributes:
        tf32: whether TF32 was allowed.
        source: the method of the measurement.
    """

    configuration: ConvolutionConfiguration
    algorithm: str
    tf32: bool
    kind: FailureKind
    reason: str
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class StageMeasurement:
    """The cost of one stage. All three times come from one run, which alternated between them.

    Attributes:
        stage: the requested stage. Its algorithms are those that ran.
        tf32: whether TF32 was allowed.
        latency_us: time from fork to join.
        same_sequential_us: time of the same steps with the same algorithms, one after another on
            one stream.
        sequential_us: time of the steps one after another, each with the algorithm that is fastest
            alone. The stage must beat it.
        spread_us: error of the difference between `latency_us` and `sequential_us`.
        workspace_bytes: sum over the lanes.
        source: the method of the measurement.
        sequential_algorithms: the algorithms of `sequential_us`, one for each of `stage.steps`;
            empty if they are the stage's own.
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

    @property
    def wins(self) -> bool:
        """Whether it is faster than the sequence by more than the spread."""
        return self.latency_us + self.spread_us < self.sequential_us


@dataclasses.dataclass(frozen=True, slots=True)
class StageFailure:
    """A stage that could not be measured; it is not tried again.

    Attributes:
        tf32: whether TF32 was allowed.
        source: the method of the measurement.
    """

    stage: Stage[ConvolutionConfiguration]
    tf32: bool
    kind: FailureKind
    reason: str
    source: str


Entry = AlgorithmMeasurement | AlgorithmFailure | StageMeasurement | StageFailure
"""The result of one measurement."""


class AlgorithmKey(NamedTuple):
    """The fields that identify an entry of an algorithm."""

    configuration: ConvolutionConfiguration
    algorithm: str
    tf32: bool


class StageKey(NamedTuple):
    """The fields that identify an entry of a stage."""

    stage: Stage[ConvolutionConfiguration]
    tf32: bool


EntryKey = AlgorithmKey | StageKey


def entry_key(entry: Entry) -> EntryKey:
    """The key that a profile has at most one entry for, a measurement or a failure."""
    if isinstance(entry, (AlgorithmMeasurement, AlgorithmFailure)):
        return AlgorithmKey(entry.configuration, entry.algorithm, entry.tf32)
    return StageKey(entry.stage, entry.tf32)


def fastest_first(
    measurements: Iterable[AlgorithmMeasurement],
) -> tuple[AlgorithmMeasurement, ...]:
    """Sorts measurements of one convolution: by time, then by workspace."""
    return tuple(
        sorted(
            measurements,
            key=lambda each: (each.latency_us, each.workspace_bytes, each.algorithm, each.tf32),
        )
    )


def as_with_tf32(
    measurements: Sequence[AlgorithmMeasurement], *, allow_tf32: bool
) -> tuple[AlgorithmMeasurement, ...]:
    """The measurements of one convolution that apply under a switch for TF32.

    An algorithm that was measured both with and without rounding rounds if it may.
    """
    rounding = {each.algorithm for each in measurements if each.tf32}
    return tuple(
        each
        for each in measurements
        if (allow_tf32 if each.tf32 else not allow_tf32 or each.algorithm not in rounding)
    )


def launched_steps(
    stage: Stage[ConvolutionConfiguration],
) -> tuple[Step[ConvolutionConfiguration], ...]:
    """The steps of a stage, with one wider convolution for each merged lane."""
    launched: list[Step[ConvolutionConfiguration]] = []
    for lane in stage.lanes:
        if lane.merged:
            launched.append(Step(merged_configuration(lane.operations), lane.steps[0].algorithm))
        else:
            launched.extend(lane.steps)
    return tuple(launched)


# The checks below raise ValueError; the message names the place.


def check_entry(entry: Entry, place: str) -> None:
    """Checks the rules that the types cannot express."""
    if isinstance(entry, (AlgorithmMeasurement, AlgorithmFailure)):
        check_configuration(entry.configuration, f"{place}.configuration")
        _check_algorithm(entry.algorithm, entry.configuration, f"{place}.algorithm")
        return
    check_stage(entry.stage, f"{place}.stage")
    if not isinstance(entry, StageMeasurement):
        return
    operations = entry.stage.operations
    if len(entry.sequential_algorithms) not in (0, len(operations)):
        raise ValueError(
            f"Expected none or {len(operations)} values, got {len(entry.sequential_algorithms)} at "
            f"`{place}.sequential_algorithms`"
        )
    for index, algorithm in enumerate(entry.sequential_algorithms):
        at = f"{place}.sequential_algorithms[{index}]"
        _check_algorithm(algorithm, operations[index], at)


def check_stage(stage: Stage[ConvolutionConfiguration], place: str) -> None:
    """Checks the lanes, configurations and algorithms of a stage."""
    try:
        stage.validate()
    except ValueError as error:
        raise ValueError(f"{error}, at `{place}`") from error
    for number, lane in enumerate(stage.lanes):
        for index, step in enumerate(lane.steps):
            at = f"{place}.lanes[{number}].steps[{index}]"
            check_configuration(step.operation, f"{at}.operation")
            _check_algorithm(step.algorithm, step.operation, f"{at}.algorithm")
        if lane.merged and not can_merge(lane.operations):
            raise ValueError(
                "Expected the convolutions of a merged lane to differ only in filters and output "
                f"channels, got others at `{place}.lanes[{number}]`"
            )


def check_configuration(configuration: ConvolutionConfiguration, place: str) -> None:
    """Checks that a configuration can be in a stage, and that all its shapes are known."""
    for field, known in (("dtype", DTYPE_BYTES), ("layout", SPATIAL_AXES)):
        if getattr(configuration, field) not in known:
            raise ValueError(
                f"Expected {field} to be one of {', '.join(known)}, got "
                f"{getattr(configuration, field)} at `{place}.{field}`"
            )
    for field in ("strides", "dilations"):
        if min(getattr(configuration, field)) < 1:
            raise ValueError(
                f"Expected positive {field}, got {getattr(configuration, field)} at "
                f"`{place}.{field}`"
            )
    rank = configuration.spatial_rank + 2
    lengths = {"dilations": rank - 2, "layout": rank}
    for field in ("image_shape", "filter_shape", "output_shape"):
        lengths[field] = rank
        shape = getattr(configuration, field)
        if shape is None or any(size is None or size < 1 for size in shape):
            raise ValueError(
                f"Expected known and positive dimensions, got {shape} at `{place}.{field}`"
            )
    for field, length in lengths.items():
        value = getattr(configuration, field)
        if len(value) != length:
            raise ValueError(
                f"Expected {length} dimensions, to match the strides, got {value} at "
                f"`{place}.{field}`"
            )


def _check_algorithm(
    algorithm: str | None, configuration: ConvolutionConfiguration, place: str
) -> None:
    if algorithm is None:
        return
    try:
        check_algorithm(algorithm, configuration.kind)
    except ValueError as error:
        raise ValueError(f"{error} at `{place}`") from error


_OF_ALL_KINDS = ("FFT", "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED")
LEGACY_ALGORITHMS: dict[ConvolutionKind, tuple[str, ...]] = {
    ConvolutionKind.FORWARD: (
        *("IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "DIRECT"),
        *_OF_ALL_KINDS,
    ),
    ConvolutionKind.BACKWARD_INPUT: ("ALGO_0", "ALGO_1", *_OF_ALL_KINDS),
    ConvolutionKind.BACKWARD_FILTER: ("ALGO_0", "ALGO_1", "ALGO_3", *_OF_ALL_KINDS),
}
"""cuDNN's legacy algorithms of each kind: its enumerators without their common prefix."""

HOST_ALGORITHMS = ("BUFFERED", "DIRECT")
"""Algorithms of the host backend."""

# An engine's global index and its knobs, as cudnn-frontend tags a plan: "eng4_k24=15_k6=0". A
# prefix names the runner's work around the algorithm. These patterns accept the same names as
# ParseAlgorithm does (cc_kernels/core/cudnn/algorithm.cc).
_FORMULATION = re.compile(r"^(?:split\+)?(?:nchw\+)?")
_NUMBER = r"(?:0|[1-9][0-9]*)"
_ENGINE_TAG = re.compile(rf"eng({_NUMBER})((?:_k{_NUMBER}=(?:{_NUMBER}|-[1-9][0-9]*))*)")
_KNOB = re.compile(r"_k([0-9]+)=-?([0-9]+)")


def check_algorithm(name: str, kind: ConvolutionKind | None = None) -> None:
    """Checks that a runner knows an algorithm of that name; a legacy name is of `kind`, if given.

    Whether it can run on a backend and device, with a shape, is up to the runner, which has
    fallbacks.

    Raises:
        ValueError: no runner knows the name; the message lists the accepted ones.
    """
    if name in HOST_ALGORITHMS or names_engine(name):
        return
    kinds = tuple(LEGACY_ALGORITHMS) if kind is None else (kind,)
    legacy_name = _FORMULATION.sub("", name)
    if any(legacy_name in LEGACY_ALGORITHMS[each] for each in kinds):
        return
    accepted = "; ".join(f"{each.value}: {', '.join(LEGACY_ALGORITHMS[each])}" for each in kinds)
    raise ValueError(
        "Expected an algorithm that a runner knows: an engine tag such as 'eng4_k24=15_k6=0' with "
        f"each knob once, or a legacy name ({accepted}), either one after the optional prefixes "
        f"'split+' and 'nchw+', in this order; or one of the host backend "
        f"({', '.join(HOST_ALGORITHMS)}); got {name!r}"
    )


def names_engine(name: str) -> bool:
    """Whether a name, perhaps with a prefix, names an engine."""
    match = _ENGINE_TAG.fullmatch(_FORMULATION.sub("", name))
    if match is None:
        return False
    index, knobs = match.groups()
    pairs = _KNOB.findall(knobs)
    return (
        len({knob for knob, _ in pairs}) == len(pairs)
        and all(int(knob) <= _LARGEST_INT32 for knob, _ in pairs)
        and all(int(value) <= _LARGEST_INT64 for _, value in pairs)
        and int(index) <= _LARGEST_INT64
    )
