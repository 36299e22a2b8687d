"""A profile: the measured costs of convolutions and stages on one device with its software."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import functools
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmMeasurement,
    Count,
    Day,
    Entry,
    PositiveCount,
    StageFailure,
    StageMeasurement,
    as_with_tf32,
    entry_key,
    fastest_first,
    launched_steps,
)
from tf_interop.stage import Step

BackendName = Annotated[str, msgspec.Meta(pattern="^(cudnn|host)$")]
_COMPARED = ("backend", "name", "compute_capability", "sm_count", "cudnn")


@dataclasses.dataclass(frozen=True, slots=True)
class SmLimits:
    """The resources of one streaming multiprocessor for its resident blocks.

    Attributes:
        registers: 32-bit registers.
        reserved_shared_memory_bytes: taken by each block on top of its own use.
    """

    registers: PositiveCount
    shared_memory_bytes: PositiveCount
    threads: PositiveCount
    blocks: PositiveCount
    reserved_shared_memory_bytes: Count = 0


@dataclasses.dataclass(frozen=True, slots=True)
class ProfiledDevice:
    """A measured device. Its results do not carry over to another device or version.

    The first five fields decide whether a profile fits a device (`why_foreign`).

    Attributes:
        backend: `cudnn`, or `host` for a CPU.
        name: as its driver or the operating system reports it.
        compute_capability: such as `9.0`; empty for a CPU.
        sm_count: streaming multiprocessors; for a CPU the cores that the process may use.
        cudnn: version such as `9.10.2`; empty for a CPU.
        driver: version of the driver; empty for a CPU.
        cuda: version of CUDA that the driver supports, such as `12.8`; empty for a CPU.
        clocks_mhz: NVML's values at the start, such as {"sm": 1980, "memory": 2619}.
        sm_limits: None for a CPU.
        date: day of the measurements in UTC, such as `2026-11-21`.
        hardware_queues: the queues that CUDA spread streams over
            (`CUDA_DEVICE_MAX_CONNECTIONS`); None for a CPU, and if it is unknown.
    """

    backend: BackendName
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
    hardware_queues: PositiveCount | None = None


def why_foreign(profiled: ProfiledDevice, here: ProfiledDevice) -> str | None:
    """Every field that a profile's values depend on and that differs, with both values.

    None if the profile fits. If `here.sm_count` is 0, it is not compared.
    """
    differences = [
        f"{field}: expected {_shown(getattr(here, field))}, got {_shown(getattr(profiled, field))}"
        for field in _COMPARED
        if getattr(here, field) != getattr(profiled, field)
        and not (field == "sm_count" and here.sm_count == 0)
    ]
    return "; ".join(differences) or None


def _shown(value: object) -> str:
    return "an unknown value" if value == "" else repr(value)


def today() -> str:
    """Today's date in UTC."""
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


# Without slots, because the instance caches its lookup tables.
@dataclasses.dataclass(frozen=True)
class Profile:
    """The content of a profile file.

    No two entries have the same `entry_key`. The same convolutions may have several stages, with
    different algorithms, lanes or SMs.
    """

    device: ProfiledDevice
    algorithms: tuple[AlgorithmMeasurement, ...] = ()
    algorithm_failures: tuple[AlgorithmFailure, ...] = ()
    stages: tuple[StageMeasurement, ...] = ()
    stage_failures: tuple[StageFailure, ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, in the order of the attributes."""
        return (*self.algorithms, *self.algorithm_failures, *self.stages, *self.stage_failures)

    def find_algorithms(
        self, configuration: ConvolutionConfiguration, *, allow_tf32: bool = True
    ) -> tuple[AlgorithmMeasurement, ...]:
        """The measured algorithms of a convolution under a switch for TF32, fastest first."""
        return as_with_tf32(self._by_configuration.get(configuration, ()), allow_tf32=allow_tf32)

    @functools.cached_property
    def deterministic_part(self) -> Profile:
        """The algorithms that returned the same bits in two runs, and the stages with only these.

        The algorithm of a merged lane counts for its wider convolution.
        """
        same_bits: dict[Step[ConvolutionConfiguration], bool] = {}
        for each in self.algorithms:
            step = Step(each.configuration, each.algorithm)
            same_bits[step] = same_bits.get(step, True) and each.deterministic
        return dataclasses.replace(
            self,
            algorithms=tuple(
                each
                for each in self.algorithms
                if same_bits[Step(each.configuration, each.algorithm)]
            ),
            stages=tuple(
                each
                for each in self.stages
                if all(same_bits.get(step) for step in launched_steps(each.stage))
            ),
        )

    @functools.cached_property
    def _by_configuration(
        self,
    ) -> Mapping[ConvolutionConfiguration, tuple[AlgorithmMeasurement, ...]]:
        grouped = collections.defaultdict(list)
        for measurement in self.algorithms:
            grouped[measurement.configuration].append(measurement)
        return {configuration: fastest_first(group) for configuration, group in grouped.items()}


def profile_of(device: ProfiledDevice, entries: Iterable[Entry]) -> Profile:
    """Makes a profile; the last entry with a key replaces earlier ones, in their place."""
    latest = {entry_key(entry): entry for entry in entries}.values()
    return Profile(
        device,
        tuple(each for each in latest if isinstance(each, AlgorithmMeasurement)),
        tuple(each for each in latest if isinstance(each, AlgorithmFailure)),
        tuple(each for each in latest if isinstance(each, StageMeasurement)),
        tuple(each for each in latest if isinstance(each, StageFailure)),
    )


def is_measured_as_it_runs(
    measurement: StageMeasurement, device: ProfiledDevice, *, allow_tf32: bool
) -> bool:
    """Whether a stage was measured under this switch for TF32, or TF32 does not matter to it."""
    # A CPU has no TF32.
    can_round_to_tf32 = device.backend == "cudnn" and any(
        each.dtype == "float32" for each in measurement.stage.operations
    )
    return measurement.tf32 == allow_tf32 or not can_round_to_tf32
