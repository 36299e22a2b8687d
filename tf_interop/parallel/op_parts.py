"""Operations and their parts: the inputs and results of rules, and helpers that most rules share.

A rule (`rules/`) divides the nodes of one op type. Costs and rewriting use its parts alone; neither
knows any op type.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2

from tf_interop.convolution import ConvolutionKind
from tf_interop.parallel.node_maker import NodeMaker, own_attributes
from tf_interop.parallel.regions import Box, Interval, split
from tf_interop.parallel.types import Axis, Degrees

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
        input_shapes: shapes of its data inputs.
        output_shapes: shapes of its outputs.
        input_values: values of the inputs that are small constants; None for all others.
        layout: layout of the layer's tensors of rank 4, `NHWC` or `NCHW`.
        role: role of a convolution or a matrix product in its layer; `FORWARD` for other ops.
    """

    node: node_def_pb2.NodeDef
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    input_values: tuple[np.ndarray[Any, Any] | None, ...]
    layout: str = "NHWC"
    role: ConvolutionKind = ConvolutionKind.FORWARD

    @property
    def is_assignment(self) -> bool:
        """Whether it changes a variable and gives nothing."""
        return not self.output_shapes

    @property
    def dtype(self) -> tf.DType:
        """The dtype of its tensors, for an op that states one."""
        return tf.as_dtype(self.node.attr["T"].type)


Emit = Callable[[NodeMaker, Sequence[str]], Sequence[str]]
"""Makes the nodes of a part from the tensor of each box of `reads`, in order ("" for None).
Returns the tensor of each box of `gives`."""


@dataclasses.dataclass(frozen=True, slots=True)
class OpPart:
    """A part of an operation.

    Attributes:
        reads: the box that the part reads of each data input; None for an input that it does not
            read, such as a vector of sizes.
        gives: the box of each output that it computes.
        emit: makes its nodes.
        multiply_adds: work of a convolution or a matrix product; 0 for other ops.
        place: the part's number in the layer, which chooses its device.
    """

    reads: tuple[Box | None, ...]
    gives: tuple[Box, ...]
    emit: Emit
    multiply_adds: int = 0
    place: int = 0


Extents = Mapping[Axis, int]
"""The size of each axis of an operation's work; it cannot be divided along an axis that is missing.
Without `channel` the work is divided by `filter` and `channel` together along `filter`."""

Place = Mapping[Axis, Interval]
"""A part of the work: its interval along each axis; (0, 1) for a missing axis."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """How an op type is divided.

    Attributes:
        extents: the work of an operation; None if it cannot be divided.
        part: the part of the operation at a place; None if it cannot be divided so.
    """

    extents: Callable[[Operation], Extents | None]
    part: Callable[[Operation, Place], OpPart | None]

    def divide(self, operation: Operation, degrees: Degrees) -> list[OpPart] | None:
        """Divides an operation into parts, by ascending place.

        The devices of missing places are idle. Returns None for an operation that cannot be divided
        so: it runs whole, on its own device.
        """
        extents = self.extents(operation)
        if not extents or 0 in extents.values():
            return None
        if Axis.CHANNEL not in extents:
            degrees = degrees.with_channels_together
        parts = []
        for number, place in divide(extents, degrees).items():
            part = self.part(operation, place)
            if part is None:
                return None
            parts.append(dataclasses.replace(part, place=number))
        return parts


PartOfBox = Callable[[Operation, Box], OpPart | None]
"""The part of one box of a tensor; None if the operation cannot be divided so."""


def by_result(part_of: PartOfBox) -> Rule:
    """The rule of an op whose first result is divided."""
    return _by_boxes(lambda operation: operation.output_shapes[0], part_of)


def by_operand(part_of: PartOfBox) -> Rule:
    """The rule of an op whose first operand is divided."""
    return _by_boxes(lambda operation: operation.input_shapes[0], part_of)


def _by_boxes(shape_of: Callable[[Operation], tuple[int, ...]], part_of: PartOfBox) -> Rule:
    return Rule(
        lambda operation: extents_of(shape_of(operation), operation.layout),
        lambda operation, place: part_of(
            operation, box_at(place, shape_of(operation), operation.layout)
        ),
    )


def copied(operation: Operation) -> Emit:
    """Makes the operation's own op on the boxes that a part reads."""
    return functools.partial(_copy, operation)


def _copy(operation: Operation, maker: NodeMaker, inputs: Sequence[str]) -> Sequence[str]:
    node = operation.node
    name = maker(node.op, *inputs, **own_attributes(node))
    return outputs_of(name, len(operation.output_shapes))


def outputs_of(name: str, count: int) -> list[str]:
    """The names of a node's outputs."""
    return [name, *(f"{name}:{port}" for port in range(1, count))]


def are_addends(parts: Sequence[OpPart]) -> bool:
    """Whether parts compute addends of the results: then several have the same boxes."""
    return len({part.gives for part in parts}) < len(parts)


def _axes_of(shape: Sequence[int], layout: str) -> tuple[Axis, ...]:
    """The axis that divides each dimension of a tensor of rank 4 or 2."""
    return _AXES[layout] if len(shape) == 4 else _AXES_OF_MATRIX


def extents_of(shape: tuple[int, ...], layout: str) -> Extents | None:
    """The sizes of a tensor of rank 4 or 2 by axis; None for another rank."""
    axes = _axes_of(shape, layout)
    return dict(zip(axes, shape, strict=True)) if len(shape) == len(axes) else None


def box_at(place: Place, shape: tuple[int, ...], layout: str) -> Box:
    """The box of a tensor of rank 4 or 2 at a place."""
    return tuple(place[axis] for axis in _axes_of(shape, layout))


def divide(extents: Extents, degrees: Degrees) -> dict[int, Place]:
    """The places that have work, by number. Do not change them.

    An axis shorter than its degree leaves places without work.
    """
    return _divide(tuple(extents.get(axis, 1) for axis in Axis), degrees)


# A search needs the same places again and again, because cells of a network repeat.
@functools.lru_cache(maxsize=1 << 14)
def _divide(extents: tuple[int, ...], degrees: Degrees) -> dict[int, Place]:
    sizes = dict(zip(Axis, extents, strict=True))
    intervals = {
        axis: split(sizes[axis], min(count, sizes[axis])) for axis, count in degrees.by_axis.items()
    }
    return {
        number: {axis: intervals[axis][place[axis]] for axis in Axis}
        for number, place in enumerate(degrees.places)
        if all(place[axis] < len(intervals[axis]) for axis in Axis)
    }
