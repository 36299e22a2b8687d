"""Matches convolutions and matrix products with their gradients: the heads of layers.

    forward           image x, filter w      Conv2D            MatMul(x, w)
    backward-input    filter w, gradient dy  Conv2DBackpropI.  MatMul(dy, w), w transposed
    backward-filter   image x, gradient dy   Conv2DBackpropF.  MatMul(x, dy)

The heads of one layer share the tensors that their lines have in common. A filter is identified by
its variable or constant. If several layers share a filter, or an image as branches do, the third
tensor decides.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import Any

from tf_interop.convolution import ConvolutionKind
from tf_interop.graph.ops import CONVOLUTION_KINDS, SIZES_POSITIONS, attribute_of
from tf_interop.graph.properties import PARAMETER_OPS, GraphProperties, is_fully_known
from tf_interop.graph.view import GraphView, Tensor

PRODUCT_OPS = frozenset({"MatMul", "_FusedMatMul"})
HEAD_OPS = CONVOLUTION_KINDS.keys() | PRODUCT_OPS

_HANDED_ON = frozenset({"ReadVariableOp", "Identity", "Cast", "StopGradient"})


@dataclasses.dataclass(frozen=True, slots=True)
class Head:
    """A convolution or a matrix product in its layer.

    Attributes:
        first: the first node of the layer, which may be this node.
        role: forward or one of the gradients.
    """

    first: int
    role: ConvolutionKind


@dataclasses.dataclass(frozen=True, slots=True)
class _WithFilter:
    """A head that reads a filter: forward, or the gradient of the input."""

    node: int
    data: Tensor
    filter: Tensor
    source: Tensor  # the variable or constant of the filter
    is_turned: bool  # whether it transposes the filter, as one of the two roles does


def find_heads(view: GraphView, properties: GraphProperties) -> dict[int, Head]:
    """Finds all convolutions, all matrix products with a parameter, and their gradients.

    Returns:
        The heads by node, in topological order, without other matrix products.

    Raises:
        GraphError: the graph has a cycle that no loop closes.
    """
    order = [node for node in view.topological_order() if view.ops[node] in HEAD_OPS]
    return _Matching(view, properties, order).match() if order else {}


class _Matching:
    """Finds the layer of each gradient among the candidates."""

    def __init__(self, view: GraphView, properties: GraphProperties, order: list[int]) -> None:
        self._view = view
        self._properties = properties
        parameters = _find_parameters(view)
        self._with_filter = {node: _with_filter(view, node, parameters) for node in order}
        # The pairs of tensors that gradients of filters read, and the pairs of filter and data.
        self._partners: dict[Tensor, set[Tensor]] = collections.defaultdict(set)
        self._products: set[tuple[Tensor, Tensor]] = set()
        for node, each in self._with_filter.items():
            if each is not None:
                self._products.add((each.source, each.data))
            else:
                first, second = self._operands(node)
                self._partners[first].add(second)
                self._partners[second].add(first)
        self._by_filter: dict[Tensor, list[_WithFilter]] = collections.defaultdict(list)
        self._by_data: dict[Tensor, list[_WithFilter]] = collections.defaultdict(list)
        self._taken: set[tuple[int, ConvolutionKind]] = set()

    def match(self) -> dict[int, Head]:
        heads = {
            node: self._match_filter_gradient(node)
            if each is None
            else self._match_with_filter(each)
            for node, each in self._with_filter.items()
        }
        return {node: head for node, head in heads.items() if head is not None}

    def _operands(self, node: int) -> tuple[Tensor, Tensor]:
        """The two tensors from which the gradient of a filter is computed."""
        inputs = self._view.fanins[node]
        return inputs[0], inputs[SIZES_POSITIONS.get(self._view.ops[node], 0) + 1]

    def _match_with_filter(self, each: _WithFilter) -> Head:
        others = self._by_filter[each.source]
        candidates = [first for first in others if first.is_turned != each.is_turned]
        # The op of a matrix product does not reveal its role.
        role = CONVOLUTION_KINDS.get(self._view.ops[each.node])
        if candidates:
            partners = self._partners[each.data]
            paired = [first for first in candidates if first.data in partners]
            return self._take(paired or candidates, role or ConvolutionKind.BACKWARD_INPUT)
        others.append(each)
        self._by_data[each.data].append(each)
        return Head(each.node, role or ConvolutionKind.FORWARD)

    def _match_filter_gradient(self, node: int) -> Head | None:
        operands = self._operands(node)
        candidates = {
            first.node: (first, other)
            for one, other in (operands, operands[::-1])
            for first in self._by_data[one]
            if self._may_be_gradient(node, first)
        }
        if candidates:
            paired = [
                first
                for first, other in candidates.values()
                if (first.source, other) in self._products
            ]
            known = [first for first, _ in candidates.values()]
            return self._take(paired or known, ConvolutionKind.BACKWARD_FILTER)
        if self._view.ops[node] in PRODUCT_OPS:
            return None
        return Head(node, ConvolutionKind.BACKWARD_FILTER)

    def _take(self, candidates: list[_WithFilter], role: ConvolutionKind) -> Head:
        """Takes the last candidate whose role is free: gradients come in reverse order."""
        free = [each for each in candidates if (each.node, role) not in self._taken]
        first = (free or candidates)[-1].node
        self._taken.add((first, role))
        return Head(first, role)

    def _may_be_gradient(self, node: int, first: _WithFilter) -> bool:
        """Whether a node may have as many values as a filter."""
        result: Any = self._properties.output_shape(node, 0)
        sizes = SIZES_POSITIONS.get(self._view.ops[node])
        if result is None and sizes is not None:
            result = self._properties.held_shape(*self._view.fanins[node][sizes])
        shape: Any = self._properties.output_shape(*first.filter)
        if not is_fully_known(result) or not is_fully_known(shape):
            return True
        return bool(math.prod(result) == math.prod(shape))


def _find_parameters(view: GraphView) -> frozenset[int]:
    """The nodes that depend only on variables and constants."""
    parameters = set()
    for node in view.topological_order():
        sources = view.fanins[node]
        if view.ops[node] in PARAMETER_OPS or (
            sources and all(source in parameters for source, _ in sources)
        ):
            parameters.add(node)
    return frozenset(parameters)


def _with_filter(view: GraphView, node: int, parameters: frozenset[int]) -> _WithFilter | None:
    """A head that reads a filter; None for gradients of filters and for other products."""
    op = view.ops[node]
    inputs = view.fanins[node]
    data = inputs[0]
    if op in PRODUCT_OPS:
        is_data_turned, is_turned = (
            attribute_of(view.nodes[node], name).b for name in ("transpose_a", "transpose_b")
        )
        # A sum over the batch is the gradient of a filter, even if its `b` is a constant.
        if is_data_turned or inputs[1][0] not in parameters:
            return None
    elif CONVOLUTION_KINDS[op] is ConvolutionKind.BACKWARD_FILTER:
        return None
    else:
        is_turned = CONVOLUTION_KINDS[op] is ConvolutionKind.BACKWARD_INPUT
        data = inputs[2] if is_turned else data
    return _WithFilter(node, data, inputs[1], _source_of(view, inputs[1]), is_turned)


def _source_of(view: GraphView, tensor: Tensor) -> Tensor:
    """The variable, or the first tensor, from which a filter comes."""
    while view.ops[tensor[0]] in _HANDED_ON and view.fanins[tensor[0]]:
        tensor = view.fanins[tensor[0]][0]
    return tensor
