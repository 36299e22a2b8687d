"""Rules for pooling: by samples and channels, and by height and width with halos.

A part pads its own image where its windows lie in padding, and then pools without padding. A
maximum pads with the lowest number, which it ignores. A mean that counts zeros of the padding is
too small by a factor that depends only on the window's place, so the part multiplies by that
factor.

A part of a gradient takes all windows that reach its box, computes the gradient of everything they
read, and cuts out its box. So a tie goes to the same value of a window as in the whole.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_interop.convolution import SPATIAL_AXES
from tf_interop.graph.ops import attribute_of
from tf_interop.parallel.node_maker import NodeMaker
from tf_interop.parallel.op_parts import Operation, OpPart, Rule, by_result
from tf_interop.parallel.regions import Box, Interval, overlap, relative, sizes
from tf_interop.parallel.rules.windows import (
    Stretch,
    Windows,
    attributes_of_part,
    paddings_of,
    windows_of,
)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Pooling:
    """A pooling or the gradient of one, with its windows along height and width."""

    operation: Operation
    windows: tuple[Windows, Windows]

    @property
    def is_maximum(self) -> bool:
        """Whether it pools maxima and not means."""
        return self.operation.node.op in ("MaxPool", "MaxPoolGrad")

    @property
    def dtype(self) -> tf.DType:
        """The dtype of its tensors."""
        return self.operation.dtype

    def along(self, box: Box) -> list[Interval]:
        """The height and the width of a box."""
        return [box[axis] for axis in SPATIAL_AXES[self.operation.layout]]

    def with_along(self, box: Box, along: Sequence[Interval]) -> Box:
        """The box with this height and width."""
        others = dict(zip(SPATIAL_AXES[self.operation.layout], along, strict=True))
        return tuple(others.get(axis, interval) for axis, interval in enumerate(box))

    def reading(self, outputs: Sequence[Interval]) -> list[Stretch]:
        """The stretches that compute intervals of the output."""
        pairs = zip(self.windows, outputs, strict=True)
        return [windows.reading(interval) for windows, interval in pairs]

    def margins(self, stretches: Sequence[Stretch]) -> tuple[Interval, ...]:
        """The padding of each axis before and after a part's image."""
        return self.with_along(((0, 0),) * 4, paddings_of(stretches))


# A search divides one operation under all configurations in a row.
@functools.lru_cache(maxsize=16)
def _pooling(operation: Operation, image: tuple[int, ...]) -> _Pooling | None:
    """The pooling of a node; None if it is empty, or pools more than height and width."""
    node = operation.node
    if len(image) != 4 or 0 in image:
        return None
    along = SPATIAL_AXES[operation.layout]
    ksize, strides = (attribute_of(node, name).list.i for name in ("ksize", "strides"))
    if any(ksize[axis] != 1 or strides[axis] != 1 for axis in range(4) if axis not in along):
        return None
    windows = windows_of(node, image, [ksize[axis] for axis in along], operation.layout)
    return None if windows is None else _Pooling(operation, windows)


def _part_of_output(operation: Operation, box: Box) -> OpPart | None:
    pooling = _pooling(operation, operation.input_shapes[0])
    if pooling is None:
        return None
    stretches = pooling.reading(pooling.along(box))
    read = pooling.with_along(box, [each.image for each in stretches])
    return OpPart((read,), (box,), functools.partial(_pool, pooling, stretches))


def _pool(
    pooling: _Pooling, stretches: Sequence[Stretch], maker: NodeMaker, inputs: Sequence[str]
) -> Sequence[str]:
    node = pooling.operation.node
    image = _padded(pooling, stretches, maker, inputs[0])
    output = maker(node.op, image, **attributes_of_part(node, stretches))
    return [output if pooling.is_maximum else _corrected(pooling, stretches, maker, output)]


def _padded(pooling: _Pooling, stretches: Sequence[Stretch], maker: NodeMaker, image: str) -> str:
    margins = pooling.margins(stretches)
    if pooling.is_maximum and np.any(margins):
        # A GPU's maximum of nothing but minus infinity is minus infinity.
        is_floating = pooling.dtype.is_floating
        lowest = maker.constant(-np.inf if is_floating else pooling.dtype.min, pooling.dtype)
        return maker.pad(image, margins, pooling.dtype, lowest)
    return maker.pad(image, margins, pooling.dtype)


def _corrected(
    pooling: _Pooling, stretches: Sequence[Stretch], maker: NodeMaker, output: str
) -> str:
    """Multiplies means by the number of taps over the number of taps in the image."""
    if all(each.is_whole for each in stretches):
        return output
    factors = np.multiply.outer(
        *(
            windows.taps_per_tap_in_image(stretch.output)
            for windows, stretch in zip(pooling.windows, stretches, strict=True)
        )
    )
    if (factors == 1).all():
        return output
    shape = pooling.with_along(((0, 1),) * 4, [(0, size) for size in factors.shape])
    factor = maker.constant(factors.reshape(sizes(shape)), pooling.dtype)
    return maker("Mul", output, factor, T=pooling.dtype)


def _part_of_gradient(operation: Operation, box: Box) -> OpPart | None:
    pooling = _pooling(operation, operation.output_shapes[0])
    if pooling is None:
        return None
    outputs = []
    for windows, interval in zip(pooling.windows, pooling.along(box), strict=True):
        reaching = windows.reaching(interval)
        if reaching is None:
            unread = (None,) * len(operation.input_shapes)
            return OpPart(unread, (box,), lambda maker, _: [maker.fill(sizes(box), pooling.dtype)])
        outputs.append(reaching.output)
    stretches = pooling.reading(outputs)
    output = pooling.with_along(box, outputs)
    hull = pooling.with_along(box, [each.image for each in stretches])
    reads = (hull, output, output) if pooling.is_maximum else (None, output)
    return OpPart(reads, (box,), functools.partial(_gradient, pooling, stretches, hull, box))


def _gradient(
    pooling: _Pooling,
    stretches: Sequence[Stretch],
    hull: Box,
    box: Box,
    maker: NodeMaker,
    inputs: Sequence[str],
) -> Sequence[str]:
    """Makes the gradient of `box` from that of `hull`, the box that all `stretches` read."""
    node, dtype, margins = pooling.operation.node, pooling.dtype, pooling.margins(stretches)
    if pooling.is_maximum:
        operands = [_padded(pooling, stretches, maker, inputs[0]), *inputs[1:]]
    else:
        shape = maker.constant(np.add(sizes(hull), np.sum(margins, axis=1)))
        operands = [shape, _corrected(pooling, stretches, maker, inputs[1])]
    gradient = maker(node.op, *operands, **attributes_of_part(node, stretches))

    shared = overlap(hull, box)
    assert shared is not None
    if shared != hull or np.any(margins):
        at = relative(shared, hull)
        begins = [begin + before for (begin, _), (before, _) in zip(at, margins, strict=True)]
        gradient = maker.slice(gradient, begins, sizes(shared), dtype)
    rest = [(a - c, d - b) for (a, b), (c, d) in zip(shared, box, strict=True)]
    return [maker.pad(gradient, rest, dtype)]


RULES: dict[str, Rule] = {
    **dict.fromkeys(("MaxPool", "AvgPool"), by_result(_part_of_output)),
    **dict.fromkeys(("MaxPoolGrad", "AvgPoolGrad"), by_result(_part_of_gradient)),
}
