"""The windows of a convolution or a pooling, along the height and width of its image."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorflow.core.framework import node_def_pb2

from tf_interop.convolution import SPATIAL_AXES
from tf_interop.graph.ops import attribute_of
from tf_interop.parallel.node_maker import own_attributes
from tf_interop.parallel.regions import Interval


@dataclasses.dataclass(frozen=True, slots=True)
class Stretch:
    """The work of a part along one axis.

    Attributes:
        image: its interval of the image.
        output: its interval of the output.
        before: padding before `image`.
        after: padding after `image`.
        unreached: values of `image` before its first window, if strides are longer than windows.
        taps: number of taps in `image`. The counts of all parts add up to that of the whole.
        is_whole: whether it spans all of the image and all of the output.
    """

    image: Interval
    output: Interval
    before: int
    after: int
    unreached: int
    taps: int
    is_whole: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Windows:
    """The windows along one axis: tap t of output o is at o * stride + t * dilation - before.

    Attributes:
        size: size of the image.
        count: number of windows, which is the size of the output.
        taps: number of taps of a window.
        stride: distance from one window to the next.
        dilation: distance from one tap to the next.
        before: padding before the image.
    """

    size: int
    count: int
    taps: int
    stride: int = 1
    dilation: int = 1
    before: int = 0

    @property
    def reach_image(self) -> bool:
        """Whether every window reaches into the image."""
        return self._span((0, 1))[1] > 0 and self._span((self.count - 1, self.count))[0] < self.size

    def reading(self, output: Interval) -> Stretch:
        """The stretch that computes an interval of the output.

        The last outputs read up to the end of the image, even if no window reaches it.
        """
        first, last = self._span(output)
        image = max(first, 0), self.size if output[1] == self.count else min(last, self.size)
        taps = (output[1] - output[0]) * self.taps
        return self._stretch(image, output, taps)

    def reaching(self, image: Interval) -> Stretch | None:
        """The stretch of the windows that reach an interval of the image; None if none does."""
        reach = (self.taps - 1) * self.dilation
        first = max(-((reach - self.before - image[0]) // self.stride), 0)
        last = min((image[1] - 1 + self.before) // self.stride + 1, self.count)
        return self._stretch(image, (first, last), self._taps_in(image)) if first < last else None

    def _stretch(self, image: Interval, output: Interval, taps: int) -> Stretch:
        first, last = self._span(output)
        return Stretch(
            image,
            output,
            before=max(image[0] - first, 0),
            after=max(last - image[1], 0),
            unreached=max(first - image[0], 0),
            taps=taps,
            is_whole=image == (0, self.size) and output == (0, self.count),
        )

    def _span(self, output: Interval) -> Interval:
        """The interval from the first tap to the last, in coordinates of the image."""
        begin, end = (place * self.stride - self.before for place in (output[0], output[1] - 1))
        return begin, end + (self.taps - 1) * self.dilation + 1

    def _taps_in(self, image: Interval) -> int:
        """The number of taps in an interval of the image. Taps in padding count at its border."""
        firsts = np.arange(self.count) * self.stride - self.before
        places = np.add.outer(firsts, np.arange(self.taps) * self.dilation)
        places = places.clip(0, self.size - 1)
        return int(((image[0] <= places) & (places < image[1])).sum())

    def taps_per_tap_in_image(self, outputs: Interval) -> npt.NDArray[np.float64]:
        """The taps of a window divided by its taps in the image, for each output."""
        firsts = np.arange(*outputs) * self.stride - self.before
        counts = np.minimum(firsts + self.taps, self.size) - np.maximum(firsts, 0)
        return np.asarray(self.taps / counts)


def windows_of(
    node: node_def_pb2.NodeDef, shape: Sequence[int], taps: Sequence[int], layout: str
) -> tuple[Windows, Windows] | None:
    """The windows of a convolution or a pooling, along height and width.

    Args:
        node: has `strides`, `padding` and maybe `dilations` and `explicit_paddings`.
        shape: shape of the image, in `layout`.
        taps: the height and width of a window.
        layout: `NHWC` or `NCHW`.

    Returns:
        None if a window lies entirely in the padding.
    """
    strides = attribute_of(node, "strides").list.i
    dilations = attribute_of(node, "dilations").list.i or [1] * 4
    explicit = attribute_of(node, "explicit_paddings").list.i
    padding = attribute_of(node, "padding").s.decode()

    def along(axis: int, taps: int) -> Windows:
        size, stride, dilation = shape[axis], strides[axis], dilations[axis]
        reach = (taps - 1) * dilation + 1
        if padding == "SAME":
            count = -(-size // stride)
            before = max((count - 1) * stride + reach - size, 0) // 2
        else:
            before, after = explicit[2 * axis : 2 * axis + 2] if padding == "EXPLICIT" else (0, 0)
            count = (before + size + after - reach) // stride + 1
        return Windows(size, count, taps, stride, dilation, before)

    height, width = map(along, SPATIAL_AXES[layout], taps)
    return (height, width) if height.reach_image and width.reach_image else None


def attributes_of_part(node: node_def_pb2.NodeDef, stretches: Sequence[Stretch]) -> dict[str, Any]:
    """The attributes of a part's node: without padding, unless the part is whole."""
    attributes = own_attributes(node)
    if all(each.is_whole for each in stretches):
        return attributes
    changes: dict[str, Any] = {"padding": "VALID", "explicit_paddings": []}
    return attributes | {name: changes[name] for name in changes.keys() & attributes.keys()}


def paddings_of(stretches: Sequence[Stretch]) -> list[Interval]:
    """The padding before and after a part's image, without the padding by its own node."""
    if all(each.is_whole for each in stretches):
        return [(0, 0) for _ in stretches]
    return [(each.before, each.after) for each in stretches]
