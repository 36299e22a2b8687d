"""How fused batch normalizations are divided: by channels, each with statistics of its own.

In inference the statistics are given, and the forward op is divided along every axis. Everything
else is divided where `parallel/layers/normalization.py` has put elementary ops in their place.

Parts are of the second version of the ops, which computes what the third does without its last
reserve space. So nothing of that is sent from the one to the other.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_interop.graph.ops import attribute_of
from tf_interop.parallel.node_maker import NodeMaker, own_attributes
from tf_interop.parallel.op_parts import Operation, Rule
from tf_interop.parallel.regions import Box, whole
from tf_interop.parallel.rules.boxes import BoxPart, by_operand, outputs_of

_COMPUTED = {"FusedBatchNormV2": 5, "FusedBatchNormGradV2": 3}
"""How many outputs the parts compute; those after them are reserve spaces that nobody needs."""


def _part_of_image(operation: Operation, box: Box) -> BoxPart | None:
    """All vectors are divided as the channels of the image."""
    node, image = operation.node, operation.input_shapes[0]
    if len(image) != 4:
        return None
    axis = operation.layout.index("C")
    needs_all_pixels = "Grad" in node.op or attribute_of(node, "is_training").b
    if needs_all_pixels and whole(image) != (*box[:axis], (0, image[axis]), *box[axis + 1 :]):
        return None
    op = node.op.replace("V3", "V2")
    computed = _COMPUTED[op]

    def boxes(shapes: Sequence[tuple[int, ...]]) -> tuple[Box, ...]:
        return tuple(box if len(shape) == 4 else (box[axis],) for shape in shapes)

    unread = (None,) * (len(operation.input_shapes) - 5)
    gives = boxes(operation.output_shapes[:computed])
    gives += tuple(map(whole, operation.output_shapes[computed:]))
    emit = functools.partial(_normalize, operation, op)
    return (*boxes(operation.input_shapes[:5]), *unread), gives, emit


def _normalize(
    operation: Operation, op: str, maker: NodeMaker, inputs: Sequence[str]
) -> Sequence[str]:
    """Normalizes some channels."""
    name = maker(op, *inputs[:5], **own_attributes(operation.node))
    dtype = tf.as_dtype(operation.node.attr["U"].type)
    spaces = [
        maker.constant(np.zeros(shape), dtype) for shape in operation.output_shapes[_COMPUTED[op] :]
    ]
    return [*outputs_of(name, _COMPUTED[op]), *spaces]


RULES: dict[str, Rule] = dict.fromkeys(
    (f"FusedBatchNorm{kind}V{version}" for kind in ("", "Grad") for version in (2, 3)),
    by_operand(_part_of_image),
)
