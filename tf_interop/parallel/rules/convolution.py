"""How convolutions are divided: forward, and the gradients of image and filter.

The image is [N, H, W, C], the filter [R, S, C, K], the output [N, H', W', K]. `channel` divides C
and `filter` divides K, whichever of the three is computed; what is divided and no axis of the
result makes addends. `height` and `width` divide the result's own, for the gradient of the filter
those of the output.

The groups of a grouped convolution, and the channels of a depthwise one, are divided by `filter`
and `channel` together, like the channels of what follows it: there is nothing to add.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from tf_interop.parallel.degrees import Axis, Degrees
from tf_interop.parallel.node_maker import NodeMaker
from tf_interop.parallel.op_parts import Operation, OpPart, Rule, divide
from tf_interop.parallel.regions import Box, Interval, sizes, whole
from tf_interop.parallel.rules.windows import (
    Stretch,
    Windows,
    attributes_of_part,
    paddings_of,
    windows_of,
)

_TENSORS = {
    "Conv2D": ("image", "filter", "output"),
    "Conv2DBackpropInput": ("sizes", "filter", "output", "image"),
    "Conv2DBackpropFilter": ("image", "sizes", "output", "filter"),
    "DepthwiseConv2dNative": ("image", "filter", "output"),
    "DepthwiseConv2dNativeBackpropInput": ("sizes", "filter", "output", "image"),
    "DepthwiseConv2dNativeBackpropFilter": ("image", "sizes", "output", "filter"),
}
"""What each op reads, in order, and what it gives. Gradients count as what they are of."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Convolution:
    """A convolution, whichever of its tensors is computed.

    Attributes:
        node: the node.
        layout: of image and output, `NHWC` or `NCHW`.
        image: the sizes of the image by letter of the layout.
        filter: the filter's shape.
        output: the sizes of the output, like those of the image.
        windows: along height and width.
    """

    node: node_def_pb2.NodeDef
    layout: str
    image: Mapping[str, int]
    filter: tuple[int, ...]
    output: Mapping[str, int]
    windows: tuple[Windows, Windows]

    @property
    def tensors(self) -> tuple[str, ...]:
        """What the node reads, and what it gives."""
        return _TENSORS[self.node.op]

    @property
    def gives_image(self) -> bool:
        """Whether it is the gradient of the image."""
        return self.tensors[-1] == "image"

    @property
    def is_depthwise(self) -> bool:
        """Whether the filter is [R, S, C, M], for M outputs of each channel."""
        return str(self.node.op).startswith("Depthwise")

    @property
    def groups(self) -> int:
        """How many groups the channels are in."""
        return self.image["C"] // (1 if self.is_depthwise else self.filter[2])

    @property
    def extents(self) -> dict[Axis, int]:
        """The size of each axis of its work; of several groups `filter` divides the groups."""
        divided = self.image if self.gives_image else self.output
        filters, channels = self.output["C"], self.image["C"]
        if self.groups > 1:
            filters, channels = self.groups, 1
        sizes = (self.image["N"], divided["H"], divided["W"], filters, channels)
        return dict(zip(Axis, sizes, strict=True))

    def arranged(
        self, samples: Interval, spatial: Iterable[Interval], channels: Interval
    ) -> tuple[Interval, ...]:
        """Intervals in the order of the layout."""
        height, width = spatial
        by_letter = {"N": samples, "H": height, "W": width, "C": channels}
        return tuple(by_letter[letter] for letter in self.layout)


@dataclasses.dataclass(frozen=True, slots=True)
class _Share:
    """What one part works on.

    Attributes:
        boxes: of image, filter and output; where no window reaches into its box of the image, of
            that alone.
        along: height and width; nothing where no window reaches.
        multiply_adds: what it takes.
    """

    boxes: Mapping[str, Box]
    along: tuple[Stretch, ...] = ()
    multiply_adds: int = 0


def extents_of_convolution(operation: Operation) -> Mapping[Axis, int]:
    """The size of each axis of a convolution's work; nothing where it cannot be divided."""
    convolution = _convolution(operation)
    return {} if convolution is None else convolution.extents


def _divide_convolution(operation: Operation, degrees: Degrees) -> list[OpPart] | None:
    """The rule of all convolutions."""
    convolution = _convolution(operation)
    if convolution is None:
        return None
    if convolution.groups > 1:
        degrees = degrees.with_channels_together
    *read, given = convolution.tensors
    parts = []
    for place, at in divide(convolution.extents, degrees).items():
        share = _share(convolution, at)
        reads, gives = tuple(map(share.boxes.get, read)), (share.boxes[given],)
        emit = functools.partial(_emit, convolution, share)
        parts.append(OpPart(place, reads, gives, emit, share.multiply_adds))
    return parts


