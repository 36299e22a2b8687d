"""Which ops compute each image of a batch by itself, and which of their operands are the images.

An op is *batchwise* if image i of its results depends on image i of some of its operands, its
images, and on nothing else of them. The table has a rule for each such op: what has to hold for
attributes, shapes and constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_interop.convolution import Shape
from tf_interop.graph.properties import GraphProperties, is_fully_known
from tf_interop.graph.view import GraphView

Positions = tuple[int, ...]


class Operation:
    """A node that may be batchwise.

    Attributes:
        attributes: the node's.
        input_count: how many tensors it reads.
    """

    def __init__(
        self,
        view: GraphView,
        properties: GraphProperties,
        index: int,
        *,
        preserved: Collection[str] = (),
    ) -> None:
        """Prepares to look at a node.

        Args:
            view: the graph.
            properties: the shapes of its tensors.
            index: the node.
            preserved: names of nodes in whose place a Session may feed another value.
        """
        self._view, self._properties, self._index = view, properties, index
        self._preserved = preserved
        self.attributes = view.nodes[index].attr
        self.input_count = len(view.fanins[index])

    @property
    def result(self) -> Shape | None:
        """The shape of its first output."""
        return self._properties.output_shape(self._index, 0)

    def images(self) -> Positions | None:
        """The positions of the operands that are its images; None where it is not batchwise."""
        rule = _RULES.get(self._view.ops[self._index])
        return None if rule is None else rule(self)

    def shape(self, position: int) -> Shape | None:
        """The shape of an operand."""
        return self._properties.input_shape(self._index, position)

    def rank(self, position: int = 0) -> int:
        """The rank of an operand; 0 where it is not known."""
        return len(self.shape(position) or ()) if position < self.input_count else 0

    def constant(self, position: int) -> Any:
        """The value of an operand; None where it is no constant."""
        source, _ = self._view.fanins[self._index][position]
        if self._view.ops[source] != "Const" or self._view.names[source] in self._preserved:
            return None
        return tf.make_ndarray(self._view.nodes[source].attr["value"].tensor)

    def spares_first(self, position: int, rank: int) -> bool:
        """Whether the axes at an operand are constant, and the first dimension is none of them."""
        axes = self.constant(position)
        return axes is not None and rank > 0 and axes.size > 0 and 0 not in axes.reshape(-1) % rank

    def reads_others(self) -> bool:
        """Whether something reads another output than the first."""
        view = self._view
        return any(
            source == self._index and port > 0
            for reader in view.fanouts[self._index]
            for source, port in view.fanins[reader]
        )

    def with_operands(self, images: Positions, others: Iterable[int]) -> Positions | None:
        """`images`, and those of `others` that have the first dimension of the result."""
        result = self.result
        shapes = {position: self.shape(position) for position in others}
        if result is None or None in shapes.values():
            return None
        return images + tuple(
            position
            for position, shape in shapes.items()
            if shape is not None and len(shape) == len(result) and shape[:1] != (1,)
        )


def _first(_: Operation) -> Positions:
    return (0,)


def _first_if(holds: Callable[[Operation], bool]) -> _Rule:
    return lambda node: (0,) if holds(node) else None


def _broadcasting(node: Operation) -> Positions | None:
    return node.with_operands((), range(node.input_count))


def _convolution(node: Operation) -> Positions | None:
    batch = node.shape(0)
    # Of none or one there is nothing to split.
    if batch is None or len(batch) < 3 or batch[0] in (0, 1):
        return None
    return node.with_operands((0,), range(2, node.input_count))


def _normalization(node: Operation) -> Positions | None:
    is_training = "is_training" not in node.attributes or node.attributes["is_training"].b
    if is_training or node.reads_others():
        return None
    return node.with_operands((0,), range(5, node.input_count))


def _product(node: Operation) -> Positions | None:
    if node.attributes["transpose_a"].b:
        return None
    return node.with_operands((0,), range(2, node.input_count))


def _concatenation(node: Operation) -> Positions | None:
    last = node.input_count - 1
    return tuple(range(last)) if node.spares_first(last, node.rank()) else None


def _pools_each(node: Operation) -> bool:
    return all(node.attributes[name].list.i[:1] == [1] for name in ("ksize", "strides"))


def _pads_others(node: Operation) -> bool:
    paddings = node.constant(1)
    return paddings is not None and not paddings[0].any()


def _transposes_others(node: Operation) -> bool:
    order = node.constant(1)
    return order is not None and order.size > 0 and order[0] == 0


def _squeezes_others(node: Operation) -> bool:
    dims = np.array(node.attributes["squeeze_dims"].list.i)
    return dims.size > 0 and node.rank() > 0 and 0 not in dims % node.rank()


def _slices_others(node: Operation) -> bool:
    """Whether a StridedSlice has all of the first dimension, as `x[:, 1:]`."""
    strides = node.constant(3)
    changes = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    return (
        strides is not None
        and strides.size > 0
        and strides[0] == 1
        and bool(node.attributes["begin_mask"].i & node.attributes["end_mask"].i & 1)
        and not any(node.attributes[name].i & 1 for name in changes)
    )


def _keeps_batch(node: Operation) -> bool:
    """Whether a Reshape makes of each image one of the result."""
    before, after = node.shape(0), node.result
    if not before or not after or before[0] != after[0]:
        return False
    return (
        is_fully_known(before[1:])
        and is_fully_known(after[1:])
        and math.prod(before[1:]) == math.prod(after[1:]) > 0  # type: ignore[arg-type]
    )


_Rule = Callable[[Operation], Positions | None]

CONVOLUTIONS = frozenset(
    {"Conv2D", "Conv3D", "DepthwiseConv2dNative", "_FusedConv2D", "_FusedDepthwiseConv2dNative"}
)
_RULES_OF_SEVERAL: dict[str, _Rule] = {
    " ".join(CONVOLUTIONS): _convolution,
    "Relu Relu6 LeakyRelu Elu Selu Softplus Softsign Sigmoid Tanh _MklSwish _MklFusedMish "
    "Abs Neg Sign Square Sqrt Rsqrt Reciprocal Inv Exp Expm1 Log Log1p Erf Erfc Sin Cos "
    "Floor Ceil Rint Round Cast OnesLike ZerosLike Identity Snapshot StopGradient "
    "PreventGradient BiasAdd LRN DepthToSpace SpaceToDepth ResizeBilinear "
    "ResizeNearestNeighbor ResizeBicubic": _first,
    "Add AddV2 Sub Mul MulNoNan RealDiv Div DivNoNan Xdivy Maximum Minimum Pow "
    "SquaredDifference ClipByValue SelectV2 AddN Greater GreaterEqual Less LessEqual Equal "
    "NotEqual": _broadcasting,
    "MaxPool AvgPool MaxPool3D AvgPool3D": _first_if(_pools_each),
    "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 _FusedBatchNormEx": _normalization,
    "Softmax LogSoftmax": _first_if(lambda node: node.rank() >= 2),
    "MatMul _FusedMatMul": _product,
    "BatchMatMul BatchMatMulV2 BatchMatMulV3": lambda node: (
        _broadcasting(node) if node.rank() >= 3 else None
    ),
    "Mean Sum Max Min Prod": _first_if(lambda node: node.spares_first(1, node.rank())),
    "ConcatV2": _concatenation,
    "Pad PadV2 MirrorPad": _first_if(_pads_others),
    "Transpose": _first_if(_transposes_others),
    "ExpandDims": _first_if(lambda node: node.spares_first(1, node.rank() and node.rank() + 1)),
    "Squeeze": _first_if(_squeezes_others),
    "Split": lambda node: (1,) if node.spares_first(0, node.rank(1)) else None,
    "SplitV": _first_if(lambda node: node.spares_first(2, node.rank())),
    "StridedSlice": _first_if(_slices_others),
    "Reshape": _first_if(_keeps_batch),
}
_RULES = {op: rule for ops, rule in _RULES_OF_SEVERAL.items() for op in ops.split()}
