"""What most rules have in common: they divide one tensor into boxes and make a node of each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.node_maker import NodeMaker, own_attributes
from tf_interop.parallel.op_parts import Emit, Operation, OpPart, Rule, boxes_of
from tf_interop.parallel.regions import Box

BoxPart = tuple[tuple[Box | None, ...], tuple[Box, ...], Emit]
"""What a part reads, what it gives, and how its nodes are made."""

PartOf = Callable[[Operation, Box], BoxPart | None]
"""What the part of a box takes; None where the operation cannot be divided so."""


def by_result(part_of: PartOf) -> Rule:
    """The rule of an op whose first result is divided."""
    return functools.partial(_divide, lambda operation: operation.output_shapes[0], part_of)


def by_operand(part_of: PartOf) -> Rule:
    """The rule of an op whose first operand is divided."""
    return functools.partial(_divide, lambda operation: operation.input_shapes[0], part_of)


def _divide(
    shape_of: Callable[[Operation], tuple[int, ...]],
    part_of: PartOf,
    operation: Operation,
    degrees: Degrees,
) -> list[OpPart] | None:
    shape = shape_of(operation)
    if len(shape) not in (2, 4) or 0 in shape:
        return None
    parts = []
    for place, box in boxes_of(shape, operation.layout, degrees).items():
        part = part_of(operation, box)
        if part is None:
            return None
        parts.append(OpPart(place, *part))
    return parts


def copied(operation: Operation) -> Emit:
    """Makes the operation's op on the boxes that a part reads."""
    return functools.partial(_copy, operation)


def _copy(operation: Operation, maker: NodeMaker, inputs: Sequence[str]) -> Sequence[str]:
    node = operation.node
    name = maker(node.op, *inputs, **own_attributes(node))
    return outputs_of(name, len(operation.output_shapes))


def outputs_of(name: str, count: int) -> list[str]:
    """The names of the outputs of a node."""
    return [name, *(f"{name}:{port}" for port in range(1, count))]
