"""Files of configurations: versioned JSON, what a machine without TensorFlow is to measure."""

from __future__ import annotations

from typing import Any

from tf_interop.algorithm import check_algorithm
from tf_interop.convolution import ConvolutionConfiguration, can_merge, has_known_shapes
from tf_interop.errors import ProfileError
from tf_interop.profile.worklist import (
    LIST_FORMAT,
    LIST_VERSION,
    ConfigurationList,
    ListedStage,
)
from tf_interop.versioned_file import (
    PathLike,
    VersionedFormat,
    load_versioned,
    save_versioned,
    versioned_schema,
)


def load_configurations(path: PathLike) -> ConfigurationList:
    """Reads a list of configurations.

    Legal is a file that holds each configuration once, with all shapes known, and stages of these,
    whose lanes are numbered 0, 1, 2, … in the order in which they appear.

    Raises:
        ProfileError: there is no such file, it is not whole, of another format or version, or not
            legal. Says where in the file, what was expected and what to do.
    """
    return load_versioned(path, _LIST_FILE)


def save_configurations(configurations: ConfigurationList, path: PathLike) -> None:
    """Writes a list of configurations, atomically; equal lists give equal bytes.

    Raises:
        ProfileError: the list is not legal (see `load_configurations`), or the file cannot be
            written.
    """
    save_versioned(configurations, path, _LIST_FILE)


def configurations_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of lists of configurations.

    It states types, fields and bounds. Shapes, lanes and places in the list are beyond it.
    """
    return versioned_schema(_LIST_FILE)


def _check_list(configurations: ConfigurationList) -> None:
    places: dict[ConvolutionConfiguration, int] = {}
    for index, listed in enumerate(configurations.convolutions):
        place = f"$.convolutions[{index}].configuration"
        if not has_known_shapes(listed.configuration):
            raise ValueError(f"Expected known shapes and groups, got unknown ones at `{place}`")
        first = places.setdefault(listed.configuration, index)
        if first != index:
            raise ValueError(
                f"Expected each configuration once, got that of `$.convolutions[{first}]` again at "
                f"`{place}`"
            )
    for index, stage in enumerate(configurations.stages):
        _check_stage(stage, configurations, f"$.stages[{index}]")


def _check_stage(stage: ListedStage, configurations: ConfigurationList, place: str) -> None:
    count = len(configurations.convolutions)
    for index, convolution in enumerate(stage.convolutions):
        if convolution >= count:
            raise ValueError(
                f"Expected the place of one of {count} convolutions, got {convolution} at "
                f"`{place}.convolutions[{index}]`"
            )
    if len(stage.lanes) != len(stage.convolutions):
        raise ValueError(
            f"Expected {len(stage.convolutions)} lanes, one for each convolution, got "
            f"{len(stage.lanes)} at `{place}.lanes`"
        )
    lane_count = 0
    for index, lane in enumerate(stage.lanes):
        if lane > lane_count:
            raise ValueError(
                f"Expected a lane up to {lane_count}, got {lane} at `{place}.lanes[{index}]`"
            )
        lane_count = max(lane_count, lane + 1)
    for name, values, expected in (
        ("algorithms", stage.algorithms, len(stage.convolutions)),
        ("sm_counts", stage.sm_counts, lane_count),
        ("priorities", stage.priorities, lane_count),
        ("merged", stage.merged, lane_count),
    ):
        if len(values) not in (0, expected):
            raise ValueError(
                f"Expected none or {expected} values, got {len(values)} at `{place}.{name}`"
            )
    for lane, is_merged in enumerate(stage.merged):
        merged = [
            configurations.convolutions[convolution].configuration
            for convolution, of in zip(stage.convolutions, stage.lanes, strict=True)
            if of == lane
        ]
        if is_merged and not can_merge(merged):
            raise ValueError(
                "Expected convolutions in a merged lane that differ in filters and output channels "
                f"alone, two or more, got {len(merged)} others at `{place}.merged[{lane}]`"
            )
    for index, algorithm in enumerate(stage.algorithms):
        if algorithm is not None:
            kind = configurations.convolutions[stage.convolutions[index]].configuration.kind
            try:
                check_algorithm(algorithm, kind)
            except ValueError as error:
                raise ValueError(f"{error} at `{place}.algorithms[{index}]`") from error


_LIST_FILE = VersionedFormat(
    noun="list of configurations",
    name=LIST_FORMAT,
    version=LIST_VERSION,
    value_type=ConfigurationList,
    check=_check_list,
    error=ProfileError,
    remedy="Correct the file, or make it anew with tf-interop profile --export-configurations.",
)
