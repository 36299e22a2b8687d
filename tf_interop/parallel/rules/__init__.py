"""The rules that divide operations, by op type.

Most rules copy a node's own attributes and cut its operands. A part knows its operands only by the
boxes that it reads.
"""

from __future__ import annotations

from tf_interop.parallel.op_parts import Rule
from tf_interop.parallel.rules import (
    convolution,
    elementwise,
    normalization,
    pooling,
    shapes,
)

RULES: dict[str, Rule] = {
    **convolution.RULES,
    **elementwise.RULES,
    **normalization.RULES,
    **pooling.RULES,
    **shapes.RULES,
}
