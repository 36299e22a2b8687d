"""Recognizes operations that compute each image of a batch by itself.

An op is *batchwise* if image i of its results depends on image i of some of its operands, its
images, and on no other image of them. `_RULES` has a rule for each such op, about its attributes,
shapes and constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_interop.convolution import Shape
from tf_interop.graph.ops import BROADCASTING_OPS, UNARY_OPS, attribute_of
from tf_interop.graph.properties import GraphProperties, is_fully_known
from tf_interop.graph.view import GraphView, Tensor

Positions = tuple[int, ...]


def find_images(view: GraphView, properties: GraphProperties, index: int) -> Positions | None:
    """The positions of a node's images among its operands; None if it is not batchwise."""
    rule = _RULES.get(view.ops[index])
    return None if rule is None else rule(_Operation(view, properties, index))


class BatchOrigins:
    """The tensor from which each tensor of a graph has its first dimension.

        images ──┬── Conv2D ── a
                 └── MaxPool ── b

    Here a and b have that of `images`, so their sum broadcasts neither, whatever the batch is.
    """

    def __init__(self, view: GraphView, properties: GraphProperties) -> None:
        self._origins: dict[int, Tensor] = {}
        for index in view.topological_order():
            if view.names[index] in view.preserved:  # a Session may feed another value
                continue
            images = find_images(view, properties, index) or ()
            found = {self.of(view.fanins[index][position]) for position in images}
            if len(found) == 1:
                self._origins[index] = found.pop()

    def of(self, tensor: Tensor) -> Tensor:
        """The origin of a tensor; two tensors of one origin have the same first dimension."""
        return self._origins.get(tensor[0], tensor)


class _Operation:
    """A node that may be batchwise."""

    def __init__(self, view: GraphView, properties: GraphProperties, index: int) -> None:
        self.view, self.index = view, index
        self._properties = properties
        self.input_count = len(view.fanins[index])

    @property
    def result(self) -> Shape | None:
        return self._properties.output_shape(self.index, 0)

    def attribute(self, name: str) -> Any:
        return attribute_of(self.view.nodes[self.index], name)

    def shape(self, position: int) -> Shape | None:
        return self._properties.input_shape(self.index, position)

    def rank(self, position: int = 0) -> int:
        """The rank of an operand; 0 if unknown."""
        return len(self.shape(position) or ()) if position < self.input_count else 0

    def constant(self, position: int) -> Any:
        """The value of an operand; None if it is not constant."""
        source, _ = self.view.fanins[self.index][position]
        # A Session may feed another value for what is preserved.
        if self.view.ops[source] != "Const" or self.view.names[source] in self.view.preserved:
            return None
        return tf.make_ndarray(self.view.nodes[source].attr["value"].tensor)

    def spares_first(self, position: int, rank: int) -> bool:
        """Whether the axes in an operand are constant and leave out the first dimension."""
        axes = self.constant(position)
        return axes is not None and rank > 0 and axes.size > 0 and 0 not in axes.reshape(-1) % rank

    def with_operands(self, images: Positions, others: Iterable[int]) -> Positions | None:
        """Adds to `images` those of `others` that have the result's first dimension."""
        result = self.result
        shapes = {position: self.shape(position) for position in others}
        if result is None or None in shapes.values():
            return None
        return images + tuple(
            position
            for position, shape in shapes.items()
            if shape is not None and len(shape) == len(result) and shape[:1] != (1,)
        )


def _first(_: _Operation) -> Positions:
    return (0,)


def _first_if(holds: Callable[[_Operation], bool]) -> _Rule:
    return lambda node: (0,) if holds(node) else None


def _broadcasting(node: _Operation) -> Positions | None:
    return node.with_operands((), range(node.input_count))


def _convolution(node: _Operation) -> Positions | None:
    batch = node.shape(0)
    # A batch of one image, or none, cannot be split.
    if batch is None or len(batch) < 3 or batch[0] in (0, 1):
        return None
    return node.with_operands((0,), range(2, node.input_count))


def _normalization(node: _Operation) -> Positions | None:
    if node.attribute("is_training").b or node.view.reads_other_outputs(node.index):
        return None
    return node.with_operands((0,), range(5, node.input_count))


def _product(node: _Operation) -> Positions | None:
    if node.attribute("transpose_a").b:
        return None
    return node.with_operands((0,), range(2, node.input_count))


def _concatenation(node: _Operation) -> Positions | None:
    last = node.input_count - 1
    return tuple(range(last)) if node.spares_first(last, node.rank()) else None


def _transposed_convolution(node: _Operation) -> Positions | None:
    # Two sizes alone fit any batch, but the op would read the first one as the batch size.
    return (2,) if node.rank(2) and node.shape(0) == (node.rank(2),) else None


