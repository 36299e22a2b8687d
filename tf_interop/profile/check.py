"""What a profile's entries may say, beyond their types and bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tf_interop.algorithm import check_algorithm
from tf_interop.convolution import ConvolutionConfiguration, can_merge
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmMeasurement,
    Entry,
    EntryKey,
    KernelMeasurement,
    StageFailure,
    StageMeasurement,
    entry_key,
)
from tf_interop.profile.types import Profile, ProfiledDevice

BACKENDS = ("cudnn", "host")

# Shares are written with what digits they have; a few kernels' rounding adds up to less than this.
_SHARE_TOLERANCE = 0.01


def check_profile(profile: Profile) -> None:
    """Checks all entries, and that none is there twice.

    Raises:
        ValueError: something is not legal. The message ends with the place, "… at `$.stages[0]`".
    """
    check_device(profile.device, "$.device")
    places: dict[EntryKey, str] = {}
    for field in ("algorithms", "algorithm_failures", "stages", "stage_failures"):
        for index, entry in enumerate(getattr(profile, field)):
            place = f"$.{field}[{index}]"
            check_entry(entry, place)
            first = places.setdefault(entry_key(entry), place)
            if first != place:
                raise ValueError(
                    f"Expected one entry for each {_KEY_WORDS[field]}, got that of `{first}` again "
                    f"at `{place}`"
                )


def check_device(device: ProfiledDevice, place: str) -> None:
    """Checks the backend's name.

    Raises:
        ValueError: no backend has that name.
    """
    if device.backend not in BACKENDS:
        raise ValueError(
            f"Expected one of {', '.join(BACKENDS)}, got {device.backend!r} at `{place}.backend`"
        )


def check_entry(entry: Entry, place: str) -> None:
    """Checks one entry, apart from its configurations (see `check_configuration`).

    Args:
        entry: what a profile is to hold.
        place: where it is, for messages.

    Raises:
        ValueError: something is not legal; the message names the place.
    """
    if isinstance(entry, (AlgorithmMeasurement, AlgorithmFailure)):
        _check_algorithm(entry.algorithm, entry.configuration, f"{place}.algorithm")
        if isinstance(entry, AlgorithmMeasurement):
            _check_finite(entry, ("latency_us", "spread_us", "relative_error"), place)
            _check_kernels(entry.kernels, f"{place}.kernels")
        return
    _check_stage(entry, place)


def check_configuration(configuration: ConvolutionConfiguration, place: str) -> None:
    """Checks that all shapes are known: what was measured had some.

    Raises:
        ValueError: a dimension is not known or not positive, or the fields do not agree on how many
            there are; the message names the place.
    """
    rank = configuration.spatial_rank + 2
    if len(configuration.dilations) != configuration.spatial_rank:
        raise ValueError(
            f"Expected as many dilations as strides, {configuration.spatial_rank}, got "
            f"{configuration.dilations} at `{place}.dilations`"
        )
    if len(configuration.layout) != rank:
        raise ValueError(
            f"Expected a layout of {rank} dimensions, as the strides have it, got "
            f"'{configuration.layout}' at `{place}.layout`"
        )
    for field in ("image_shape", "filter_shape", "output_shape"):
        shape = getattr(configuration, field)
        if shape is None or any(size is None or size < 1 for size in shape):
            raise ValueError(
                "Expected the shape that was measured, all dimensions known and positive, got "
                f"{shape} at `{place}.{field}`"
            )
        if len(shape) != rank:
            raise ValueError(
                f"Expected {rank} dimensions, as the strides have it, got {shape} at "
                f"`{place}.{field}`"
            )


def _check_stage(stage: StageMeasurement | StageFailure, place: str) -> None:
    for index, measured in enumerate(stage.convolutions):
        _check_algorithm(
            measured.algorithm,
            measured.configuration,
            f"{place}.convolutions[{index}].algorithm",
        )
    _check_lanes(stage.lanes, len(stage.convolutions), f"{place}.lanes")
    lane_count = max(stage.lanes) + 1
    for field in ("sm_counts", "priorities", "merged"):
        _check_length(getattr(stage, field), lane_count, "lane", f"{place}.{field}")
    _check_merged_lanes(stage, place)
    if isinstance(stage, StageFailure):
        return
    _check_length(stage.asked_sm_counts, lane_count, "lane", f"{place}.asked_sm_counts")
    _check_finite(
        stage, ("concurrent_us", "same_sequential_us", "sequential_us", "spread_us"), place
    )
    sequential_place = f"{place}.sequential_algorithms"
    _check_length(
        stage.sequential_algorithms, len(stage.convolutions), "convolution", sequential_place
    )
    # Empty where they are the stage's own.
    for index, algorithm in enumerate(stage.sequential_algorithms):
        configuration = stage.convolutions[index].configuration
        _check_algorithm(algorithm, configuration, f"{sequential_place}[{index}]")


def _check_lanes(lanes: Sequence[int], convolution_count: int, place: str) -> None:
    if len(lanes) != convolution_count:
        raise ValueError(
            f"Expected a lane for each of {convolution_count} convolutions, got {len(lanes)} at "
            f"`{place}`"
        )
    next_lane = 0
    for index, lane in enumerate(lanes):
        if lane > next_lane:
            raise ValueError(
                "Expected lanes numbered 0, 1, 2, … in the order in which they appear, at most "
                f"{next_lane}, got {lane} at `{place}[{index}]`"
            )
        next_lane = max(next_lane, lane + 1)


def _check_merged_lanes(stage: StageMeasurement | StageFailure, place: str) -> None:
    for number, is_merged in enumerate(stage.merged):
        if not is_merged:
            continue
        lane = [
            measured
            for measured, of in zip(stage.convolutions, stage.lanes, strict=True)
            if of == number
        ]
        if not can_merge([measured.configuration for measured in lane]):
            raise ValueError(
                "Expected convolutions in a merged lane that differ in filters and output channels "
                f"alone, two or more, got {len(lane)} others at `{place}.merged[{number}]`"
            )
        algorithms = [measured.algorithm for measured in lane]
        if len(set(algorithms)) > 1:
            raise ValueError(
                f"Expected one algorithm in a merged lane, that of the wider convolution, got "
                f"{algorithms} at `{place}.merged[{number}]`"
            )


def _check_length(values: Sequence[object], count: int, noun: str, place: str) -> None:
    if values and len(values) != count:
        raise ValueError(
            f"Expected one for each of {count} {noun}s, or none at all, got {len(values)} at "
            f"`{place}`"
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


def _check_kernels(kernels: Sequence[KernelMeasurement], place: str) -> None:
    for index, kernel in enumerate(kernels):
        shares = ("time_share", "alu_utilization", "dram_utilization", "memory_stall")
        _check_finite(kernel, shares, f"{place}[{index}]")
    total = sum(kernel.time_share for kernel in kernels)
    if kernels and abs(total - 1) > _SHARE_TOLERANCE:
        raise ValueError(
            f"Expected the time shares of all kernels to add up to 1, got {total:.4f} at `{place}`"
        )


def _check_finite(value: object, fields: Sequence[str], place: str) -> None:
    # JSON has no infinity: written, it would be null, which says that it is not known.
    for field in fields:
        figure = getattr(value, field)
        if figure is not None and not math.isfinite(figure):
            raise ValueError(f"Expected a finite figure, got {figure} at `{place}.{field}`")


_KEY_WORDS = {
    "algorithms": "configuration, algorithm and tf32",
    "algorithm_failures": "configuration, algorithm and tf32",
    "stages": "stage",
    "stage_failures": "stage",
}
