"""Rules for convolutions and matrix products, forward and gradients, and for their biases.

The image is [N, H, W, C], the filter [R, S, C, K], the output [N, H', W', K]. `channel` divides C
and `filter` divides K, whichever of the three is computed. Dividing an axis that the result lacks
makes addends. `height` and `width` divide the result, or the output for the gradient of the filter.

`filter` and `channel` together divide the groups of a grouped convolution and the channels of a
depthwise one, as they divide the channels of the ops that follow: nothing is added up.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from tf_interop.convolution import ConvolutionKind
from tf_interop.graph.ops import attribute_of
from tf_interop.parallel.node_maker import NodeMaker
from tf_interop.parallel.op_parts import (
    Extents,
    Operation,
    OpPart,
    Place,
    Rule,
    by_operand,
    copied,
)
from tf_interop.parallel.regions import Box, Interval, sizes, volume, whole
from tf_interop.parallel.rules.windows import (
    Stretch,
    Windows,
    attributes_of_part,
    paddings_of,
    windows_of,
)
from tf_interop.parallel.types import Axis

_TENSORS = {
    "Conv2D": ("image", "filter", "output"),
    "Conv2DBackpropInput": ("sizes", "filter", "output", "image"),
    "Conv2DBackpropFilter": ("image", "sizes", "output", "filter"),
    "DepthwiseConv2dNative": ("image", "filter", "output"),
    "DepthwiseConv2dNativeBackpropInput": ("sizes", "filter", "output", "image"),
    "DepthwiseConv2dNativeBackpropFilter": ("image", "sizes", "output", "filter"),
}
"""The inputs of each op in order, then its output. A gradient is named after its tensor."""

_PRODUCT_AXES = {
    ConvolutionKind.FORWARD: (Axis.SAMPLE, Axis.FILTER, Axis.CHANNEL),
    ConvolutionKind.BACKWARD_INPUT: (Axis.SAMPLE, Axis.CHANNEL, Axis.FILTER),
    ConvolutionKind.BACKWARD_FILTER: (Axis.CHANNEL, Axis.FILTER, Axis.SAMPLE),
}
"""The axes of the result's rows, of its columns and of the sum, for a layer that computes
[N, C] x [C, K]. The division of a layer with a transposed input or filter is also correct, but its
parts read more than they need."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Convolution:
    """A convolution, whichever of its tensors it computes.

    Attributes:
        node: the node.
        layout: layout of image and output, `NHWC` or `NCHW`.
        image: sizes of the image by letter of the layout.
        filter: shape of the filter.
        output: sizes of the output by letter of the layout.
        windows: along height and width.
    """

    node: node_def_pb2.NodeDef
    layout: str
    image: Mapping[str, int]
    filter: tuple[int, ...]
    output: Mapping[str, int]
    windows: tuple[Windows, Windows]

    @property
    def gives_image(self) -> bool:
        """Whether it is the gradient of the image."""
        return _TENSORS[self.node.op][-1] == "image"

    @property
    def is_depthwise(self) -> bool:
        """Whether the filter is [R, S, C, M], with M outputs for each channel."""
        return str(self.node.op).startswith("Depthwise")

    @property
    def groups(self) -> int:
        """The number of groups of channels."""
        return self.image["C"] // (1 if self.is_depthwise else self.filter[2])

    @property
    def extents(self) -> dict[Axis, int]:
        """The size of each axis of its work. `filter` divides the groups if there are several."""
        divided = self.image if self.gives_image else self.output
        extents = {
            Axis.SAMPLE: self.image["N"],
            Axis.HEIGHT: divided["H"],
            Axis.WIDTH: divided["W"],
        }
        if self.groups > 1:
            return extents | {Axis.FILTER: self.groups}
        return extents | {Axis.FILTER: self.output["C"], Axis.CHANNEL: self.image["C"]}

    def arranged(
        self, samples: Interval, spatial: Iterable[Interval], channels: Interval
    ) -> tuple[Interval, ...]:
        """Intervals in the order of the layout."""
        height, width = spatial
        by_letter = {"N": samples, "H": height, "W": width, "C": channels}
        return tuple(by_letter[letter] for letter in self.layout)


