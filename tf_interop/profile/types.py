"""A profile: what convolutions and stages cost, measured on one device with its software."""

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

    The first five fields decide whether a profile fits a device (`why_foreign`).

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
        hardware_queues: that CUDA spread streams over (`CUDA_DEVICE_MAX_CONNECTIONS`); None if
            that is not known, and for a CPU.
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
    """How a profile's device differs from another in what its values depend on.

    Memory, driver, CUDA, clocks and queues are there to be read; they are not compared. Neither is
    the `sm_count` if it is 0 `here`.

    Returns:
        Every differing field with both values, or None if the profile fits.
    """
    differences = [
        f"{field}: expected {_shown(getattr(here, field))}, got {_shown(getattr(profiled, field))}"
        for field in _COMPARED
        if getattr(here, field) != getattr(profiled, field)
        and not (field == "sm_count" and here.sm_count == 0)
    ]
    return "; ".join(differences) or None


def _shown(value: object) -> str:
    return "none that is known" if value == "" else repr(value)


def today() -> str:
    """The day in UTC, as a device has it."""
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


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
        """The measured algorithms of an equal convolution, each once, fastest first.

        They are those under TensorFlow's switch for TF32 (see `as_with_tf32`).
        """
        return as_with_tf32(self._by_configuration.get(configuration, ()), allow_tf32=allow_tf32)

    @functools.cached_property
    def deterministic_part(self) -> Profile:
        """What holds where TensorFlow has to give the same bits every time.

        Algorithms that did not in two runs are left out, and stages that use one of them, or one
        that was not measured alone. A merged lane uses that of its wider convolution.
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
    """A profile of these entries; of those with one key the last counts, at the first's place."""
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
    """Whether a stage was measured with TensorFlow's switch for TF32 as it is, where that matters.

    A CPU has no TF32.
    """
    can_round_to_tf32 = device.backend == "cudnn" and any(
        each.dtype == "float32" for each in measurement.stage.operations
    )
    return measurement.tf32 == allow_tf32 or not can_round_to_tf32
