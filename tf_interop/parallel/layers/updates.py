"""Finds the updates of parameters: what an optimizer computes from the gradient of a filter.

    gradient --> Sub --> Mul --> AssignAdd (slot) ...> Read (slot) --> Mul --> AssignSub (filter)
                  ^                                                     ^
    Read (slot) --+                                   learning rate ----+

An update is everything elementwise, of the shape of the gradient, that follows it or a variable
that it is assigned to, and all reads and assignments of these variables. A variable belongs to it
only if nothing else in the graph uses it, because its shares then hold its value while its own
memory does not. Scalars, such as a learning rate or the norm of all gradients, stay outside, and so
does what is not elementwise, such as a penalty on large weights: it reads the whole tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from tf_interop.graph.ops import attribute_of
from tf_interop.graph.properties import GraphProperties
from tf_interop.graph.view import GraphView
from tf_interop.parallel.rules.elementwise import ELEMENTWISE_OPS
from tf_interop.parallel.rules.shares import ASSIGN_OPS, READ_OP

VARIABLE_OPS = frozenset({"_Arg", "VarHandleOp"})


@dataclasses.dataclass(frozen=True, slots=True)
class Update:
    """The update of a parameter, and of the optimizer's slots for it.

    Attributes:
        gradient: the node that computes the gradient.
        variables: the nodes that give the handles of the variables.
        nodes: its nodes without the gradient, ascending.
    """

    gradient: int
    variables: tuple[int, ...]
    nodes: tuple[int, ...]


def argument_of(view: GraphView, variable: int) -> int | None:
    """The number of a variable among a function's arguments; None if it is none of them."""
    if view.ops[variable] != "_Arg":
        return None
    return int(attribute_of(view.nodes[variable], "index").i)


def find_updates(
    view: GraphView,
    properties: GraphProperties,
    gradients: Iterable[int],
    can_be_divided: Callable[[int, int], bool],
) -> list[Update]:
    """Finds the update that follows each gradient of a filter, if it can be divided.

    `can_be_divided` tells whether a node is in no layer, and may be divided like another one.
    """
    taken: set[int] = set()
    updates = []
    for gradient in gradients:
        growth = _Growth(view, properties, gradient, can_be_divided, taken)
        growth.follow((gradient, 0))
        if growth.variables:
            taken |= growth.nodes
            nodes = tuple(sorted(growth.nodes))
            updates.append(Update(gradient, tuple(growth.variables), nodes))
    return updates


class _Growth:
    """An update that grows from its gradient."""

    def __init__(
        self,
        view: GraphView,
        properties: GraphProperties,
        gradient: int,
        can_be_divided: Callable[[int, int], bool],
        taken: set[int],
    ) -> None:
        self._view, self._properties = view, properties
        self._gradient = gradient
        self._can_be_divided = can_be_divided
        self._taken = taken
        self._shape: Any = properties.output_shape(gradient, 0)
        self.variables: list[int] = []
        self.nodes: set[int] = set()

    def follow(self, tensor: tuple[int, int]) -> None:
        """Adds what reads a tensor, and what that leads to."""
        left = [tensor]
        while left:
            for node in self._readers(left.pop()):
                if node in self.nodes or node in self._taken:
                    continue
                op = self._view.ops[node]
                if op in ASSIGN_OPS:
                    left += self._add_variable(self._view.fanins[node][0])
                elif op in ELEMENTWISE_OPS and self._fits(node):
                    self.nodes.add(node)
                    left.append((node, 0))
                    for source in self._view.fanins[node]:
                        if self._view.ops[source[0]] == READ_OP and source[0] not in self.nodes:
                            left += self._add_variable(self._view.fanins[source[0]][0])

    def _readers(self, tensor: tuple[int, int]) -> list[int]:
        return [
            reader
            for reader in self._view.readers[tensor[0]]
            if tensor in self._view.fanins[reader]
        ]

    def _add_variable(self, handle: tuple[int, int]) -> list[tuple[int, int]]:
        """Adds a variable that nothing else uses; returns what its reads give."""
        variable = handle[0]
        if variable in self.variables or self._view.ops[variable] not in VARIABLE_OPS:
            return []
        uses = self._readers(handle)
        is_assigned = any(self._view.ops[use] in ASSIGN_OPS for use in uses)
        if not is_assigned or not all(map(self._is_use, uses)):
            return []
        self.variables.append(variable)
        self.nodes.update(uses)
        return [(use, 0) for use in uses if self._view.ops[use] == READ_OP]

    def _is_use(self, node: int) -> bool:
        """Whether a node reads or assigns the whole of a variable with the gradient's shape."""
        if node in self._taken or not self._can_be_divided(node, self._gradient):
            return False
        if self._view.ops[node] == READ_OP:
            return bool(self._properties.output_shape(node, 0) == self._shape)
        return (
            self._view.ops[node] in ASSIGN_OPS
            and self._properties.input_shape(node, 1) == self._shape
        )

    def _fits(self, node: int) -> bool:
        return bool(self._properties.output_shape(node, 0) == self._shape) and self._can_be_divided(
            node, self._gradient
        )
