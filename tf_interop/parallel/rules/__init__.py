"""How operations are divided: a rule for each op type.

Most rules copy a node's own attributes and cut its operands; what a part reads is all that it
knows of them.
"""

from __future__ import annotations

from tf_interop.parallel.op_parts import Rule
from tf_interop.parallel.rules import (
    convolution,
    elementwise,
    normalization,
    pooling,
    product,
    reductions,
    shapes,
)

RULES: dict[str, Rule] = {
    **convolution.RULES,
    **elementwise.RULES,
    **normalization.RULES,
    **pooling.RULES,
    **product.RULES,
    **reductions.RULES,
    **shapes.RULES,
}
"""The rule of each op type that can be divided."""
