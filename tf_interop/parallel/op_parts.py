"""What the parts of one operation read and give: the values that rules take and make.

A rule says for an op type how it is divided (`rules/`). Costs and the rewriting follow from what it
says: neither knows an op type.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tensorflow.core.framework import node_def_pb2

from tf_interop.convolution import ConvolutionKind
from tf_interop.parallel.degrees import Axis, Degrees
from tf_interop.parallel.node_maker import NodeMaker
from tf_interop.parallel.regions import Box, Interval, split

_AXES = {
    "NHWC": (Axis.SAMPLE, Axis.HEIGHT, Axis.WIDTH, Axis.FILTER),
    "NCHW": (Axis.SAMPLE, Axis.FILTER, Axis.HEIGHT, Axis.WIDTH),
}
_AXES_OF_MATRIX = (Axis.SAMPLE, Axis.FILTER)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """A node as rules see it.

    Attributes:
        node: the node.
        input_shapes: of its data inputs.
        output_shapes: of its outputs.
        input_values: the values of those inputs that are constants and small, else None.
        layout: of tensors of rank 4 in its layer, `NHWC` or `NCHW`.
        role: what a convolution or a matrix product computes of its layer; `FORWARD` of all others.
    """

    node: node_def_pb2.NodeDef
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    input_values: tuple[np.ndarray[Any, Any] | None, ...]
    layout: str = "NHWC"
    role: ConvolutionKind = ConvolutionKind.FORWARD


Emit = Callable[[NodeMaker, Sequence[str]], Sequence[str]]
"""Makes the nodes of a part. It is given the tensor of each box of `reads`, in order ("" for None),
and returns one of each box of `gives`."""


@dataclasses.dataclass(frozen=True, slots=True)
class OpPart:
    """A part of an operation.

    Attributes:
        place: the part's number in the layer, and so its device.
        reads: for each data input the box that the part reads; None where it needs nothing of it,
            such as of vectors of sizes.
        gives: for each output the box that it gives.
        emit: makes its nodes.
        multiply_adds: of a convolution or a matrix product, else 0.
    """

    place: int
    reads: tuple[Box | None, ...]
    gives: tuple[Box, ...]
    emit: Emit
    multiply_adds: int = 0


Rule = Callable[[Operation, Degrees], Sequence[OpPart] | None]
"""Divides an operation into parts, by ascending place. Places may be missing: their devices have
nothing to do. None where it cannot be divided so: then it runs whole, on the device that it had."""


def are_addends(parts: Sequence[OpPart]) -> bool:
    """Whether parts give addends of the results: that is so where several give the same boxes."""
    return len({part.gives for part in parts}) < len(parts)


def axes_of(shape: Sequence[int], layout: str) -> tuple[Axis, ...]:
    """The axes that the dimensions of a tensor of rank 4 or 2 are divided by."""
    return _AXES[layout] if len(shape) == 4 else _AXES_OF_MATRIX


# A search asks for the same again and again: cells of a network repeat.
@functools.lru_cache(maxsize=1 << 14)
def boxes_of(shape: tuple[int, ...], layout: str, degrees: Degrees) -> dict[int, Box]:
    """How a tensor of rank 4 or 2 is divided among the places of its layer.

    Its channels are divided by `filter` and `channel` together, so that what follows a convolution
    keeps all devices busy. An axis that is shorter than its degree, or is not there, leaves places
    without a part.

    Args:
        shape: of the tensor, in `layout`, or `[N, K]`.
        layout: `NHWC` or `NCHW`; counts for rank 4 alone.
        degrees: of the layer.

    Returns:
        The box of each place that has one; not to be changed.
    """
    axes = axes_of(shape, layout)
    extents = dict(zip(axes, shape, strict=True))
    intervals = divide(extents, degrees.with_channels_together)
    return {place: tuple(at[axis] for axis in axes) for place, at in intervals.items()}


def divide(extents: Mapping[Axis, int], degrees: Degrees) -> dict[int, dict[Axis, Interval]]:
    """Divides work along its axes. One that is shorter than its degree leaves places without work.

    Args:
        extents: the size of each axis of the work; 1 where it is not there.
        degrees: of the layer.

    Returns:
        The interval of each axis for each place that has one; not to be changed.
    """
    return _divide(tuple(extents.get(axis, 1) for axis in Axis), degrees)


@functools.lru_cache(maxsize=1 << 14)
def _divide(extents: tuple[int, ...], degrees: Degrees) -> dict[int, dict[Axis, Interval]]:
    sizes = dict(zip(Axis, extents, strict=True))
    intervals = {
        axis: split(sizes[axis], min(count, sizes[axis])) for axis, count in degrees.by_axis.items()
    }
    return {
        number: {axis: intervals[axis][place[axis]] for axis in Axis}
        for number, place in enumerate(degrees.places)
        if all(place[axis] < len(intervals[axis]) for axis in Axis)
    }
