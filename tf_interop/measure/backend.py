"""What a backend can be asked to measure, and what it says of algorithms and of its device."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Protocol

from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmMeasurement,
    StageFailure,
    StageMeasurement,
)
from tf_interop.profile.types import SmLimits


class AlgorithmScope(enum.Enum):
    """Which algorithms of a convolution to list."""

    HEURISTIC = "heuristic"
    """What the backend itself would consider, best first."""
    ALL = "all"
    """These, and every other one in its default setting."""
    KNOBS = "knobs"
    """These, and every other setting with one knob moved off its default."""


@dataclasses.dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How to measure; `cc_kernels/core/measure.h` says what is done with it.

    Attributes:
        warmup_runs: runs before the timed ones.
        repetitions: timed runs, at least 1.
        cache_bytes: what the copies of all operands have to exceed together; None for the device's
            default (32 MiB on host, 64 MiB on cudnn).
        head_start_bytes: memory that is filled before each timed run, to give the host time to
            enqueue it; None for the device's default (none on host, 256 MiB on cudnn).
        workspace_limit_bytes: the most that one convolution may need.
        reference_limit_multiply_adds: the error is measured up to this size.
        seed: of the operands, which are normal with mean 0 and deviation 1.
        allow_tf32: whether float convolutions may be computed in TF32.
        trace_kernels: whether GPU kernels are traced, in a run of their own.
    """

    warmup_runs: int = 3
    repetitions: int = 20
    cache_bytes: int | None = None
    head_start_bytes: int | None = None
    workspace_limit_bytes: int = 1 << 30
    reference_limit_multiply_adds: float = 2e8
    seed: int = 0
    allow_tf32: bool = True
    trace_kernels: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceDescription:
    """What the core knows of the device that it measures on, without NVML.

    Attributes:
        backend: `cudnn` or `host`.
        name: the device's name, as its driver or the operating system gives it.
        compute_capability: such as `9.0`; empty for a CPU.
        sm_count: streaming multiprocessors; for a CPU the cores that the process may use.
        memory_bytes: memory of the device.
        sm_limits: None for a CPU.
        cudnn: cuDNN's version such as `9.10.2`; empty for a CPU.
        cuda: version of CUDA that the driver supports, such as `12.8`; empty for a CPU.
    """

    backend: str
    name: str
    compute_capability: str
    sm_count: int
    memory_bytes: int
    sm_limits: SmLimits | None
    cudnn: str
    cuda: str


@dataclasses.dataclass(frozen=True, slots=True)
class AlgorithmList:
    """The algorithms that may be able to compute a convolution.

    Attributes:
        algorithms: names, each once.
        error: why there are none, or None.
    """

    algorithms: tuple[str, ...]
    error: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class ResolvedAlgorithm:
    """What would be measured under a name; two names of one algorithm have the same.

    Attributes:
        algorithm: what its measurement would be filed under.
        tf32: whether it may round float operands to TF32 or less.
    """

    algorithm: str
    tf32: bool


@dataclasses.dataclass(frozen=True, slots=True)
class StageStep:
    """One convolution of a stage to be measured.

    Attributes:
        configuration: what it computes; all its shapes are known.
        lane: its lane; lanes are numbered 0, 1, 2, … in the order of the steps.
        algorithm: pinned, or None for the backend's own choice.
    """

    configuration: ConvolutionConfiguration
    lane: int
    algorithm: str | None = None


class Backend(Protocol):
    """What measures: `MeasuringBackend`, or a stand-in."""

    def list_algorithms(
        self,
        configuration: ConvolutionConfiguration,
        scope: AlgorithmScope = ...,
        *,
        allow_tf32: bool = ...,
    ) -> AlgorithmList:
        """See `MeasuringBackend.list_algorithms`."""

    def resolve_algorithm(
        self,
        configuration: ConvolutionConfiguration,
        algorithm: str,
        options: MeasureOptions | None = ...,
    ) -> ResolvedAlgorithm | AlgorithmFailure:
        """See `MeasuringBackend.resolve_algorithm`."""

    def measure_algorithm(
        self,
        configuration: ConvolutionConfiguration,
        algorithm: str | None = ...,
        options: MeasureOptions | None = ...,
    ) -> AlgorithmMeasurement | AlgorithmFailure:
        """See `MeasuringBackend.measure_algorithm`."""

    def measure_stage(
        self,
        steps: Sequence[StageStep],
        options: MeasureOptions | None = ...,
        *,
        sequential_algorithms: Sequence[str | None] = ...,
        sm_counts: Sequence[int] = ...,
        priorities: Sequence[int] = ...,
        merged: Sequence[bool] = ...,
    ) -> StageMeasurement | StageFailure:
        """See `MeasuringBackend.measure_stage`."""
