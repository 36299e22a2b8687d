"""A list of convolutions and stages to be measured, apart from any graph: no TensorFlow needed."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable

from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.profile.entries import Count, PositiveCount
from tf_interop.stage import Stage

LIST_FORMAT = "tf_interop.configurations"
LIST_VERSION = 1


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
    """

    stage: Stage[Count]
    origins: tuple[str, ...] = ()


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
    format: str = LIST_FORMAT
    version: int = LIST_VERSION
    made_with: dict[str, str] = dataclasses.field(default_factory=dict)


def merge_lists(lists: Iterable[ConfigurationList]) -> ConfigurationList:
    """Puts lists into one, in which each configuration and each stage is once.

    Counts are added up, origins are joined. What was listed first stays first.
    """
    convolutions: dict[ConvolutionConfiguration, ListedConvolution] = {}
    origins: dict[Stage[int], tuple[str, ...]] = {}
    made_with: dict[str, str] = {}
    for each in lists:
        made_with.update(each.made_with)
        for listed in each.convolutions:
            before = convolutions.get(listed.configuration)
            convolutions[listed.configuration] = (
                listed
                if before is None
                else dataclasses.replace(
                    listed,
                    count=before.count + listed.count,
                    origins=_joined(before.origins, listed.origins),
                )
            )
        place_of = {configuration: place for place, configuration in enumerate(convolutions)}
        new_places = [place_of[listed.configuration] for listed in each.convolutions]
        for stage in each.stages:
            moved = stage.stage.map(new_places.__getitem__)
            origins[moved] = _joined(origins.get(moved, ()), stage.origins)
    return ConfigurationList(
        tuple(convolutions.values()),
        tuple(itertools.starmap(ListedStage, origins.items())),
        made_with=made_with,
    )


def _joined(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