@dataclasses.dataclass(frozen=True, slots=True)
class _Share:
    """The work of one part.

    Attributes:
        boxes: its boxes of image, filter and output; only of the image if no window reaches it.
        along: its stretches of height and width; empty if no window reaches it.
        multiply_adds: amount of work.
    """

    boxes: Mapping[str, Box]
    along: tuple[Stretch, ...] = ()
    multiply_adds: int = 0


def _extents_of_convolution(operation: Operation) -> Extents | None:
    convolution = _convolution(operation)
    return None if convolution is None else convolution.extents


def _part_of_convolution(operation: Operation, place: Place) -> OpPart:
    convolution = _convolution(operation)
    assert convolution is not None
    *read, given = _TENSORS[operation.node.op]
    share = _share(convolution, place)
    reads, gives = tuple(map(share.boxes.get, read)), (share.boxes[given],)
    emit = functools.partial(_emit, convolution, share)
    return OpPart(reads, gives, emit, share.multiply_adds)


# A search divides one operation under all configurations in a row.
@functools.lru_cache(maxsize=16)
def _convolution(operation: Operation) -> _Convolution | None:
    """The convolution of a node; None if it is empty, or not of an image."""
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


def _share(convolution: _Convolution, at: Place) -> _Share:
    """The work within these intervals."""
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


def _channels(convolution: _Convolution, at: Place) -> tuple[Interval, Interval, Box]:
    """Corresponding channels of image and output, and their box of the filter."""
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
    """Makes the nodes of a part: an unpadded convolution of a padded image.

    In a part that is the whole, the convolution pads as before. `EXPLICIT` padding would need fewer
    nodes, but oneDNN has no gradient kernels for it, and on GPUs TensorFlow itself pads an image
    whose two sides differ, as they do in most parts.
    """
    node, given = convolution.node, _TENSORS[convolution.node.op][-1]
    result, dtype = sizes(share.boxes[given]), tf.as_dtype(node.attr["T"].type)
    if not share.along:
        return [make.fill(result, dtype)]
    attributes = attributes_of_part(node, share.along)
    none = (0, 0)
    paddings = convolution.arranged(none, paddings_of(share.along), none)
    operands = list(inputs)
    if not convolution.gives_image:
        operands[0] = make.pad(operands[0], paddings, dtype)
        if given == "filter":
            operands[1] = make.constant(result)
        return [make(node.op, *operands, **attributes)]
    unreached = convolution.arranged(none, [(each.unreached, 0) for each in share.along], none)
    reached = [size - before for size, (before, _) in zip(result, unreached, strict=True)]
    operands[0] = make.constant(np.add(reached, np.sum(paddings, axis=1)))
    gradient = make(node.op, *operands, **attributes)
    if np.any(paddings):
        gradient = make.slice(gradient, [before for before, _ in paddings], reached, dtype)
    return [make.pad(gradient, unreached, dtype)]


def _extents_of_product(operation: Operation) -> Extents:
    [(rows, columns)] = operation.output_shapes
    inner = operation.input_shapes[0][0 if attribute_of(operation.node, "transpose_a").b else 1]
    return dict(zip(_PRODUCT_AXES[operation.role], (rows, columns, inner), strict=True))


def _part_of_product(operation: Operation, place: Place) -> OpPart:
    first_transposed, second_transposed = (
        attribute_of(operation.node, name).b for name in ("transpose_a", "transpose_b")
    )
    rows, columns, inner = (place[axis] for axis in _PRODUCT_AXES[operation.role])
    reads: tuple[Box, Box] = (
        (inner, rows) if first_transposed else (rows, inner),
        (columns, inner) if second_transposed else (inner, columns),
    )
    adds = volume((rows, columns, inner))
    return OpPart(reads, ((rows, columns),), copied(operation), adds)


def _part_with_bias(operation: Operation, box: Box) -> OpPart:
    """A part of a BiasAdd or of its gradient, whose samples and pixels are addends."""
    bias = (box[operation.layout.index("C") if len(box) == 4 else 1],)
    if operation.node.op == "BiasAdd":
        return OpPart((box, bias), (box,), copied(operation))
    return OpPart((box,), (bias,), copied(operation))


RULES: dict[str, Rule] = {
    **dict.fromkeys(_TENSORS, Rule(_extents_of_convolution, _part_of_convolution)),
    "MatMul": Rule(_extents_of_product, _part_of_product),
    **dict.fromkeys(("BiasAdd", "BiasAddGrad"), by_operand(_part_with_bias)),
}
