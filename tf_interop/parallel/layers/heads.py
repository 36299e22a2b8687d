"""Finds which convolutions and matrix products are one layer's: the forward one and its gradients.

    forward           image x, filter w      Conv2D            MatMul(x, w)
    backward-input    filter w, gradient dy  Conv2DBackpropI.  MatMul(dy, w), w the other way round
    backward-filter   image x, gradient dy   Conv2DBackpropF.  MatMul(x, dy)

Two of one layer share what their lines have in common. The filter is known by the variable or the
constant that it comes from. Where several layers share an image, as branches do, or a filter, the
third of the three tells which one is meant.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
from collections.abc import Iterable

from tf_interop.convolution import ConvolutionKind
from tf_interop.graph.ops import CONVOLUTION_KINDS, SIZES_POSITIONS, attribute_of
from tf_interop.graph.properties import PARAMETER_OPS, GraphProperties, is_fully_known
from tf_interop.graph.view import GraphView
from tf_interop.parallel.op_parts import Role

PRODUCT_OPS = frozenset({"MatMul", "_FusedMatMul"})
HEAD_OPS = CONVOLUTION_KINDS.keys() | PRODUCT_OPS
"""Convolutions and matrix products."""

_ROLES = {
    ConvolutionKind.FORWARD: Role.FORWARD,
    ConvolutionKind.BACKWARD_INPUT: Role.BACKWARD_INPUT,
    ConvolutionKind.BACKWARD_FILTER: Role.BACKWARD_FILTER,
}
_HANDED_ON = frozenset({"ReadVariableOp", "Identity", "Cast", "StopGradient"})

_Tensor = tuple[int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Head:
    """What a convolution or a matrix product is to its layer.

    Attributes:
        first: the node that the layer begins with; the node itself where that is the one.
        role: what it computes.
    """

    first: int
    role: Role


class _Side(enum.Enum):
    """How a matrix product or a convolution uses its filter: both sides occur in a layer."""

    STRAIGHT = 0
    TRANSPOSED = 1


@dataclasses.dataclass(frozen=True, slots=True)
class _WithFilter:
    """One that reads a filter: forward, or the gradient of the input."""

    node: int
    data: _Tensor
    filter: _Tensor
    source: _Tensor  # what the filter comes from
    side: _Side


def find_heads(view: GraphView, properties: GraphProperties) -> dict[int, Head]:
    """Finds all convolutions and all matrix products with a parameter, and their gradients.

    Returns:
        By node, in topological order. Matrix products of other kinds are not among them.

    Raises:
        GraphError: the graph has a cycle that no loop closes.
    """
    order = [node for node in view.topological_order() if view.ops[node] in HEAD_OPS]
    parameters = _find_parameters(view) if order else frozenset()
    reading: dict[int, _WithFilter] = {}
    gradients: dict[int, tuple[_Tensor, _Tensor]] = {}
    for node in order:
        with_filter = _with_filter(view, node, parameters)
        if with_filter is not None:
            reading[node] = with_filter
        else:
            # Of a product the first two, of a convolution all but the sizes of the filter.
            inputs = view.fanins[node]
            gradients[node] = inputs[0], inputs[SIZES_POSITIONS.get(view.ops[node], 0) + 1]
    return _Matching(view, properties, reading, gradients).match(order)


class _Matching:
    """Finds the layer of each gradient among those that can be meant."""

    def __init__(
        self,
        view: GraphView,
        properties: GraphProperties,
        reading: dict[int, _WithFilter],
        gradients: dict[int, tuple[_Tensor, _Tensor]],
    ) -> None:
        self._view = view
        self._properties = properties
        self._reading = reading
        self._gradients = gradients
        # What gradients of filters read beside each tensor, and filters with what is read there.
        self._partners: dict[_Tensor, set[_Tensor]] = collections.defaultdict(set)
        for first, second in gradients.values():
            self._partners[first].add(second)
            self._partners[second].add(first)
        self._products = {(each.source, each.data) for each in reading.values()}
        self._by_filter: dict[_Tensor, list[_WithFilter]] = collections.defaultdict(list)
        self._by_data: dict[_Tensor, list[_WithFilter]] = collections.defaultdict(list)
        self._taken: set[tuple[int, Role]] = set()

    def match(self, order: Iterable[int]) -> dict[int, Head]:
        """The heads in `order`."""
        heads: dict[int, Head] = {}
        for node in order:
            head = (
                self._match_with_filter(self._reading[node])
                if node in self._reading
                else self._match_filter_gradient(node)
            )
            if head is not None:
                heads[node] = head
        return heads

    def _match_with_filter(self, each: _WithFilter) -> Head:
        candidates = [
            first for first in self._by_filter[each.source] if first.side is not each.side
        ]
        partners = self._partners[each.data]
        role = _role_of(self._view, each.node)
        if candidates:
            if role is None:
                role = Role.BACKWARD_INPUT
            paired = [first for first in candidates if first.data in partners]
            return self._take(paired or candidates, role)
        self._by_filter[each.source].append(each)
        self._by_data[each.data].append(each)
        return Head(each.node, role or Role.FORWARD)

    def _match_filter_gradient(self, node: int) -> Head | None:
        operands = self._gradients[node]
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
            return self._take(paired or known, Role.BACKWARD_FILTER)
        if self._view.ops[node] in PRODUCT_OPS:
            return None
        return Head(node, Role.BACKWARD_FILTER)

    def _take(self, candidates: list[_WithFilter], role: Role) -> Head:
        """The last that has no such gradient yet: gradients come in the reverse order."""
        free = [each for each in candidates if (each.node, role) not in self._taken]
        first = (free or candidates)[-1].node
        self._taken.add((first, role))
        return Head(first, role)

    def _may_be_gradient(self, node: int, first: _WithFilter) -> bool:
        """Whether a node computes as many values as a filter has; where that is known."""
        result = self._properties.output_shape(node, 0)
        sizes = SIZES_POSITIONS.get(self._view.ops[node])
        if result is None and sizes is not None:
            result = self._properties.held_shape(*self._view.fanins[node][sizes])
        shape = self._properties.output_shape(*first.filter)
        if not is_fully_known(result) or not is_fully_known(shape):
            return True
        return math.prod(result or ()) == math.prod(shape or ())  # type: ignore[arg-type]


def _find_parameters(view: GraphView) -> frozenset[int]:
    """The nodes that compute from variables and constants alone."""
    parameters = set()
    for node in view.topological_order():
        sources = view.fanins[node]
        if view.ops[node] in PARAMETER_OPS or (
            sources and all(source in parameters for source, _ in sources)
        ):
            parameters.add(node)
    return frozenset(parameters)


def _with_filter(view: GraphView, node: int, parameters: frozenset[int]) -> _WithFilter | None:
    """A head that reads a filter; None for the gradient of one, and for other matrix products."""
    op = view.ops[node]
    inputs = view.fanins[node]
    if op in PRODUCT_OPS:
        is_turned, is_filter_turned = (
            attribute_of(view.nodes[node], name).b for name in ("transpose_a", "transpose_b")
        )
        # What sums over the batch is the gradient of a filter, whose `b` may be a constant too.
        if is_turned or inputs[1][0] not in parameters:
            return None
        source = _source_of(view, inputs[1])
        return _WithFilter(node, inputs[0], inputs[1], source, _Side(int(is_filter_turned)))
    kind = CONVOLUTION_KINDS[op]
    if kind is ConvolutionKind.BACKWARD_FILTER:
        return None
    is_gradient = kind is ConvolutionKind.BACKWARD_INPUT
    data = inputs[2] if is_gradient else inputs[0]
    source = _source_of(view, inputs[1])
    return _WithFilter(node, data, inputs[1], source, _Side(int(is_gradient)))


def _role_of(view: GraphView, node: int) -> Role | None:
    """What a convolution computes; None for a matrix product, which does not say."""
    kind = CONVOLUTION_KINDS.get(view.ops[node])
    return None if kind is None else _ROLES[kind]


def _source_of(view: GraphView, tensor: _Tensor) -> _Tensor:
    """The variable, or the first tensor, that a filter comes from."""
    while view.ops[tensor[0]] in _HANDED_ON and view.fanins[tensor[0]]:
        tensor = view.fanins[tensor[0]][0]
    return tensor
