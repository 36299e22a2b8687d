"""Ops that compute each value of their result from one value of each operand.

An operand may be broadcast as numpy does it: of its dimensions of 1, and of those that it lacks, a
part reads all.
"""

from __future__ import annotations

from collections.abc import Sequence

from tf_interop.parallel.op_parts import Operation, Rule
from tf_interop.parallel.regions import Box
from tf_interop.parallel.rules.boxes import BoxPart, by_result, copied


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


def _part_of_result(operation: Operation, box: Box) -> BoxPart | None:
    """Each operand as it is broadcast to the result."""
    [result] = operation.output_shapes
    reads = tuple(broadcast_box(shape, result, box) for shape in operation.input_shapes)
    return None if None in reads else (reads, (box,), copied(operation))


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

RULES: dict[str, Rule] = dict.fromkeys(_OPS.split(), by_result(_part_of_result))
