"""Which nodes of a graph compute little: scales, means of channels, sizes, updates of vectors.

Such a node takes about a microsecond, less than it costs TensorFlow's executor to run it as a node
of its own. So a unit may take it along wherever it stands.
"""

from __future__ import annotations

import math
from collections.abc import Container

from tf_interop.graph.properties import GraphProperties, is_fully_known
from tf_interop.graph.view import GraphView

MOST_ELEMENTS = 4096
"""What a small result has at most: the channels of the widest layers."""

PARAMETER_OPS = frozenset({"Const", "ReadVariableOp"})
# What may be small though it reads what is not, or the reverse. Others are small where all that
# they read is.
_RESIZING_OPS = frozenset(
    {"Mean", "Sum", "Max", "Min", "Prod", "BiasAddGrad", "L2Loss", "MatMul", "_FusedMatMul"}
    | {"Tile", "BroadcastTo", "Slice", "StridedSlice", "ConcatV2", "Pack", "Pad"}
)


def find_small(view: GraphView, steps: Container[int], properties: GraphProperties) -> list[bool]:
    """Which nodes have small results. Nodes that are neither `steps` nor parameters have none.

    Shapes are looked up for parameters and for what reduces or expands; the rest follows. So one
    that does not know the batch size gives the same result, but for what is small by it alone.
    """

    def has_small_shape(index: int) -> bool:
        shape = properties.output_shape(index, 0)
        return is_fully_known(shape) and math.prod(shape or ()) <= MOST_ELEMENTS  # type: ignore[arg-type]

    small = [False] * len(view)
    for index in view.topological_order():
        op = view.ops[index]
        if op in PARAMETER_OPS:
            small[index] = has_small_shape(index)
        elif index in steps:
            if op in _RESIZING_OPS:
                small[index] = has_small_shape(index)
            else:
                sources = view.fanins[index]
                small[index] = bool(sources) and all(small[source] for source, _ in sources)
    return small
