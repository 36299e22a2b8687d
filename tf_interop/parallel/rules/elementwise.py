"""Ops that compute each value of their result from one value of each operand.

An operand may be broadcast as numpy does it: of its dimensions of 1, and of those that it lacks, a
part reads all.
"""

from __future__ import annotations

from collections.abc import Sequence

from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.op_parts import Operation, OpPart, OpParts, Rule, boxes_of
from tf_interop.parallel.regions import Box
from tf_interop.parallel.rules.copies import copy_of


def broadcast_box(shape: Sequence[int], result: Sequence[int], box: Box) -> Box | None:
    """What a part reads of an operand.

    Args:
        shape: of the operand.
        result: the shape that it is broadcast to.
        box: what the part gives of the result.

    Returns:
        A box of the operand; None where it is not broadcast to such a result.
    """
    lacking = len(result) - len(shape)
    if lacking < 0:
        return None
    read = []
    for size, whole_size, interval in zip(shape, result[lacking:], box[lacking:], strict=True):
        if size not in (1, whole_size):
            return None
        read.append(interval if size == whole_size else (0, 1))
    return tuple(read)


def _divide(operation: Operation, degrees: Degrees) -> OpParts | None:
    """Divides the result, and each operand as it is broadcast to it."""
    (result,) = operation.output_shapes
    if len(result) not in (2, 4) or 0 in result:
        return None
    emit = copy_of(operation)
    parts = []
    for place, box in boxes_of(result, operation.layout, degrees).items():
        reads = [broadcast_box(shape, result, box) for shape in operation.input_shapes]
        if None in reads:
            return None
        parts.append(OpPart(place, tuple(reads), (box,), emit))
    return OpParts(tuple(parts), (False,))


_OPS = (
    # Activations and their gradients.
    "Relu ReluGrad Relu6 Relu6Grad LeakyRelu LeakyReluGrad Elu EluGrad Selu SeluGrad "
    "Softplus SoftplusGrad Softsign SoftsignGrad Sigmoid SigmoidGrad Tanh TanhGrad "
    # Arithmetic.
    "Add AddV2 AddN Sub Mul MulNoNan RealDiv Div DivNoNan Maximum Minimum Pow SquaredDifference "
    "Abs Neg Sign Square Sqrt SqrtGrad Rsqrt RsqrtGrad Reciprocal Inv ReciprocalGrad InvGrad "
    "Exp Expm1 Log Log1p Erf Floor Ceil Rint Round ClipByValue "
    # Comparisons and choices.
    "Greater GreaterEqual Less LessEqual Equal NotEqual SelectV2 "
    # Values that are handed on.
    "Identity Snapshot StopGradient PreventGradient Cast ZerosLike OnesLike"
)

RULES: dict[str, Rule] = dict.fromkeys(_OPS.split(), _divide)
"""The rules of these ops."""