# A search asks for one operation under all configurations in a row.
@functools.lru_cache(maxsize=16)
def _convolution(operation: Operation) -> _Convolution | None:
    """What a node computes; None where it has nothing to compute, or not from an image."""
    node, layout = operation.node, operation.layout
    shapes = operation.input_shapes + operation.output_shapes
    shape_of = dict(zip(_TENSORS[node.op], shapes, strict=True))
    if len(shape_of["image"]) != 4 or any(0 in shape for shape in shapes):
        return None
    image, output = (
        dict(zip(layout, shape_of[tensor], strict=True)) for tensor in ("image", "output")
    )
    windows = windows_of(node, shape_of["image"], shape_of["filter"][:2], layout)
    return windows and _Convolution(node, layout, image, shape_of["filter"], output, windows)


def _share(convolution: _Convolution, at: Mapping[Axis, Interval]) -> _Share:
    """What the part with these intervals works on."""
    samples = at[Axis.SAMPLE]
    channels, filters, of_filter = _channels(convolution, at)
    reach = Windows.reaching if convolution.gives_image else Windows.reading
    height = reach(convolution.windows[0], at[Axis.HEIGHT])
    width = reach(convolution.windows[1], at[Axis.WIDTH])
    if height is None or width is None:
        box = convolution.arranged(samples, (at[Axis.HEIGHT], at[Axis.WIDTH]), channels)
        return _Share({"image": box})
    boxes = {
        "image": convolution.arranged(samples, (height.image, width.image), channels),
        "filter": of_filter,
        "output": convolution.arranged(samples, (height.output, width.output), filters),
    }
    per_tap = math.prod(sizes((samples, *of_filter[2:])))
    return _Share(boxes, (height, width), height.taps * width.taps * per_tap)


def _channels(
    convolution: _Convolution, at: Mapping[Axis, Interval]
) -> tuple[Interval, Interval, Box]:
    """The channels of image and of output that belong together, and their box of the filter."""
    channels, filters = at[Axis.CHANNEL], at[Axis.FILTER]
    *taps, of_group, of_output = whole(convolution.filter)
    groups = convolution.groups
    if groups == 1:
        return channels, filters, (*taps, channels, filters)
    begin, end = filters
    channels, filters = (
        (begin * size // groups, end * size // groups)
        for size in (convolution.image["C"], convolution.output["C"])
    )
    if convolution.is_depthwise:
        return channels, filters, (*taps, channels, of_output)
    return channels, filters, (*taps, of_group, filters)


def _emit(
    convolution: _Convolution, share: _Share, make: NodeMaker, inputs: Sequence[str]
) -> Sequence[str]:
    """Makes the nodes of a part: a convolution without padding, of an image that is padded.

    Unless the part has the padding of the whole: then the convolution pads as it did. `EXPLICIT`
    padding would need fewer nodes, but oneDNN has no kernels of gradients for it, and on GPUs
    TensorFlow pads an image itself where its two sides differ, as those of most parts do.
    """
    node, result = convolution.node, sizes(share.boxes[convolution.tensors[-1]])
    dtype = tf.as_dtype(node.attr["T"].type)
    if not share.along:
        return [make.fill(result, dtype)]
    attributes = attributes_of_part(node, share.along)
    none = (0, 0)
    paddings = convolution.arranged(none, paddings_of(share.along), none)
    operands = list(inputs)
    if not convolution.gives_image:
        operands[0] = make.pad(operands[0], paddings, dtype)
        if convolution.tensors[-1] == "filter":
            operands[1] = make.constant(result)
        return [make(node.op, *operands, **attributes)]
    unreached = convolution.arranged(none, [(each.unreached, 0) for each in share.along], none)
    reached = [size - before for size, (before, _) in zip(result, unreached, strict=True)]
    operands[0] = make.constant(np.add(reached, np.sum(paddings, axis=1)))
    gradient = make(node.op, *operands, **attributes)
    if np.any(paddings):
        gradient = make.slice(gradient, [before for before, _ in paddings], reached, dtype)
    return [make.pad(gradient, unreached, dtype)]


RULES: dict[str, Rule] = dict.fromkeys(_TENSORS, _divide_convolution)
