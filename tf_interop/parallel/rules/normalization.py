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
from tf_interop.parallel.degrees import Degrees
from tf_interop.parallel.node_maker import NodeMaker, own_attributes
from tf_interop.parallel.op_parts import Operation, OpPart, OpParts, Rule, boxes_of
from tf_interop.parallel.regions import Box, Interval, whole
from tf_interop.parallel.rules.copies import outputs_of

_COMPUTED = {"FusedBatchNormV2": 5, "FusedBatchNormGradV2": 3}
"""How many outputs the parts compute; those after them are reserve spaces that nobody needs."""


def _divide_normalization(operation: Operation, degrees: Degrees) -> OpParts | None:
    """Divides the image, and all vectors as its channels."""
    node = operation.node
    image = operation.input_shapes[0]
    layout = attribute_of(node, "data_format").s.decode()
    if len(image) != 4 or 0 in image or layout not in ("NHWC", "NCHW"):
        return None
    axis = layout.index("C")
    is_training = attribute_of(node, "is_training").b
    part_op = node.op.replace("V3", "V2")
    computed = _COMPUTED[part_op]

    def box_of(shape: Sequence[int], box: Box) -> Box:
        vector: tuple[Interval, ...] = (box[axis],)
        return box if len(shape) == 4 else vector

    parts = []
    for place, box in boxes_of(image, layout, degrees).items():
        others = [each for at, each in enumerate(zip(box, whole(image), strict=True)) if at != axis]
        if any(mine != all_of_it for mine, all_of_it in others) and (
            is_training or "Grad" in node.op
        ):
            return None
        reads = tuple(box_of(shape, box) for shape in operation.input_shapes[:5])
        gives = tuple(box_of(shape, box) for shape in operation.output_shapes[:computed])
        gives += tuple(whole(shape) for shape in operation.output_shapes[computed:])
        nothing = (None,) * (len(operation.input_shapes) - 5)
        emit = functools.partial(_normalize, operation, part_op)
        parts.append(OpPart(place, reads + nothing, gives, emit))
    return OpParts(tuple(parts), (False,) * len(operation.output_shapes))


def _normalize(
    operation: Operation, op: str, maker: NodeMaker, inputs: Sequence[str]
) -> Sequence[str]:
    """Normalizes some channels."""
    computed, attributes = _COMPUTED[op], own_attributes(operation.node)
    name = maker(op, *inputs[:5], **attributes)
    dtype = tf.as_dtype(operation.node.attr["U"].type)
    spaces = [
        maker.constant(np.zeros(shape), dtype) for shape in operation.output_shapes[computed:]
    ]
    return [*outputs_of(name, computed), *spaces]


RULES: dict[str, Rule] = dict.fromkeys(
    (
        *("FusedBatchNormV2", "FusedBatchNormV3"),
        *("FusedBatchNormGradV2", "FusedBatchNormGradV3"),
    ),
    _divide_normalization,
)
"""The rules of these ops."""
