"""A list of convolutions and stages to measure, and its file, for a machine without TensorFlow."""

from __future__ import annotations

import dataclasses

from tf_interop.convolution import (
    ConvolutionConfiguration,
    has_known_shapes,
)
from tf_interop.errors import ProfileError
from tf_interop.profile.check import check_configuration, check_stage
from tf_interop.profile.entries import Count, PositiveCount
from tf_interop.stage import Stage
from tf_interop.versioned_file import VersionedFormat


@dataclasses.dataclass(frozen=True, slots=True)
class ListedConvolution:
    """One distinct convolution.

    Attributes:
        configuration: what it computes; all its shapes are known.
        count: how often it occurs in the models of the list.
        origins: the models that it occurs in, such as `GoogLeNet, batch 8, inference`.
    """

    configuration: ConvolutionConfiguration
    count: PositiveCount = 1
    origins: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ListedStage:
    """Convolutions to be measured at the same time.

    Attributes:
        stage: a step's operation is its convolution's place in the list. Where its algorithm is
            None, it is chosen from what was measured of the convolution alone.
        origins: where the stage comes from.
        images: of each step the first one that reads the same image. Empty: each reads its own,
            but for those of a merged lane.
    """

    stage: Stage[Count]
    origins: tuple[str, ...] = ()
    images: tuple[Count, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigurationList:
    """What a file of configurations holds.

    Attributes:
        convolutions: each distinct configuration once.
        stages: may be empty.
        format: always `tf_interop.configurations`.
        version: version of the format.
        made_with: versions of the software that made it, such as {"tensorflow": "2.21.0"}.
    """

    convolutions: tuple[ListedConvolution, ...]
    stages: tuple[ListedStage, ...] = ()
    format: str = "tf_interop.configurations"
    version: int = 1
    made_with: dict[str, str] = dataclasses.field(default_factory=dict)


def _check_list(configurations: ConfigurationList) -> None:
    """Each configuration is there once, with all shapes known, and stages are of these."""
    places: dict[ConvolutionConfiguration, int] = {}
    for index, listed in enumerate(configurations.convolutions):
        place = f"$.convolutions[{index}].configuration"
        if not has_known_shapes(listed.configuration):
            raise ValueError(f"Expected known shapes and groups, got unknown ones at `{place}`")
        check_configuration(listed.configuration, place)
        first = places.setdefault(listed.configuration, index)
        if first != index:
            raise ValueError(
                f"Expected each configuration once, got that of `$.convolutions[{first}]` again at "
                f"`{place}`"
            )
    known = [each.configuration for each in configurations.convolutions]
    for index, each in enumerate(configurations.stages):
        place = f"$.stages[{index}].stage"
        wrong = [number for number in each.stage.operations if number >= len(known)]
        if wrong:
            raise ValueError(
                f"Expected the place of one of {len(known)} convolutions, got {wrong[0]} at "
                f"`{place}`"
            )
        check_stage(each.stage.map(known.__getitem__), place)


LIST_FILE = VersionedFormat(
    ConfigurationList,
    noun="list of configurations",
    check=_check_list,
    error=ProfileError,
    remedy="Correct the file, or make it again with tf-interop profile --export-configurations.",
)
load_configurations = LIST_FILE.load
save_configurations = LIST_FILE.save
