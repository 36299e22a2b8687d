"""What most rules make their nodes of: the op of the whole node, on smaller tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_interop.parallel.node_maker import NodeMaker, own_attributes
from tf_interop.parallel.op_parts import Emit, Operation


def copy_of(operation: Operation, **changes: Any) -> Emit:
    """Makes the operation's op on the boxes that a part reads.

    Args:
        operation: what is divided.
        **changes: attributes that differ, as NodeMaker takes them.
    """
    attributes = own_attributes(operation.node) | changes
    count = len(operation.output_shapes)

    def emit(maker: NodeMaker, inputs: Sequence[str]) -> Sequence[str]:
        return outputs_of(maker(operation.node.op, *inputs, **attributes), count)

    return emit


def outputs_of(name: str, count: int) -> list[str]:
    """The names of the outputs of a node."""
    return [name, *(f"{name}:{port}" for port in range(1, count))]