def _einsum(node: _Operation) -> Positions | None:
    """Its images are the operands that start with the result's first label and have it once."""
    operands, _, result = node.attribute("equation").s.decode().replace(" ", "").partition("->")
    # Dimensions without a label may belong to one image.
    if not result or "." in operands or result.count(result[0]) > 1:
        return None
    labels = operands.split(",")
    images = tuple(place for place, each in enumerate(labels) if result[0] in each)
    if any(labels[place].rfind(result[0]) > 0 for place in images):
        return None
    return images


def _gathers_others(node: _Operation) -> bool:
    return not node.attribute("batch_dims").i and node.spares_first(2, node.rank())


def _pools_each(node: _Operation) -> bool:
    return all(node.attribute(name).list.i[:1] == [1] for name in ("ksize", "strides"))


def _has_first(value: int) -> _Rule:
    """The rule of ops whose second operand must be a constant that starts with `value`."""

    def holds(node: _Operation) -> bool:
        constant = node.constant(1)
        return constant is not None and constant.size > 0 and bool((constant[0] == value).all())

    return _first_if(holds)


def _stack(node: _Operation) -> Positions | None:
    spares_first = node.rank() > 0 and node.attribute("axis").i % (node.rank() + 1) != 0
    return tuple(range(node.input_count)) if spares_first else None


def _squeezes_others(node: _Operation) -> bool:
    dims = np.array(node.attribute("squeeze_dims").list.i)
    return dims.size > 0 and node.rank() > 0 and 0 not in dims % node.rank()


def _slices_others(node: _Operation) -> bool:
    """Whether a StridedSlice keeps all of the first dimension, like `x[:, 1:]`."""
    strides = node.constant(3)
    changes = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    return (
        strides is not None
        and strides.size > 0
        and strides[0] == 1
        and bool(node.attribute("begin_mask").i & node.attribute("end_mask").i & 1)
        and not any(node.attribute(name).i & 1 for name in changes)
    )


def _keeps_batch(node: _Operation) -> bool:
    """Whether a Reshape turns each image into one of the result."""
    before, after = node.shape(0), node.result
    if not before or not after or before[0] != after[0]:
        return False
    return (
        is_fully_known(before[1:])
        and is_fully_known(after[1:])
        and math.prod(before[1:]) == math.prod(after[1:]) > 0  # type: ignore[arg-type]
    )


_Rule = Callable[[_Operation], Positions | None]

CONVOLUTIONS = frozenset(
    {"Conv2D", "Conv3D", "DepthwiseConv2dNative", "_FusedConv2D", "_FusedDepthwiseConv2dNative"}
)
_RULES_OF_SEVERAL: dict[str, _Rule] = {
    " ".join(CONVOLUTIONS): _convolution,
    "Conv2DBackpropInput Conv3DBackpropInputV2": _transposed_convolution,
    "Identity Snapshot StopGradient PreventGradient BiasAdd LRN DepthToSpace SpaceToDepth "
    "ResizeBilinear ResizeNearestNeighbor ResizeBicubic": _first,
    "MaxPool AvgPool MaxPool3D AvgPool3D": _first_if(_pools_each),
    "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 _FusedBatchNormEx": _normalization,
    "Softmax LogSoftmax TopKV2 FakeQuantWithMinMaxVarsPerChannel": _first_if(
        lambda node: node.rank() >= 2
    ),
    "MatMul _FusedMatMul": _product,
    "BatchMatMul BatchMatMulV2": lambda node: _broadcasting(node) if node.rank() >= 3 else None,
    "Einsum": _einsum,
    "Mean Sum Max Min Prod ArgMax ArgMin Cumsum Cumprod ReverseV2": _first_if(
        lambda node: node.spares_first(1, node.rank())
    ),
    "GatherV2": _first_if(_gathers_others),
    "Roll": _first_if(lambda node: node.spares_first(2, node.rank())),
    "ConcatV2": _concatenation,
    "Pack": _stack,
    "Tile": _has_first(1),
    "Pad PadV2 MirrorPad": _has_first(0),
    "Transpose": _has_first(0),
    "ExpandDims": _first_if(lambda node: node.spares_first(1, node.rank() and node.rank() + 1)),
    "Squeeze": _first_if(_squeezes_others),
    "Split": lambda node: (1,) if node.spares_first(0, node.rank(1)) else None,
    "SplitV": _first_if(lambda node: node.spares_first(2, node.rank())),
    "StridedSlice": _first_if(_slices_others),
    "Reshape": _first_if(_keeps_batch),
}
_RULES = {
    **dict.fromkeys(UNARY_OPS, _first),
    **dict.fromkeys(BROADCASTING_OPS, _broadcasting),
    **{op: rule for ops, rule in _RULES_OF_SEVERAL.items() for op in ops.split()},
}
