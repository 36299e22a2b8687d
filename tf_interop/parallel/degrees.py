"""How a layer is divided: how many parts each axis of its work has."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections.abc import Iterator
from typing import Annotated

import msgspec

_Degree = Annotated[int, msgspec.Meta(ge=1)]


class Axis(enum.Enum):
    """An axis of the work of a layer.

    A convolution [N, H, W, C] * [R, S, C, K] -> [N, H', W', K] works on all five, where height and
    width are those of its output; a matrix product [N, C] x [C, K] on sample, channel and filter.
    """

    SAMPLE = "sample"
    HEIGHT = "height"
    WIDTH = "width"
    FILTER = "filter"
    CHANNEL = "channel"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Degrees:
    """The number of parts of each axis of a layer's work: a *configuration* in Jia et al.

    Parts are numbered with `sample` as the slowest and `channel` as the fastest axis; part i runs
    on the i-th of the layer's devices.

    Splits over `filter` are Dryden et al.'s stationary y (the image is gathered), over `channel`
    stationary x (outputs are sums of partial ones), over both stationary w.

    Attributes:
        sample: parts of the batch.
        height: parts of the height of the output.
        width: parts of its width.
        filter: parts of the output channels.
        channel: parts of the input channels, whose partial results are added up.
    """

    sample: _Degree = 1
    height: _Degree = 1
    width: _Degree = 1
    filter: _Degree = 1
    channel: _Degree = 1

    @property
    def count(self) -> int:
        """The number of parts."""
        return math.prod(self.by_axis.values())

    @property
    def by_axis(self) -> dict[Axis, int]:
        """The same by axis, slowest first."""
        return {axis: getattr(self, axis.value) for axis in Axis}

    @property
    def places(self) -> Iterator[dict[Axis, int]]:
        """The coordinates of each part, in order."""
        for place in itertools.product(*map(range, self.by_axis.values())):
            yield dict(zip(Axis, place, strict=True))

    @property
    def with_channels_together(self) -> Degrees:
        """The same with all parts of channels along `filter`."""
        return dataclasses.replace(self, filter=self.filter * self.channel, channel=1)

    def __str__(self) -> str:
        """Such as `sample 2, filter 2`; `whole` where nothing is divided."""
        divided = [f"{axis.value} {count}" for axis, count in self.by_axis.items() if count > 1]
        return ", ".join(divided) or "whole"
