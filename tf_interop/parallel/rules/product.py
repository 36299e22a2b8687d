"""How matrix products are divided, and the bias of a convolution or a product with its gradient."""

from __future__ import annotations

from collections.abc import Mapping

from tf_interop.convolution import ConvolutionKind
from tf_interop.graph.ops import attribute_of
from tf_interop.parallel.degrees import Axis, Degrees
from tf_interop.parallel.op_parts import Operation, OpPart, Rule, divide
from tf_interop.parallel.regions import Box, volume
from tf_interop.parallel.rules.boxes import BoxPart, by_operand, copied

_AXES = {
    ConvolutionKind.FORWARD: (Axis.SAMPLE, Axis.FILTER, Axis.CHANNEL),
    ConvolutionKind.BACKWARD_INPUT: (Axis.SAMPLE, Axis.CHANNEL, Axis.FILTER),
    ConvolutionKind.BACKWARD_FILTER: (Axis.CHANNEL, Axis.FILTER, Axis.SAMPLE),
}
"""What the rows of the result are, its columns, and what is added up: of a layer that computes
[N, C] x [C, K]. Another, whose input or filter is transposed, is divided as correctly, but reads
more than it had to."""


def extents_of_product(operation: Operation) -> Mapping[Axis, int]:
    """The sizes of the axes of a product's work: rows, columns, and what is added up."""
    [(rows, columns)] = operation.output_shapes
    inner = operation.input_shapes[0][0 if attribute_of(operation.node, "transpose_a").b else 1]
    return dict(zip(_AXES[operation.role], (rows, columns, inner), strict=True))


def _divide_product(operation: Operation, degrees: Degrees) -> list[OpPart] | None:
    """Divides a product; parts that share a box of the result are its addends."""
    extents = extents_of_product(operation)
    if 0 in extents.values():
        return None
    first_transposed, second_transposed = (
        attribute_of(operation.node, name).b for name in ("transpose_a", "transpose_b")
    )
    parts = []
    for place, at in divide(extents, degrees).items():
        rows, columns, inner = (at[axis] for axis in _AXES[operation.role])
        reads: tuple[Box, Box] = (
            (inner, rows) if first_transposed else (rows, inner),
            (columns, inner) if second_transposed else (inner, columns),
        )
        adds = volume((rows, columns, inner))
        parts.append(OpPart(place, reads, ((rows, columns),), copied(operation), adds))
    return parts


def _part_with_bias(operation: Operation, box: Box) -> BoxPart:
    """What a bias is added to, or is the gradient of it: then samples make addends."""
    bias = (box[operation.layout.index("C") if len(box) == 4 else 1],)
    if operation.node.op == "BiasAdd":
        return (box, bias), (box,), copied(operation)
    return (box,), (bias,), copied(operation)


RULES: dict[str, Rule] = {
    "MatMul": _divide_product,
    **dict.fromkeys(("BiasAdd", "BiasAddGrad"), by_operand(_part_with_bias)),
}
