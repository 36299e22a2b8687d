"""A list of convolutions and stages to measure, as a file for a machine without TensorFlow."""

from __future__ import annotations

import dataclasses

from tf_interop.convolution import ConvolutionConfiguration, ConvolutionKind, has_known_shapes
from tf_interop.errors import ProfileError
from tf_interop.profile.entries import Count, PositiveCount, check_configuration, check_stage
from tf_interop.stage import Stage
from tf_interop.versioned_file import VersionedFormat


@dataclasses.dataclass(frozen=True, slots=True)
class ListedConvolution:
    """One distinct convolution, whose shapes are all known, and its count in the listed models."""

    configuration: ConvolutionConfiguration
    count: PositiveCount = 1


@dataclasses.dataclass(frozen=True, slots=True)
class ListedStage:
    """Convolutions to be measured together.

    Attributes:
        stage: its operations are positions in the list. An algorithm of None is chosen from the
            measurements of the convolution alone.
        origins: the sources of the stage.
        images: for each step, the first step that reads the same image. If empty, only the steps of
            a merged lane share an image.
    """

    stage: Stage[Count]
    origins: tuple[str, ...] = ()
    images: tuple[Count, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigurationList:
    """The content of a file of configurations.

    Attributes:
        convolutions: each configuration once.
        format: always `tf_interop.configurations`.
        version: version of the format.
        made_with: software versions, such as {"tensorflow": "2.21.0"}.
    """

    convolutions: tuple[ListedConvolution, ...]
    stages: tuple[ListedStage, ...] = ()
    format: str = "tf_interop.configurations"
    version: int = 1
    made_with: dict[str, str] = dataclasses.field(default_factory=dict)


def _check_list(configurations: ConfigurationList) -> None:
    """Checks that configurations are distinct with known shapes, and that stages are valid."""
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
                f"Expected the position of one of {len(known)} convolutions, got {wrong[0]} at "
                f"`{place}`"
            )
        stage = each.stage.map(known.__getitem__)
        check_stage(stage, place)
        _check_images(each.images, stage.operations, f"$.stages[{index}].images")


def _check_images(
    images: tuple[int, ...], operations: tuple[ConvolutionConfiguration, ...], place: str
) -> None:
    """Checks that only steps whose images are alike read one image."""
    if len(images) not in (0, len(operations)):
        raise ValueError(
            f"Expected none or {len(operations)} values, got {len(images)} at `{place}`"
        )
    for step, first in enumerate(images):
        if first != step and (first > step or not _read_alike(operations[first], operations[step])):
            raise ValueError(
                f"Expected an earlier step that reads an image like this step's, got {first} at "
                f"`{place}[{step}]`"
            )


def _read_alike(a: ConvolutionConfiguration, b: ConvolutionConfiguration) -> bool:
    return ConvolutionKind.BACKWARD_INPUT not in (a.kind, b.kind) and all(
        getattr(a, field) == getattr(b, field) for field in ("dtype", "layout", "image_shape")
    )


LIST_FILE = VersionedFormat(
    ConfigurationList,
    noun="list of configurations",
    check=_check_list,
    error=ProfileError,
    remedy="Correct the file, or make it again with tf-interop profile --export-configurations.",
)
load_configurations = LIST_FILE.load
save_configurations = LIST_FILE.save
