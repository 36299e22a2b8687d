"""A list of convolutions and stages to be measured, apart from any graph: no TensorFlow needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Annotated

import msgspec

from tf_interop.convolution import ConvolutionConfiguration
from tf_interop.profile.entries import Count, PositiveCount

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
        convolutions: their places in the list, in launch order; a repeated one repeated.
        lanes: the lane of each, numbered 0, 1, 2, … in the order in which they appear.
        algorithms: the algorithm of each where a plan pins it, else empty: those are chosen from
            what was measured of each convolution alone.
        sm_counts: the SMs that each lane is to have for itself; empty where lanes share all.
        priorities: the priority of each lane's stream; empty where all are 0.
        origins: where the stage comes from.
        merged: of each lane whether its convolutions are to run as one wider convolution; empty
            where none are.
    """

    convolutions: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
    lanes: tuple[Count, ...]
    algorithms: tuple[str | None, ...] = ()
    sm_counts: tuple[Count, ...] = ()
    priorities: tuple[int, ...] = ()
    origins: tuple[str, ...] = ()
    merged: tuple[bool, ...] = ()


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
    stages: dict[ListedStage, ListedStage] = {}
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
        for stage in each.stages:
            moved = dataclasses.replace(
                stage,
                convolutions=tuple(
                    place_of[each.convolutions[place].configuration] for place in stage.convolutions
                ),
            )
            key = dataclasses.replace(moved, origins=())
            if key in stages:
                origins = _joined(stages[key].origins, moved.origins)
                moved = dataclasses.replace(moved, origins=origins)
            stages[key] = moved
    return ConfigurationList(
        tuple(convolutions.values()), tuple(stages.values()), made_with=made_with
    )


def _joined(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
