"""Rules for the updates of parameters, whose shares stay on devices.

The parts of a layer that compute the same box of a parameter's gradient divide this box further, so
that each device has a *share* of the parameter and of the optimizer's slots, and no value is on two
devices (Rajbhandari et al., "ZeRO", 2020):

    layer: sample 2              layer: filter 2
    gradient  [0:64] + [0:64]    gradient  [0:32], [32:64]     (+: addends)
    shares    [0:32], [32:64]    shares    [0:32], [32:64]

Each share is a variable on its device, which the device alone reads and updates. Pieces of
parameters and gradients that other devices compute with are sent, as those of any other tensor.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Sequence

import tensorflow as tf

from tf_interop.parallel.node_maker import NodeMaker
from tf_interop.parallel.op_parts import Operation, OpPart
from tf_interop.parallel.regions import Box, sizes, split
from tf_interop.parallel.rules.elementwise import part_of_elementwise

READ_OP = "ReadVariableOp"
ASSIGN_OPS = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})


def share_boxes(gradient_parts: Sequence[OpPart]) -> dict[int, Box]:
    """The share of each place, from the parts of the gradient. Shares are disjoint."""
    places: dict[Box, list[int]] = collections.defaultdict(list)
    for part in gradient_parts:
        places[part.gives[0]].append(part.place)
    # The same axis for all boxes, so that neighbours can be joined.
    largest = [max(its) for its in zip(*map(sizes, places), strict=True)]
    axis = largest.index(max(largest))
    shares: dict[int, Box] = {}
    for box, its in places.items():
        shape = sizes(box)
        first = box[axis][0]
        # An axis shorter than the number of places leaves some without a share.
        intervals = split(shape[axis], min(len(its), shape[axis]))
        for place, (begin, end) in zip(its, intervals, strict=False):
            shares[place] = (*box[:axis], (first + begin, first + end), *box[axis + 1 :])
    return dict(sorted(shares.items()))


def divide_update(
    operation: Operation, gradient_parts: Sequence[OpPart], variable: str
) -> list[OpPart] | None:
    """Divides a node of an update among the places that have shares.

    It reads or assigns the variable whose shares have names that begin with `variable`, or is
    elementwise. None if it cannot be divided so.
    """
    parts = []
    for place, box in share_boxes(gradient_parts).items():
        use = functools.partial(_use_share, operation, f"{variable}/{place}", box)
        if operation.node.op == READ_OP:
            parts.append(OpPart((None,), (box,), use, place=place))
        elif operation.node.op in ASSIGN_OPS:
            parts.append(OpPart((None, box), (), use, place=place))
        else:
            part = part_of_elementwise(operation, box)
            if part is None:
                return None
            parts.append(dataclasses.replace(part, place=place))
    return parts


def _use_share(
    operation: Operation, name: str, box: Box, maker: NodeMaker, inputs: Sequence[str]
) -> Sequence[str]:
    """Makes the read or the assignment of a share; only a read gives something."""
    dtype = tf.as_dtype(operation.node.attr["dtype"].type)
    handle = maker.variable(name, sizes(box), dtype)
    made = maker(operation.node.op, handle, *inputs[1:], dtype=dtype)
    return [] if operation.is_assignment else [made]
