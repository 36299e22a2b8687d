"""How matrix products are divided, and the bias of a convolution or a product with its gradient."""

from __future__ import annotations

from tf_interop.graph.ops import attribute_of
from tf_interop.parallel.degrees import Axis, Degrees
from tf_interop.parallel.op_parts import (
    Operation,
    OpPart,
    OpParts,
    Role,
    Rule,
    boxes_of,
    divide,
    parts_with_addends,
)
from tf_interop.parallel.regions import Box, volume
from tf_interop.parallel.rules.copies import copy_of

_AXES = {
    Role.FORWARD: (Axis.SAMPLE, Axis.FILTER, Axis.CHANNEL),
    Role.BACKWARD_INPUT: (Axis.SAMPLE, Axis.CHANNEL, Axis.FILTER),
    Role.BACKWARD_FILTER: (Axis.CHANNEL, Axis.FILTER, Axis.SAMPLE),
}
"""What the rows of the result are, its columns, and what is added up: of a layer that computes
[N, C] x [C, K]. Another, whose input or filter is transposed, is divided as correctly, but reads
more than it had to."""


def divide_product(operation: Operation, degrees: Degrees) -> OpParts | None:
    """The rule of a product; parts that share a box of the result are its addends."""
    ((rows, columns),) = operation.output_shapes
    of_rows, of_columns, of_inner = _AXES[operation.role]
    first_transposed, second_transposed = (
        attribute_of(operation.node, name).b for name in ("transpose_a", "transpose_b")
    )
    inner = operation.input_shapes[0][0 if first_transposed else 1]
    if 0 in (rows, columns, inner):
        return None
    parts = []
    emit = copy_of(operation)
    extents = {of_rows: rows, of_columns: columns, of_inner: inner}
    for place, at in divide(extents, degrees).items():
        first: Box = at[of_rows], at[of_inner]
        second: Box = at[of_inner], at[of_columns]
        result: Box = at[of_rows], at[of_columns]
        reads = (
            first[::-1] if first_transposed else first,
            second[::-1] if second_transposed else second,
        )
        multiply_adds = volume((*result, at[of_inner]))
        parts.append(OpPart(place, reads, (result,), emit, multiply_adds))
    return parts_with_addends(parts)


def _divide_bias(operation: Operation, degrees: Degrees) -> OpParts | None:
    """Divides what a bias is added to, or is the gradient of it: then samples make addends."""
    shape = operation.input_shapes[0]
    if len(shape) not in (2, 4) or 0 in shape:
        return None
    layout = attribute_of(operation.node, "data_format").s.decode() or "NHWC"
    channel = layout.index("C") if len(shape) == 4 else 1
    emit = copy_of(operation)
    parts = []
    for place, box in boxes_of(shape, layout, degrees).items():
        bias = (box[channel],)
        if operation.node.op == "BiasAdd":
            parts.append(OpPart(place, (box, bias), (box,), emit))
        else:
            parts.append(OpPart(place, (box,), (bias,), emit))
    return parts_with_addends(parts)


RULES: dict[str, Rule] = {
    "MatMul": divide_product,
    "BiasAdd": _divide_bias,
    "BiasAddGrad": _divide_bias,
}
"""The rules of these ops."""
