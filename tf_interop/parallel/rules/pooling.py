"""How pooling is divided: by samples and channels, and by height and width with halos.

A part pads what it reads as far as its windows lie in padding, and pools that without padding. A
maximum ignores padding, which is the lowest number there is. A mean over padding that is zeros is
too small by a factor that depends on where the window is alone; it is made up for.

Of a gradient a part computes that of all that the windows read that reach into its box, and cuts
its box from that. So ties go to the value of a window that they go to in the whole.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_interop.convolution import SPATIAL_AXES
from tf_interop.graph.ops import attribute_of
from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.node_maker import NodeMaker, own_attributes
from tf_interop.parallel.op_parts import Emit, Operation, OpPart, OpParts, Rule, boxes_of
from tf_interop.parallel.regions import Box, Interval, overlap, relative, sizes
from tf_interop.parallel.rules.copies import copy_of
from tf_interop.parallel.rules.windows import Stretch, Windows, windows_of


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Pooling:
    """A pooling or the gradient of one.

    Attributes:
        operation: the node.
        layout: of its tensors, `NHWC` or `NCHW`.
        windows: along height and width of the image.
    """

    operation: Operation
    layout: str
    windows: tuple[Windows, Windows]

    @property
    def is_maximum(self) -> bool:
        """Whether it is of maxima, not of means."""
        return self.operation.node.op in ("MaxPool", "MaxPoolGrad")

    @property
    def dtype(self) -> tf.DType:
        """The dtype of its tensors."""
        return tf.as_dtype(self.operation.node.attr["T"].type)

    def along(self, box: Box) -> list[Interval]:
        """The height and the width of a box."""
        return [box[axis] for axis in SPATIAL_AXES[self.layout]]

    def with_along(self, box: Box, along: Sequence[Interval]) -> Box:
        """A box of other height and width."""
        others = dict(zip(SPATIAL_AXES[self.layout], along, strict=True))
        return tuple(others.get(axis, interval) for axis, interval in enumerate(box))

    def margins(self, stretches: Sequence[Stretch]) -> tuple[Interval, ...]:
        """For each axis how much padding comes before and after what is read."""
        return self.with_along(((0, 0),) * 4, [(each.before, each.after) for each in stretches])


# A search asks for one operation under all configurations in a row.
@functools.lru_cache(maxsize=16)
def _pooling(operation: Operation, image: tuple[int, ...]) -> _Pooling | None:
    """What a node computes; None where it pools other axes than height and width."""
    node = operation.node
    layout = attribute_of(node, "data_format").s.decode()
    if layout not in SPATIAL_AXES or len(image) != 4 or 0 in image:
        return None
    ksize, strides = (attribute_of(node, name).list.i for name in ("ksize", "strides"))
    others = set(range(4)) - set(SPATIAL_AXES[layout])
    if any(ksize[axis] != 1 or strides[axis] != 1 for axis in others):
        return None
    taps = [ksize[axis] for axis in SPATIAL_AXES[layout]]
    windows = windows_of(node, image, taps, layout)
    return None if windows is None else _Pooling(operation, layout, windows)


def _divide_pooling(operation: Operation, degrees: Degrees) -> OpParts | None:
    """Divides the output."""
    pooling = _pooling(operation, operation.input_shapes[0])
    if pooling is None:
        return None
    parts = []
    for place, box in boxes_of(operation.output_shapes[0], pooling.layout, degrees).items():
        stretches = _reading(pooling, pooling.along(box))
        read = pooling.with_along(box, [each.image for each in stretches])
        is_whole = all(each.is_whole for each in stretches)
        emit = copy_of(operation) if is_whole else functools.partial(_pool, pooling, stretches)
        parts.append(OpPart(place, (read,), (box,), emit))
    return OpParts(tuple(parts), (False,))


def _reading(pooling: _Pooling, outputs: Sequence[Interval]) -> list[Stretch]:
    return [
        windows.reading(interval)
        for windows, interval in zip(pooling.windows, outputs, strict=True)
    ]


def _pool(
    pooling: _Pooling, stretches: Sequence[Stretch], maker: NodeMaker, inputs: Sequence[str]
) -> Sequence[str]:
    image = _padded_image(pooling, stretches, maker, inputs[0])
    output = maker(pooling.operation.node.op, image, **_without_padding(pooling))
    return [output if pooling.is_maximum else _corrected(pooling, stretches, maker, output)]


def _padded_image(
    pooling: _Pooling, stretches: Sequence[Stretch], maker: NodeMaker, image: str
) -> str:
    """What is read of the image, padded as far as windows lie in padding."""
    margins = pooling.margins(stretches)
    if not np.any(margins):
        return image
    value = maker.constant(pooling.dtype.min if pooling.is_maximum else 0, pooling.dtype)
    types = {"T": pooling.dtype, "Tpaddings": tf.int32}
    return maker("PadV2", image, maker.constant(margins), value, **types)


def _without_padding(pooling: _Pooling) -> dict[str, object]:
    attributes = own_attributes(pooling.operation.node) | {"padding": "VALID"}
    return attributes | ({"explicit_paddings": []} if "explicit_paddings" in attributes else {})


def _corrected(
    pooling: _Pooling, stretches: Sequence[Stretch], maker: NodeMaker, output: str
) -> str:
    """Multiplies means by the number of all taps over that of those in the image."""
    factors = [
        _taps_per_tap_in_image(windows, stretch.output)
        for windows, stretch in zip(pooling.windows, stretches, strict=True)
    ]
    product = np.multiply.outer(*factors)
    if (product == 1).all():
        return output
    shape = (1, *product.shape, 1) if pooling.layout == "NHWC" else (1, 1, *product.shape)
    factor = maker.constant(product.reshape(shape), pooling.dtype)
    return maker("Mul", output, factor, T=pooling.dtype)


def _taps_per_tap_in_image(
    windows: Windows, outputs: Interval
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """How many taps a window has, over those in the image, for each of some windows."""
    firsts = np.arange(*outputs) * windows.stride - windows.before
    counts = np.minimum(firsts + windows.taps, windows.size) - np.maximum(firsts, 0)
    return windows.taps / counts


def _divide_gradient(operation: Operation, degrees: Degrees) -> OpParts | None:
    """Divides the gradient of the image."""
    image = operation.output_shapes[0]
    pooling = _pooling(operation, image)
    if pooling is None:
        return None
    parts = tuple(
        OpPart(place, *_part_of_gradient(pooling, box))
        for place, box in boxes_of(image, pooling.layout, degrees).items()
    )
    return OpParts(parts, (False,))


def _part_of_gradient(
    pooling: _Pooling, box: Box
) -> tuple[tuple[Box | None, ...], tuple[Box], Emit]:
    """What a box of the gradient takes, the box, and how its nodes are made."""
    outputs = []
    for windows, interval in zip(pooling.windows, pooling.along(box), strict=True):
        reaching = windows.reaching(interval)
        if reaching is None:
            nothing = (None,) * len(pooling.operation.input_shapes)
            return nothing, (box,), functools.partial(_zeros, pooling, box)
        outputs.append(reaching.output)
    stretches = _reading(pooling, outputs)
    output = pooling.with_along(box, outputs)
    hull = pooling.with_along(box, [each.image for each in stretches])
    reads = (hull, output, output) if pooling.is_maximum else (None, output)
    emit = functools.partial(_gradient, pooling, stretches, hull, box)
    if hull == box and all(each.is_whole for each in stretches):
        emit = functools.partial(_gradient_of_all, pooling, box)
    return reads, (box,), emit


def _zeros(pooling: _Pooling, box: Box, maker: NodeMaker, inputs: Sequence[str]) -> Sequence[str]:
    """The gradient of what no window reaches."""
    shape, value = maker.constant(sizes(box)), maker.constant(0, pooling.dtype)
    return [maker("Fill", shape, value, T=pooling.dtype, index_type=tf.int32)]


def _gradient_of_all(
    pooling: _Pooling, box: Box, maker: NodeMaker, inputs: Sequence[str]
) -> Sequence[str]:
    """The gradient of images that are not divided along height and width."""
    operands = inputs if pooling.is_maximum else [maker.constant(sizes(box)), inputs[1]]
    node = pooling.operation.node
    return [maker(node.op, *operands, **own_attributes(node))]


def _gradient(
    pooling: _Pooling,
    stretches: Sequence[Stretch],
    hull: Box,
    box: Box,
    maker: NodeMaker,
    inputs: Sequence[str],
) -> Sequence[str]:
    """The gradient of a box of the image.

    Args:
        pooling: what is divided.
        stretches: what is read of the output, and its windows.
        hull: what these windows read.
        box: what is given.
        maker: makes nodes.
        inputs: what is read.
    """
    margins = pooling.margins(stretches)
    op, attributes = pooling.operation.node.op, _without_padding(pooling)
    if pooling.is_maximum:
        image = _padded_image(pooling, stretches, maker, inputs[0])
        gradient = maker(op, image, *inputs[1:], **attributes)
    else:
        shape = np.add(sizes(hull), np.sum(margins, axis=1))
        output = _corrected(pooling, stretches, maker, inputs[1])
        gradient = maker(op, maker.constant(shape), output, **attributes)

    shared = overlap(hull, box)
    assert shared is not None
    if shared != hull or np.any(margins):
        befores = [before for before, _ in margins]
        begins = np.add([begin for begin, _ in relative(shared, hull)], befores)
        bounds = maker.constant(begins), maker.constant(sizes(shared))
        gradient = maker("Slice", gradient, *bounds, T=pooling.dtype, Index=tf.int32)
    if shared == box:
        return [gradient]
    rest = [(a - c, d - b) for (a, b), (c, d) in zip(shared, box, strict=True)]
    return [maker("Pad", gradient, maker.constant(rest), T=pooling.dtype, Tpaddings=tf.int32)]


RULES: dict[str, Rule] = {
    "MaxPool": _divide_pooling,
    "AvgPool": _divide_pooling,
    "MaxPoolGrad": _divide_gradient,
    "AvgPoolGrad": _divide_gradient,
}
"""The rules of these ops."""
