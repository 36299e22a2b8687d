"""What a profile's entries may say, beyond their types and bounds."""

from __future__ import annotations

from tf_interop.algorithm import check_algorithm
from tf_interop.convolution import (
    DTYPE_BYTES,
    SPATIAL_AXES,
    ConvolutionConfiguration,
    can_merge,
)
from tf_interop.profile.entries import (
    AlgorithmFailure,
    AlgorithmMeasurement,
    Entry,
    StageMeasurement,
)
from tf_interop.stage import Stage


def check_entry(entry: Entry, place: str) -> None:
    """Checks one entry.

    Args:
        entry: what a profile is to hold.
        place: where it is, for messages.

    Raises:
        ValueError: something is not legal; the message names the place.
    """
    if isinstance(entry, (AlgorithmMeasurement, AlgorithmFailure)):
        check_configuration(entry.configuration, f"{place}.configuration")
        _check_algorithm(entry.algorithm, entry.configuration, f"{place}.algorithm")
        return
    check_stage(entry.stage, f"{place}.stage")
    if not isinstance(entry, StageMeasurement):
        return
    operations = entry.stage.operations
    for field, values, expected in (
        ("sequential_algorithms", entry.sequential_algorithms, len(operations)),
        ("granted_sm_counts", entry.granted_sm_counts, len(entry.stage.lanes)),
    ):
        if len(values) not in (0, expected):
            raise ValueError(
                f"Expected none or {expected} values, got {len(values)} at `{place}.{field}`"
            )
    for index, algorithm in enumerate(entry.sequential_algorithms):
        at = f"{place}.sequential_algorithms[{index}]"
        _check_algorithm(algorithm, operations[index], at)


def check_stage(stage: Stage[ConvolutionConfiguration], place: str) -> None:
    """Checks lanes, configurations and algorithms of a stage.

    Raises:
        ValueError: something is not legal; the message names the place.
    """
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
                "Expected convolutions in a merged lane that differ in filters and output channels "
                f"alone, got others at `{place}.lanes[{number}]`"
            )


def check_configuration(configuration: ConvolutionConfiguration, place: str) -> None:
    """Checks that dtype and layout are those of a stage, and that all shapes are known.

    Raises:
        ValueError: they are others, a dimension is not known or not positive, or the fields do not
            agree on how many there are; the message names the place.
    """
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
                f"Expected {length} dimensions, as the strides have it, got {value} at "
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
