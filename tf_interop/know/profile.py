"""A profile: what stages cost, measured on one device with one set of software versions."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from tf_interop.know.convolution import ConvolutionConfiguration

PROFILE_FORMAT = "tf_interop.profile"
PROFILE_VERSION = 1

_ConfigurationSet = frozenset[tuple[ConvolutionConfiguration, int]]


@dataclasses.dataclass(frozen=True, slots=True)
class ProfiledDevice:
    """What was measured on; results do not carry over to another device or version.

    Attributes:
        name: the device's name, as its driver gives it.
        software: versions of what ran, such as {"cudnn": "9.3.0", "driver": "550.54"}.
    """

    name: str
    software: dict[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class MeasuredConvolution:
    """One convolution of a measured stage, alone in its lane.

    Attributes:
        configuration: what it computes; all its shapes are known.
        algorithm: what it was computed with; None where the runner chose.
    """

    configuration: ConvolutionConfiguration
    algorithm: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class StageMeasurement:
    """The cost of one stage.

    Attributes:
        convolutions: what ran, in launch order.
        concurrent_us: the stage's time from fork to join.
        sequential_us: time of the same convolutions one after another on one stream, each with
            the algorithm that is fastest alone.
        spread_us: how far a repetition of the measurement may be off.
        source: where the numbers come from, such as the program and its arguments.
    """

    convolutions: Annotated[tuple[MeasuredConvolution, ...], msgspec.Meta(min_length=1)]
    concurrent_us: Annotated[float, msgspec.Meta(gt=0)]
    sequential_us: Annotated[float, msgspec.Meta(gt=0)]
    spread_us: Annotated[float, msgspec.Meta(ge=0)]
    source: str


# Without slots: the lookup table is kept in the instance.
@dataclasses.dataclass(frozen=True)
class Profile:
    """What a profile file holds.

    Attributes:
        device: what was measured on.
        stages: the measurements. One set of configurations may be there several times, with
            different algorithms.
        format: always `tf_interop.profile`.
        version: version of the format.
    """

    device: ProfiledDevice
    stages: tuple[StageMeasurement, ...]
    format: str = PROFILE_FORMAT
    version: int = PROFILE_VERSION

    def find_measurement(
        self, configurations: Iterable[ConvolutionConfiguration]
    ) -> StageMeasurement | None:
        """The fastest measurement of a stage of exactly these configurations.

        Args:
            configurations: of the stage, in any order, a repeated one repeated. They match only
                where all is equal, batch and image size too: one with an unknown dimension never
                does.
        """
        return self._fastest.get(_as_set(configurations))

    @functools.cached_property
    def _fastest(self) -> Mapping[_ConfigurationSet, StageMeasurement]:
        fastest: dict[_ConfigurationSet, StageMeasurement] = {}
        for measurement in self.stages:
            key = _as_set(measured.configuration for measured in measurement.convolutions)
            best = fastest.setdefault(key, measurement)
            if measurement.concurrent_us < best.concurrent_us:
                fastest[key] = measurement
        return fastest


def wins(measurement: StageMeasurement) -> bool:
    """Whether the stage is faster than its convolutions in sequence, by more than the spread."""
    return measurement.concurrent_us + measurement.spread_us < measurement.sequential_us


def _as_set(configurations: Iterable[ConvolutionConfiguration]) -> _ConfigurationSet:
    return frozenset(collections.Counter(configurations).items())
